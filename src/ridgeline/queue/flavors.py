"""Flavors of GPUs with quotas of their own: Kueue's ResourceFlavors.

A flavor stands for nodes of one kind of GPU, spot capacity or not. Every flavor has its own tree of
quotas: what a queue borrows, it borrows of one flavor. A cluster whose queues name none is one
flavor of all nodes. Source: Kueue's documentation, "Cluster Queue" (Flavors and borrowing
semantics, FlavorFungibility) and "Resource Flavor".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.cohorts import QuotaTree
from ridgeline.queue.pool import Asked
from ridgeline.queue.shares import QueueShare
from ridgeline.queue.wants import NodePiece, Wish, kinds_in


@dataclass(frozen=True, slots=True)
class QuotaLane:
    """A flavor, and what queues may have of it."""

    gpu_type: str
    """Its kind of GPU; empty: any."""
    tree: QuotaTree

    def asked(self, asked: Asked) -> Asked | None:
        """What a job asks for, of these nodes alone; None: it may not be on them."""
        if not self.gpu_type or not isinstance(asked, Wish):
            return asked
        pieces = [one for one in (asked.full, asked.rest, asked.single) if one is not None]
        if any(one.gpu_type and self.gpu_type not in kinds_in(one.gpu_type) for one in pieces):
            return None
        return replace(
            asked,
            full=self._here(asked.full),
            rest=self._here(asked.rest),
            single=self._here(asked.single),
        )

    def _here(self, piece: NodePiece | None) -> NodePiece | None:
        return None if piece is None else replace(piece, gpu_type=self.gpu_type)


def lanes_of(cluster: QueuedCluster, names: Iterable[str], gpus: float) -> dict[str, QuotaLane]:
    """The flavors of a cluster by name; the only one has none where queues tell none apart."""
    if not cluster.flavors:
        return {"": QuotaLane("", QuotaTree(names, cluster.queues, cluster.cohorts, gpus))}
    names = list(names)
    lanes = {
        flavor: QuotaLane(
            one.gpu_type,
            QuotaTree(
                names,
                {name: _queue_within(flavor, cluster.queues.get(name, QueueShare()))
                 for name in dict.fromkeys([*cluster.queues, *names])},
                {name: share.of_flavor(flavor) for name, share in cluster.cohorts.items()},
                0.0,
            ),
        )
        for flavor, one in cluster.flavors.items()
    }  # fmt: skip
    for lane in lanes.values():
        lane.tree.share_with([one.tree for one in lanes.values()])
    return lanes


def _queue_within(flavor: str, share: QueueShare) -> QueueShare:
    """A queue's share of one flavor; who does not name it may not borrow it."""
    for one in share.flavors:
        if one.name == flavor:
            return msgspec.structs.replace(
                share, quota=one.quota, borrowing_limit=one.borrowing_limit,
                lending_limit=one.lending_limit,
            )  # fmt: skip
    return msgspec.structs.replace(share, quota=0, borrowing_limit=0, lending_limit=None)
