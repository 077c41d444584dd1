"""Flavors of GPUs with quotas of their own: Kueue's ResourceFlavors.

A flavor stands for nodes of one kind of GPU, spot capacity or not. Every flavor has its own tree of
quotas for each resource that they count: what a queue borrows, it borrows of one flavor. A cluster
whose queues name none is one flavor of all nodes. Source: Kueue's documentation, "Cluster Queue"
(Flavors and borrowing semantics, FlavorFungibility) and "Resource Flavor".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.cohorts import QuotaTree
from ridgeline.queue.pool import Asked
from ridgeline.queue.shares import RESOURCES, CohortShare, QueueShare, ResourceQuota
from ridgeline.queue.wants import NodePiece, Wish, kinds_in

Share = TypeVar("Share", QueueShare, CohortShare)
_UNITS = {"cores": "cores", "memory_gibibytes": "GiB"}
_ABOUT = 1e-9


@dataclass(frozen=True, slots=True)
class _Counted:
    """What queues may have of one resource, and what each job takes of it."""

    tree: QuotaTree
    amounts: Sequence[float]
    unit: str


@dataclass(frozen=True, slots=True)
class QuotaLane:
    """A flavor, and what queues may have of it: GPUs, and cores and memory where they count."""

    gpu_type: str
    """Its kind of GPU; empty: any."""
    tree: QuotaTree
    """The quotas of its GPUs."""
    counted: dict[str, tuple[_Counted, ...]]
    """By queue, all resources that its quotas count, GPUs first."""

    def has_left(self, queue: str, job: int) -> bool:
        """Whether a queue may have what a job of it takes, with what it can borrow now."""
        for one in self.counted[queue]:  # noqa: SIM110 - asked at each offer, a generator is slower
            if one.tree.available(queue) < one.amounts[job]:
                return False
        return True

    def is_kept(self, queue: str) -> bool:
        """Whether a queue has no more than it may have, jobs that were added included."""
        return all(one.tree.available(queue) >= -_ABOUT for one in self.counted[queue])

    def covers(self, queue: str, job: int) -> bool:
        """Whether a queue's own quota is enough for a job more."""
        for one in self.counted[queue]:
            if one.tree.used(queue) + one.amounts[job] > one.tree.quota(queue):
                return False
        return True

    def borrows(self, queue: str) -> bool:
        """Whether a queue uses more than its own of anything."""
        return any(one.tree.borrows(queue) for one in self.counted[queue])

    def add(self, queue: str, job: int, sign: int) -> None:
        """Let a queue have what a job takes (1), or no longer (-1)."""
        for one in self.counted[queue]:
            one.tree.add(queue, sign * one.amounts[job])

    def too_much(self, queue: str, job: int) -> str:
        """What of a job a queue could not have if nobody else had anything; empty: nothing."""
        for one in self.counted[queue]:
            most, asked = one.tree.most(queue), one.amounts[job]
            if asked > most + _ABOUT:
                return (
                    f"{asked:g} {one.unit}, and its quota with all that it may borrow is {most:g}"
                )
        return ""

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


def lanes_of(
    cluster: QueuedCluster, names: Iterable[str], gpus: float, taken: Mapping[str, Sequence[float]]
) -> dict[str, QuotaLane]:
    """The flavors of a cluster by name; the only one has none where queues tell none apart.

    Args:
        cluster: The cluster, with its queues and cohorts.
        names: The queues of jobs.
        gpus: All of the cluster's.
        taken: What each job takes of GPUs, and of `RESOURCES`.
    """
    queues = {name: cluster.queues.get(name, QueueShare())
              for name in dict.fromkeys([*cluster.queues, *names])}  # fmt: skip
    kinds = {name: one.gpu_type for name, one in cluster.flavors.items()} or {"": ""}
    lanes, rows = {}, {resource: list[QuotaTree]() for resource in ("gpus", *RESOURCES)}

    def beside(
        shares: Mapping[str, QueueShare], cohorts: Mapping[str, CohortShare],
        counted: Mapping[str, list[_Counted]],
    ) -> None:  # fmt: skip
        """Count what else than GPUs has quotas."""
        for resource in RESOURCES:
            limited = _of_resource(resource, shares)
            if limited:
                tree = QuotaTree(limited, limited, _of_resource(resource, cohorts), 0.0)
                rows[resource].append(tree)
                for name in limited:
                    counted[name].append(_Counted(tree, taken[resource], _UNITS[resource]))

    of_all: dict[str, list[_Counted]] = {name: [] for name in queues}
    beside(queues, cluster.cohorts, of_all)
    for flavor, kind in kinds.items():
        shares, cohorts = queues, cluster.cohorts
        if flavor:
            shares = {name: _queue_within(flavor, one) for name, one in queues.items()}
            cohorts = {name: one.of_flavor(flavor) for name, one in cluster.cohorts.items()}
        tree = QuotaTree(shares, shares, cohorts, 0.0 if flavor else gpus)
        rows["gpus"].append(tree)
        counted = {name: [_Counted(tree, taken["gpus"], "GPUs"), *of_all[name]] for name in shares}
        if flavor:
            beside(shares, cohorts, counted)
        lanes[flavor] = QuotaLane(kind, tree, {name: tuple(one) for name, one in counted.items()})
    trees = [row for row in rows.values() if row]
    if len(trees) > 1 or len(kinds) > 1:
        for lane in lanes.values():
            lane.tree.share_with(trees)
    return lanes


def _of_resource(resource: str, shares: Mapping[str, Share]) -> dict[str, Share]:
    """The shares that count a resource, with its quotas in the place of those of GPUs."""
    found = {}
    for name, share in shares.items():
        own: ResourceQuota | None = getattr(share, resource)
        if own is not None:
            found[name] = msgspec.structs.replace(
                share, quota=own.quota, borrowing_limit=own.borrowing_limit,
                lending_limit=own.lending_limit,
            )  # fmt: skip
    return found


def _queue_within(flavor: str, share: QueueShare) -> QueueShare:
    """A queue's share of one flavor; who does not name it may not borrow it."""
    for one in share.flavors:
        if one.name == flavor:
            return msgspec.structs.replace(
                share, quota=one.quota, borrowing_limit=one.borrowing_limit,
                lending_limit=one.lending_limit, cores=one.cores,
                memory_gibibytes=one.memory_gibibytes,
            )  # fmt: skip
    return msgspec.structs.replace(
        share, quota=0, borrowing_limit=0, lending_limit=None, cores=None, memory_gibibytes=None
    )
