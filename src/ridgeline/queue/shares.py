"""What queues may have of a cluster: weights in a tree, quotas in cohorts that lend."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from ridgeline.errors import InputError

Reclaim = Literal["never", "lower-priority", "any"]
Within = Literal["never", "lower-priority", "lower-or-newer-equal-priority"]


RESOURCES = {"cores": "cores", "memory_gibibytes": "memory_gib"}
"""What quotas may count beside GPUs, with the names of their keys."""
Fungible = Literal["may-stop-search", "try-next-flavor"]


class ResourceQuota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one queue or cohort may have of cores, or of memory."""

    quota: float = 0.0
    borrowing_limit: float | None = None
    lending_limit: float | None = None


class FlavorQuota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one queue or cohort may have of one flavor of GPUs."""

    name: str
    quota: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None
    cores: ResourceQuota | None = None
    """Cores of its nodes; none: they are not counted."""
    memory_gibibytes: ResourceQuota | None = msgspec.field(default=None, name="memory_gib")


class QueueShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one queue may have. Quotas count GPUs; their words are Kueue's."""

    weight: float = 1.0
    """Its part of what its parent has, beside the weights of its siblings (`fair`, `drf`); of what
    a cohort lends, where `fair_sharing` is on (`quota`)."""
    parent: str = ""
    """The queue that it is a part of; empty: the cluster."""
    quota: int = 0
    """GPUs that are its own: nominalQuota."""
    cohort: str = ""
    """Whom it borrows from and lends to; queues that name none are together in one."""
    borrowing_limit: int | None = None
    """Most GPUs above its quota; none: as many as the cohort has."""
    lending_limit: int | None = None
    """Most GPUs of its quota that others may have; none: all of them."""
    cores: ResourceQuota | None = None
    """Cores that its jobs may have beside; none: they are not counted."""
    memory_gibibytes: ResourceQuota | None = msgspec.field(default=None, name="memory_gib")
    reclaim_within_cohort: Reclaim = "any"
    """From which borrowers it takes back what its quota covers."""
    within_queue: Within = "never"
    """Which of its own jobs a more urgent one may interrupt: withinClusterQueue."""
    borrow_within_cohort: bool = False
    """Whether a job that has to borrow may interrupt less urgent ones of other queues for it."""
    strategy: Literal["best-effort-fifo", "strict-fifo"] = "best-effort-fifo"
    """Whether a head that cannot be admitted blocks those behind it."""
    flavors: tuple[FlavorQuota, ...] = ()
    """Instead of `quota` and its limits: kinds of GPUs in the order in which they are tried."""
    when_can_borrow: Fungible = "may-stop-search"
    """Whether a flavor that it would have to borrow is taken before the next one is tried."""
    when_can_preempt: Fungible = "try-next-flavor"
    """Whether a flavor for which it would have to interrupt other jobs is taken before the next."""

    @property
    def interrupts(self) -> bool:
        """Whether any of its jobs may ever interrupt another."""
        quota = self.quota or max((one.quota for one in self.flavors), default=0)
        reclaims = quota > 0 and self.reclaim_within_cohort != "never"
        return reclaims or self.borrow_within_cohort or self.within_queue != "never"


class CohortShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a group of queues may have."""

    parent: str = ""
    """The cohort that it is a part of; empty: it is a root, and lends to nobody."""
    weight: float = 1.0
    """Its part of what its parent lends, where `fair_sharing` is on."""
    quota: int = 0
    """GPUs that belong to the cohort and none of its queues."""
    borrowing_limit: int | None = None
    lending_limit: int | None = None
    cores: ResourceQuota | None = None
    memory_gibibytes: ResourceQuota | None = msgspec.field(default=None, name="memory_gib")
    flavors: tuple[FlavorQuota, ...] = ()
    """Instead of `quota` and its limits."""

    def of_flavor(self, name: str) -> CohortShare:
        """What it may have of one flavor."""
        own = next((one for one in self.flavors if one.name == name), FlavorQuota(name=name))
        return msgspec.structs.replace(
            self, quota=own.quota, borrowing_limit=own.borrowing_limit,
            lending_limit=own.lending_limit, cores=own.cores, memory_gibibytes=own.memory_gibibytes,
        )  # fmt: skip


def check_shares(
    queues: Mapping[str, QueueShare],
    cohorts: Mapping[str, CohortShare],
    where: str,
    *,
    fair_sharing: bool = False,
) -> None:
    """Refuse shares that make no sense.

    Args:
        queues: The queues by name.
        cohorts: The cohorts by name.
        where: What they were read from.
        fair_sharing: Whether a weight may be 0: whoever has that gives up first what it borrows.

    Raises:
        InputError: Which key, and what it may be.
    """
    for name, share in queues.items():
        _check_amounts(share, f"{where}: queues.{name}", fair_sharing=fair_sharing)
        _check_limits(share, f"{where}: queues.{name}")
        if share.parent and share.parent not in queues:
            raise InputError(f"{where}: queues.{name}: no queue {share.parent!r} to be its parent")
    for name, cohort in cohorts.items():
        _check_amounts(cohort, f"{where}: cohorts.{name}", fair_sharing=fair_sharing)
        _check_limits(cohort, f"{where}: cohorts.{name}")
        if cohort.parent and cohort.parent not in cohorts:
            raise InputError(f"{where}: cohorts.{name}: no cohort {cohort.parent!r} above it")
    _check_circles({name: one.parent for name, one in queues.items()}, f"{where}: queues")
    _check_circles({name: one.parent for name, one in cohorts.items()}, f"{where}: cohorts")


def _check_amounts(share: QueueShare | CohortShare, where: str, *, fair_sharing: bool) -> None:
    weighs = 0.0 < share.weight < float("inf") or (fair_sharing and share.weight == 0.0)
    if not weighs or share.quota < 0:
        raise InputError(
            f"{where}: weight is above 0 (0 only with fair_sharing) and quota 0 or more"
        )


def _check_limits(share: QueueShare | CohortShare, where: str) -> None:
    if (share.borrowing_limit or 0) < 0 or (share.lending_limit or 0) < 0:
        raise InputError(f"{where}: borrowing_limit and lending_limit are 0 or more")
    for one in (share, *share.flavors):
        for resource, key in RESOURCES.items():
            found: ResourceQuota | None = getattr(one, resource)
            amounts = (found.quota, found.borrowing_limit, found.lending_limit) if found else ()
            if not all(0.0 <= (amount or 0.0) < float("inf") for amount in amounts):
                raise InputError(f"{where}: {key}: quota and limits are 0 or more")


def check_flavors(
    queues: Mapping[str, QueueShare],
    cohorts: Mapping[str, CohortShare],
    flavors: Collection[str],
    where: str,
) -> None:
    """Refuse quotas of flavors that nobody knows, or beside quotas of all GPUs.

    Raises:
        InputError: Which key, and what it may be.
    """
    both: list[tuple[str, QueueShare | CohortShare]] = [
        *((f"{where}: queues.{name}", one) for name, one in queues.items()),
        *((f"{where}: cohorts.{name}", one) for name, one in cohorts.items()),
    ]
    for at, share in both:
        named = [one.name for one in share.flavors]
        for one in share.flavors:
            if one.name not in flavors or named.count(one.name) > 1:
                raise InputError(f"{at}: flavor {one.name!r} is to be one of [flavors], once")
            if min(one.quota, one.borrowing_limit or 0, one.lending_limit or 0) < 0:
                raise InputError(f"{at}: flavor {one.name}: quota and limits are 0 or more")
        limited = share.borrowing_limit is not None or share.lending_limit is not None
        if share.flavors and (share.quota or limited):
            raise InputError(f"{at}: quota and limits belong to its flavors, where it has any")
        if share.quota and flavors:
            raise InputError(f"{at}: of which flavor is its quota? give flavors = [...]")


def _check_circles(parents: Mapping[str, str], where: str) -> None:
    for name in parents:
        above, seen = parents[name], {name}
        while above:
            if above in seen:
                raise InputError(f"{where}.{name} is its own ancestor; a tree has a root")
            seen.add(above)
            above = parents.get(above, "")
