"""`ridgeline queue place tasks.csv` fills a cluster under the rules by which nodes are chosen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.show import Html, Json

if TYPE_CHECKING:
    from ridgeline.queue.placement.nodes import PlacedNode, PlacedTasks

USUAL_RULES = ("kube-default", "kube-most-allocated", "best-fit", "fgd")


def queue_place(
    tasks: Annotated[
        Path,
        typer.Argument(
            metavar="TASKS.csv",
            help="Tasks with cpu_milli, memory_mib, num_gpu, gpu_milli; or jobs as queue simulate"
            " reads them.",
        ),
    ],
    cluster: Annotated[
        Path,
        typer.Option(
            metavar="NODES.csv",
            help="Nodes with sn, cpu_milli, memory_mib, gpu, model; or a cluster as queue simulate"
            " reads it.",
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="A rule of placement, or all; repeatable. There are best-fit, clustering,"
            " dot-product, fgd, kube-default, kube-least-allocated, kube-most-allocated, packing"
            " and random. Default: kube-default, kube-most-allocated, best-fit, fgd.",
        ),
    ] = None,
    arrivals: Annotated[
        float, typer.Option(help="Demand that arrives, as a multiple of all GPUs.")
    ] = 1.3,
    seeds: Annotated[int, typer.Option(help="Orders of arrival, the same for each rule.")] = 3,
    html: Html = None,
    json: Json = False,
) -> None:
    """Fill a cluster with tasks that stay: what each rule of placement allocates and fragments."""
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.queue.placement.answer import place_tasks
    from ridgeline.queue.placement.rules import rule_names
    from ridgeline.report.views.queue_placement import queue_placement_document

    asked, nodes, notes = _read(tasks, cluster)
    names = rule_names() if policy == ["all"] else policy or list(USUAL_RULES)
    with progress() as on_progress:
        found = place_tasks(
            asked,
            nodes,
            list(dict.fromkeys(names)),
            names=(tasks.name, cluster.name),
            arrivals=arrivals,
            seeds=seeds,
            notes=notes,
            on_progress=on_progress,
        )
    show_answer(found, queue_placement_document(found), json=json, html=html)


def _read(tasks: Path, cluster: Path) -> tuple[PlacedTasks, list[PlacedNode], tuple[str, ...]]:
    """Tasks and nodes, of openb's tables or of what `queue simulate` reads, and notes on them."""
    from ridgeline.queue.gpu_kinds import told_kinds
    from ridgeline.queue.placed_jobs import heeded_tasks, nodes_of_cluster, tasks_of_jobs
    from ridgeline.queue.readers.cluster_nodes import read_cluster
    from ridgeline.queue.readers.jobs_file import read_jobs
    from ridgeline.queue.readers.openb import lists_nodes, lists_tasks, read_nodes, read_tasks

    if lists_tasks(tasks):
        asked = read_tasks(tasks)
        if lists_nodes(cluster):
            return asked, read_nodes(cluster), ()
        nodes = nodes_of_cluster(read_cluster(cluster), f"--cluster {cluster}")
        return heeded_tasks(asked, nodes), nodes, ()
    where = read_cluster(cluster)
    traced = read_jobs(tasks)
    jobs, notes = told_kinds(traced.jobs, where)
    nodes = nodes_of_cluster(where, f"--cluster {cluster}")
    return tasks_of_jobs(jobs, where), nodes, traced.notes + notes
