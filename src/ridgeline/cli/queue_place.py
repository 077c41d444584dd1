"""`ridgeline queue place tasks.csv` fills a cluster under the rules by which nodes are chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.output_options import Html, Json

USUAL_RULES = ("kube-default", "kube-most-allocated", "best-fit", "fgd")


def queue_place(
    tasks: Annotated[
        Path,
        typer.Argument(
            metavar="TASKS.csv", help="Tasks with cpu_milli, memory_mib, num_gpu, gpu_milli."
        ),
    ],
    cluster: Annotated[
        Path,
        typer.Option(metavar="NODES.csv", help="Nodes with sn, cpu_milli, memory_mib, gpu, model."),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="A rule, or all; repeatable. Default: kube-default, kube-most-allocated,"
            " best-fit, fgd.",
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
    from ridgeline.queue.readers.openb import read_nodes, read_tasks
    from ridgeline.report.views.queue_placement import queue_placement_document

    names = rule_names() if policy == ["all"] else policy or list(USUAL_RULES)
    with progress() as on_progress:
        found = place_tasks(
            read_tasks(tasks),
            read_nodes(cluster),
            list(dict.fromkeys(names)),
            names=(tasks.name, cluster.name),
            arrivals=arrivals,
            seeds=seeds,
            on_progress=on_progress,
        )
    show_answer(found, queue_placement_document(found), json=json, html=html)
