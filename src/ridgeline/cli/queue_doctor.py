"""`ridgeline queue doctor state.json` says what is wrong with a cluster, in GPUs lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.show import Html, Json


def queue_doctor(
    state: Annotated[
        list[Path],
        typer.Argument(
            metavar="STATE…",
            help="What kubectl get nodes,pods -A -o json (or yaml) prints, in one file or more;"
            " what sinfo, squeue and, if at hand, sacct, sacctmgr -p and slurm.conf say; or a"
            " CSV of pods.",
        ),
    ],
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="NODES.csv", help="Nodes, where the state is a CSV of pods."),
    ] = None,
    dcgm: Annotated[
        Path | None,
        typer.Option(
            metavar="SAMPLES.csv", help="Utilisation by pod or job, as DCGM's exporter has it."
        ),
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Find what keeps a cluster's GPUs from work: GPUs lost to each cause, and its cure."""
    from ridgeline.cli.show import show_answer
    from ridgeline.queue.doctor.diagnose import diagnose_cluster
    from ridgeline.queue.readers.cluster_state import read_cluster_state
    from ridgeline.report.views.queue_doctor import queue_doctor_document

    found = diagnose_cluster(
        read_cluster_state(state, nodes=cluster, dcgm=dcgm),
        source=", ".join(path.name for path in state),
    )
    show_answer(found, queue_doctor_document(found), json=json, html=html)
