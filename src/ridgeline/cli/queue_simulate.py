"""`ridgeline queue simulate jobs.csv` plays a trace of jobs through the policies of a queue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.durations import duration_option
from ridgeline.cli.show import Html, Json
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.queue.answer import JobAsked
    from ridgeline.queue.cluster import QueuedCluster

USUAL_POLICIES = ("fifo", "easy", "fifo-skip", "sjf")
_ADDED = re.compile(r"(\d+)\s*[x×]\s*([^@]+?)(?:@(.+))?")


def queue_simulate(
    jobs: Annotated[
        Path,
        typer.Argument(
            metavar="JOBS.csv",
            help="Jobs as CSV, or as sacct or kubectl get pods -o json|yaml prints them.",
        ),
    ],
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A cluster as TOML, or nodes as kubectl, sinfo or scontrol prints them, or CSV.",
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of one pool, instead of a cluster file.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OURS=NAME",
            help="What a column of the jobs is called, as num_gpus=cards; with a unit,"
            " duration_seconds=took:min; repeatable.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="A policy, or all; repeatable. There are conservative, drf, easy, fair, fifo,"
            " fifo-skip, las, pod-by-pod, priority, quota, sjf and srtf. Default: fifo, easy,"
            " fifo-skip, sjf.",
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="Which node is taken: pack, spread, or a rule of queue place. Default: the file's,"
            " else pack.",
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Play the jobs of this queue alone.")
    ] = None,
    restart: Annotated[
        float | None, duration_option("From starting an interrupted job until its work goes on.")
    ] = None,
    checkpoint: Annotated[
        float | None, duration_option("Between checkpoints; work since then is lost.")
    ] = None,
    add: Annotated[
        str | None,
        typer.Option(
            metavar="GPUSxTIME", help="Ask what one more job does to all, as 8x2h or 8x2h@3d."
        ),
    ] = None,
    submit: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE.toml", help="Ask who would wait longer for this run."),
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,…",
            help="Nodes that come and go: gpus, max, delay; also min, idle, price per node-hour.",
        ),
    ] = None,
    wait_objective: Annotated[
        float | None, duration_option("With --autoscale: 95 % of jobs wait no longer.")
    ] = None,
    redraw: Annotated[
        int, typer.Option(help="Traces redrawn from this one, for intervals; 0: none.", min=0)
    ] = 0,
    skip_unfit: Annotated[
        bool, typer.Option("--skip-unfit", help="Leave out jobs that the cluster cannot hold.")
    ] = False,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out rows that are no jobs: negative times, twins."),
    ] = False,
    spot_mix: Annotated[
        bool,
        typer.Option("--spot-mix", help="Try more and more of the nodes as the file's spot offer."),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="The seed of redrawn traces, failures and placement.")
    ] = 0,
    html: Html = None,
    json: Json = False,
) -> None:
    """Play a trace of jobs under several policies: waiting, completion, GPU use, fairness."""
    from ridgeline.cli import queue_questions as questions
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.queue.answer import simulate_queue
    from ridgeline.queue.gpu_kinds import told_kinds
    from ridgeline.queue.policies import policy_names
    from ridgeline.queue.readers.columns import given_columns
    from ridgeline.queue.readers.jobs_file import read_jobs
    from ridgeline.report.views.queue_simulation import queue_simulation_document

    if wait_objective is not None and autoscale is None:
        raise InputError("--wait-objective belongs to --autoscale; give both")
    beside = (cluster, gpus, submit, add, placement)
    if autoscale is not None and any(one is not None for one in beside):
        raise InputError(
            "--autoscale brings its own nodes; leave out --cluster, --gpus, --add, --submit and"
            " --placement"
        )
    where = (
        None if autoscale is not None else _cluster(cluster, gpus, restart, checkpoint, placement)
    )
    traced = read_jobs(jobs, skip_bad=skip_bad, given=given_columns(column or []))
    chosen, notes = traced.jobs, traced.notes
    if traced.kinds_if_told:
        chosen, more = told_kinds(chosen, where)
        notes += more
    if queue is not None:
        if queue not in chosen.queues:
            known = ", ".join(dict.fromkeys(chosen.queues))
            raise InputError(f"--queue {queue}: {jobs} has no such queue; it has {known}")
        chosen = chosen.of_queue(queue)
    title = f"{jobs.name}, queue {queue}" if queue else jobs.name
    if where is None:
        questions.show_autoscaling(
            chosen, autoscale or "", wait_objective, trace=title, skip_unfit=skip_unfit,
            notes=notes, html=html, json=json,
        )  # fmt: skip
        return
    names = policy_names() if policy == ["all"] else policy or list(USUAL_POLICIES)
    if submit is not None:
        questions.show_submission(
            chosen, where, list(dict.fromkeys(names)), submit, trace=title,
            skip_unfit=skip_unfit, seed=seed, html=html, json=json,
        )  # fmt: skip
        return
    with progress() as on_progress:
        found = simulate_queue(
            chosen,
            where,
            list(dict.fromkeys(names)),
            trace=title,
            redrawn=redraw,
            skip_unfit=skip_unfit,
            mixed=spot_mix,
            added=_added(add),
            seed=seed,
            notes=notes,
            on_progress=on_progress,
        )
    show_answer(found, queue_simulation_document(found), json=json, html=html)


def _cluster(
    path: Path | None,
    gpus: int | None,
    restart: float | None,
    checkpoint: float | None,
    placement: str | None,
) -> QueuedCluster:
    import msgspec

    from ridgeline.queue.cluster import (
        QueuedCluster,
        check_queued_cluster,
    )
    from ridgeline.queue.readers.cluster_nodes import read_cluster

    if (path is None) == (gpus is None):
        raise InputError("give the cluster as --gpus N or as --cluster FILE, one of them")
    found = read_cluster(path) if path else QueuedCluster(gpus=gpus or 0)
    given = {"restart_seconds": restart, "checkpoint_seconds": checkpoint}
    changes = {name: value for name, value in given.items() if value is not None}
    changed = msgspec.structs.replace(found, **changes)
    check_queued_cluster(changed, f"--cluster {path}" if path else "--gpus")
    if placement is None:
        return changed
    placed = msgspec.structs.replace(changed, placement=placement)
    check_queued_cluster(placed, "--placement")
    return placed


def _added(text: str | None) -> JobAsked | None:
    from ridgeline.queue.answer import JobAsked
    from ridgeline.records.durations import parse_duration

    if text is None:
        return None
    found = _ADDED.fullmatch(text.strip())
    if found is None or int(found[1]) < 1:
        raise InputError(f"--add {text}: no job; write GPUs x time as 8x2h, or 8x2h@3d")
    at = found[3]
    return JobAsked(
        num_gpus=int(found[1]),
        duration_seconds=parse_duration(found[2], "--add"),
        submit_seconds=None if at is None else parse_duration(at, "--add"),
    )
