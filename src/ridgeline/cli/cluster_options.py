"""What is not typical of a cluster: the options of every command that takes `--cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ridgeline.hardware.cluster import Cluster

DomainSize = Annotated[int | None, typer.Option(help="Devices that the fast fabric joins.")]
Network = Annotated[
    float | None, typer.Option(metavar="GBIT/S", help="Network of one device, per direction.")
]
Oversubscription = Annotated[float | None, typer.Option(help="Of the network's core; 1 is none.")]


def cluster_of(
    text: str, domain_size: int | None, network: float | None, oversubscription: float | None
) -> Cluster:
    """The cluster that `--cluster` names, with what the options say of it."""
    from ridgeline.hardware.cluster import parse_cluster

    return parse_cluster(
        text,
        domain_size=domain_size,
        network_bytes_per_second=None if network is None else network * 1e9 / 8,
        oversubscription=oversubscription,
    )
