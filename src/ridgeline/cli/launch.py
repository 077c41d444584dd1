"""`ridgeline launch recipe.toml --on PLACE`: run a recipe somewhere; `--check`: judge manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ridgeline.cli.recipe_runs import Changes, LiveView, usual_folder
from ridgeline.cli.show import Json

if TYPE_CHECKING:
    from ridgeline.launch.cluster_file import ClusterFile
    from ridgeline.launch.job import LaunchJob
    from ridgeline.queue.expected_wait import ExpectedWait
    from ridgeline.records.launched_run import Place
    from ridgeline.records.recipe import Recipe

WORKER = ("-m", "ridgeline.train.worker")
"""What a rank runs, after `python`."""


def launch(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECIPE.toml", help="A recipe; with --check: manifests, any number."
        ),
    ],
    on: Annotated[
        Literal["local", "torchrun", "slurm", "kubernetes", "ray"],
        typer.Option(help="Where it runs; torchrun: hosts that are reached by ssh."),
    ] = "local",
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="CLUSTER.toml", help="What the place needs: image, queue, hosts, …"),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What the run is called. Default: from the recipe's name."
        ),
    ] = "",
    state: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="STATE",
            help="What kubectl, or sinfo, squeue and sacct print: how long it waits.",
        ),
    ] = None,
    change: Changes = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started; start nothing.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Judge manifests offline, stricter than the API server."),
    ] = False,
    json: Json = False,
) -> None:
    """Run a recipe on this machine or a cluster; it says first what that will cost."""
    from ridgeline.errors import InputError

    if check:
        _check(files, json=json)
        return
    if len(files) != 1:
        raise InputError(f"one recipe is launched at a time, not {len(files)}")
    job = _job(files[0], on, cluster, name, change or [])
    if state and on not in ("kubernetes", "slurm"):
        raise InputError(
            "--state is for --on kubernetes and --on slurm, where runs wait; leave it out"
        )
    wait = _wait(job, on, state or [])
    if dry_run:
        _show(job, on, cluster, wait, json=json)
    elif on in ("local", "torchrun"):
        _run_here(job, on, cluster, json=json)
    else:
        _submit(job, on, cluster, wait, json=json)


def _job(path: Path, on: Place, cluster: Path | None, name: str, change: list[str]) -> LaunchJob:
    """The recipe on the cluster; paths are made absolute where its files are on these disks."""
    from ridgeline.launch.cluster_file import ClusterFile, read_cluster_file
    from ridgeline.launch.job import checked_name, job_of, run_folder, run_name
    from ridgeline.records.recipe_file import anchored, read_recipe, recipe_toml

    recipe: Recipe = read_recipe(path, change)
    known = read_cluster_file(cluster) if cluster else ClusterFile()
    fallback = usual_folder(path).resolve()
    if on == "local":
        known = _this_machine(known, recipe.layout.num_devices)
    if on in ("local", "torchrun", "slurm"):
        recipe = anchored(recipe, path.parent)
    else:
        fallback = Path(known.kubernetes.mount) / "runs" / fallback.name
    chosen = checked_name(name) if name else run_name(path.stem)
    return job_of(
        recipe,
        recipe_toml(recipe),
        known,
        name=chosen,
        worker=WORKER,
        folder=run_folder(known, chosen, fallback),
    )


def _this_machine(cluster: ClusterFile, ranks: int) -> ClusterFile:
    """All ranks on one node, which has this interpreter and these cores."""
    import os
    import sys

    import msgspec

    from ridgeline.launch.cluster_file import NodeSection

    section = msgspec.structs.replace(cluster.run, python=sys.executable)
    nodes = NodeSection(device=cluster.nodes.device, ranks=ranks, cpus=os.cpu_count() or 1)
    return msgspec.structs.replace(cluster, run=section, nodes=nodes)


def _show(
    job: LaunchJob, on: Place, cluster: Path | None, wait: ExpectedWait | None, *, json: bool
) -> None:
    import sys

    from ridgeline.cli.show import print_json
    from ridgeline.launch.places import written
    from ridgeline.launch.price import price_of

    text = written(job, on, cluster)
    price = price_of(job.recipe, job.cluster.nodes.device)
    if json:
        print_json({"name": job.name, "on": on, "price": price, "wait": wait, "written": text})
        return
    _say_price(job, _wait_line(on, wait))
    sys.stdout.write(text)


def _wait(job: LaunchJob, on: Place, state: list[Path]) -> ExpectedWait | None:
    """How long the run will wait, before it is submitted, by what the cluster does now."""
    if not state:
        return None
    from ridgeline.queue.doctor.constraints import Tolerated
    from ridgeline.queue.expected_wait import expected_wait
    from ridgeline.queue.queue_now import queue_of_pods
    from ridgeline.queue.readers.cluster_state import read_cluster_state
    from ridgeline.queue.readers.slurm_jobs import limit_seconds
    from ridgeline.queue.readers.slurm_now import read_slurm_now

    gpus = job.recipe.layout.num_devices
    if on == "kubernetes":
        place = job.cluster.kubernetes
        stands = [
            Tolerated(key=one.key, operator=one.operator, value=one.value, effect=one.effect)
            for one in place.tolerations
        ]
        queue = queue_of_pods(
            read_cluster_state(state), place.node_selector, stands, job.cluster.nodes.resource
        )
        return expected_wait(queue, gpus)
    asked = job.cluster.slurm
    queue = read_slurm_now(state, partition=asked.partition, gpu_type=asked.gpu_type)
    limit = limit_seconds(asked.time, "slurm.time")
    return expected_wait(queue, gpus, limit_seconds=limit)


def _wait_line(on: Place, wait: ExpectedWait | None) -> str:
    """The wait in words; where none was asked for, how to have it."""
    from ridgeline.queue.readers.slurm_printed import SLURM_CURE
    from ridgeline.report.views.launch import wait_line

    if wait is not None:
        return wait_line(
            (wait.p10_seconds, wait.p50_seconds, wait.p90_seconds),
            running=wait.running, ahead=wait.ahead, ended=wait.ended,
        )  # fmt: skip
    if on == "slurm":
        return (
            f"wait: not known; {SLURM_CURE}; then --state sinfo.txt --state squeue.txt --state"
            " sacct.txt says it"
        )
    if on == "kubernetes":
        return (
            "wait: not known; kubectl get nodes,pods -A -o json > state.json, and --state"
            " state.json, say it"
        )
    return ""


def _say_price(job: LaunchJob, wait: str = "") -> None:
    from ridgeline.cli.show import progress
    from ridgeline.launch.price import price_of
    from ridgeline.report.views.launch import price_line

    price = price_of(job.recipe, job.cluster.nodes.device)
    with progress() as on_progress:
        on_progress(
            price_line(
                job.recipe.layout.num_devices,
                seconds=price.seconds,
                device_hours=price.device_hours,
                usd=price.usd,
                unknown=price.unknown,
            )
        )
        if wait:
            on_progress(wait)


def _run_here(job: LaunchJob, on: Place, cluster: Path | None, *, json: bool) -> None:
    """Run to the end, as long as this process lives."""
    from ridgeline.cli.show import print_document, print_json, progress
    from ridgeline.launch.merge import LogLine
    from ridgeline.launch.places import refuse_twins, run_here, written
    from ridgeline.launch.remembered import Remembered
    from ridgeline.records.state_folder import state_folder
    from ridgeline.records.store import read_record
    from ridgeline.records.training_run import TrainingRun, read_log
    from ridgeline.report.views.train import run_document
    from ridgeline.train.check import check

    check(job.recipe)
    written(job, on, cluster)  # complains of missing keys before anything starts
    remembered = Remembered(state_folder("launch"))
    refuse_twins(job, remembered)
    _say_price(job)
    folder = Path(job.folder)
    with progress() as on_progress:

        def show(line: LogLine) -> None:
            if line.text.strip():
                on_progress(line.prefixed)

        watch = LiveView(folder, on_progress).refresh if folder.is_dir() or on == "local" else None
        run_here(job, on, remembered, show, *([watch] if watch else []))
    result = folder / "run.json"
    if not result.exists():  # the folder is on other machines' disks alone
        _print_run(job.name, json=json)
    elif json:
        print_json(read_record(result, TrainingRun))
    else:
        losses = [line.loss for line in read_log(folder)]
        print_document(run_document(read_record(result, TrainingRun), losses, folder))


def _submit(
    job: LaunchJob, on: Place, cluster: Path | None, wait: ExpectedWait | None, *, json: bool
) -> None:
    from ridgeline.launch.places import refuse_twins, submit
    from ridgeline.launch.remembered import Remembered
    from ridgeline.records.state_folder import state_folder

    remembered = Remembered(state_folder("launch"))
    refuse_twins(job, remembered)
    _say_price(job, _wait_line(on, wait))
    submit(job, on, cluster, remembered)
    _print_run(job.name, json=json)


def _print_run(name: str, *, json: bool) -> None:
    from ridgeline.cli.show import show_answer
    from ridgeline.launch.places import find, status
    from ridgeline.launch.remembered import Remembered
    from ridgeline.records.state_folder import state_folder
    from ridgeline.report.views.launch import status_document

    found = status(find(name, Remembered(state_folder("launch"))))
    show_answer(found, status_document(found), json=json)


def _check(files: list[Path], *, json: bool) -> None:
    from ridgeline.cli.show import show_answer
    from ridgeline.launch.check import check_files
    from ridgeline.report.views.launch import check_document

    report = check_files(files)
    show_answer(report, check_document(report.verdicts), json=json)
    if not report.passed:
        raise typer.Exit(3)
