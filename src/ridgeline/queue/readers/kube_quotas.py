"""The quotas of GPUs that Kueue's ClusterQueues and Cohorts set, with the LocalQueues to them.

Flavors count each by itself where the ResourceFlavors are given and have labels by which their
nodes are told apart; else those of one queue count together.

A ResourceQuota refuses pods instead of letting them wait: what nobody sees wait is known by the
templates of workloads that have no pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ridgeline.queue.doctor.state import GpuQuota, NamespaceQuota
from ridgeline.queue.readers.kube_constraints import constraints_of
from ridgeline.queue.readers.kube_pods import amount, is_gpu, name_of, whole
from ridgeline.queue.readers.kube_sections import mappings_in, section
from ridgeline.queue.shares import CohortShare, FlavorQuota, check_shares


def quotas_of(objects: Sequence[dict[str, Any]], where: str) -> tuple[GpuQuota, ...]:
    """All quotas of whole GPUs.

    Raises:
        InputError: A quota is no amount.
    """
    local: dict[str, list[str]] = defaultdict(list)
    for one in objects:
        if one["kind"] == "LocalQueue":
            local[str(section(one, "spec").get("clusterQueue") or "")].append(name_of(one))
    flavors = _told_apart(objects)
    found = []
    for one in objects:
        at = f"{where}: {one['kind']} {name_of(one)}"
        if one["kind"] == "ClusterQueue":
            found += list(_of_queue(one, tuple(sorted(local[name_of(one)])), flavors, at))
    return tuple(found)


def cohorts_of(objects: Sequence[dict[str, Any]], where: str) -> dict[str, CohortShare]:
    """What Cohort objects say that they have, by name, and what is above them.

    Raises:
        InputError: A quota is no amount, or a cohort is above itself.
    """
    found: dict[str, CohortShare] = {}
    for one in objects:
        if one["kind"] == "Cohort":
            spec, at = section(one, "spec"), f"{where}: Cohort {name_of(one)}"
            limits = _limits(spec, at)
            found[name_of(one)] = CohortShare(
                parent=cohort_named(spec, parent=True),
                quota=limits.nominal,
                borrowing_limit=limits.borrowing,
                lending_limit=limits.lending,
                flavors=tuple(
                    FlavorQuota(
                        name=name,
                        quota=(limits := _limits(spec, at, name)).nominal,
                        borrowing_limit=limits.borrowing,
                        lending_limit=limits.lending,
                    )
                    for name in _flavors_in(spec)
                ),
            )
    above = {one.parent for one in found.values()} - {""}
    found |= {name: CohortShare() for name in sorted(above - set(found))}
    check_shares({}, found, where)
    return found


def local_queues_of(objects: Sequence[dict[str, Any]]) -> frozenset[str]:
    """The queues that pods may name, by their names after their namespaces."""
    return frozenset(name_of(one) for one in objects if one["kind"] == "LocalQueue")


def stopped_queues_of(objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The LocalQueues that somebody stopped themselves, and by what."""
    return {name_of(one): stop for one in objects
            if one["kind"] == "LocalQueue" and (stop := _stop(section(one, "spec")))}  # fmt: skip


def namespace_quotas_of(
    objects: Sequence[dict[str, Any]], where: str
) -> tuple[NamespaceQuota, ...]:
    """The ResourceQuotas, a record for each resource that they count.

    Raises:
        InputError: A quota is no amount.
    """
    found = []
    for one in objects:
        if one["kind"] != "ResourceQuota":
            continue
        at = f"{where}: ResourceQuota {name_of(one)}"
        hard, used = section(one, "status", "hard"), section(one, "status", "used")
        if section(one, "spec").get("scopes") or section(one, "spec").get("scopeSelector"):
            continue  # of some pods alone
        for resource in hard:
            found.append(NamespaceQuota(
                name=name_of(one), resource=resource,
                hard=amount(hard[resource], resource, at),
                used=amount(used.get(resource), resource, at),
                gpus=is_gpu(resource.removeprefix("requests.").removeprefix("limits.")),
            ))  # fmt: skip
    return tuple(found)


def _stop(spec: dict[str, Any]) -> str:
    """By what a queue is stopped; empty: it is not."""
    found = str(spec.get("stopPolicy") or "None")
    return "" if found == "None" else found


def _inactive(one: dict[str, Any]) -> str:
    """Why a ClusterQueue says that it admits nobody; empty: it says no such thing."""
    for told in mappings_in(section(one, "status").get("conditions")):
        if told.get("type") == "Active" and told.get("status") == "False":
            return str(told.get("message") or told.get("reason") or "it is not active").rstrip(".")
    return ""


def _of_queue(
    one: dict[str, Any], queues: tuple[str, ...], flavors: Mapping[str, dict[str, Any]], where: str
) -> Iterator[GpuQuota]:
    spec = section(one, "spec")
    for flavor in _flavors_in(spec) if flavors else [""]:
        limits = _limits(spec, where, flavor)
        about = section(flavors.get(flavor, {}), "spec")
        if limits.flavors:
            yield GpuQuota(
                name=f"ClusterQueue {name_of(one)}", queues=queues, gpus=limits.nominal,
                cohort=cohort_named(spec), borrowing_limit=limits.borrowing,
                lending_limit=limits.lending, flavor=flavor, stopped=_stop(spec),
                inactive=_inactive(one),
                reclaims=_preemption(spec, "reclaimWithinCohort"),
                preempts=_preemption(spec, "withinClusterQueue"),
                weight=_weight(spec, where),
                strict=spec.get("queueingStrategy") == "StrictFIFO",
                labels={str(k): str(v) for k, v in section(about, "nodeLabels").items()},
                tolerated=constraints_of(about, "").tolerated,
            )  # fmt: skip


def _preemption(spec: dict[str, Any], policy: str) -> bool:
    """Whether a queue evicts others at all by one of its policies; by default it does not."""
    return str(section(spec, "preemption").get(policy) or "Never") != "Never"


def _weight(spec: dict[str, Any], where: str) -> float:
    told = section(spec, "fairSharing").get("weight")
    return 1.0 if told is None else amount(told, "fairSharing.weight", where)


def _told_apart(objects: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """All flavors with quotas, where nodes tell which is which; empty: they do not."""
    named = dict.fromkeys(
        name for one in objects if one["kind"] in ("ClusterQueue", "Cohort")
        for name in _flavors_in(section(one, "spec"))
    )  # fmt: skip
    about = {name_of(one): one for one in objects if one["kind"] == "ResourceFlavor"}
    labels = [section(about.get(name, {}), "spec", "nodeLabels") for name in named]
    distinct = {tuple(sorted((key, str(value)) for key, value in one.items())) for one in labels}
    if len(named) < 2 or not all(labels) or len(distinct) < len(named):
        return {}
    return {name: about[name] for name in named}


def _flavors_in(spec: dict[str, Any]) -> list[str]:
    """The flavors of GPUs, in their order."""
    return list(
        dict.fromkeys(
            str(flavor.get("name"))
            for group in mappings_in(spec.get("resourceGroups"))
            for flavor in mappings_in(group.get("flavors"))
            if any(is_gpu(str(one.get("name"))) for one in mappings_in(flavor.get("resources")))
        )
    )


def cohort_named(spec: dict[str, Any], *, parent: bool = False) -> str:
    """The cohort that a queue, or another cohort, is in, by the newer API or the older."""
    names = ("parentName", "parent") if parent else ("cohortName", "cohort")
    return next((str(spec[one]) for one in names if spec.get(one)), "")


class _Limits(NamedTuple):
    """GPUs of flavors together; a limit that one flavor lacks, all together have none of."""

    flavors: int
    nominal: int
    borrowing: int | None
    lending: int | None


def _limits(spec: dict[str, Any], where: str, only: str = "") -> _Limits:
    """What is set for one flavor, or for all of them."""
    counted = [
        resource
        for group in mappings_in(spec.get("resourceGroups"))
        for flavor in mappings_in(group.get("flavors"))
        if only in ("", str(flavor.get("name")))
        for resource in mappings_in(flavor.get("resources"))
        if is_gpu(str(resource.get("name")))
    ]

    def together(key: str) -> int | None:
        if any(one.get(key) is None for one in counted):
            return None
        return sum(whole(one[key], key, where) for one in counted)

    nominal = sum(whole(one.get("nominalQuota"), "nominalQuota", where) for one in counted)
    if not counted:
        return _Limits(0, 0, None, None)
    return _Limits(len(counted), nominal, together("borrowingLimit"), together("lendingLimit"))
