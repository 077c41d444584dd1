"""Kueue's ClusterQueues, Cohorts, ResourceFlavors and LocalQueues, as shares of a cluster's GPUs.

    kubectl get nodes,clusterqueues,cohorts,resourceflavors,localqueues -A -o json > cluster.json

Quotas of cores and memory are those of each flavor of GPUs or, where they stand in a group of their
own, of all GPUs, its flavors together. What would change who runs and is not modelled, or not in
these objects, is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.cluster import Flavor
from ridgeline.queue.doctor.state import LiveNode
from ridgeline.queue.readers.kube_pods import is_gpu, milli, name_of, whole
from ridgeline.queue.readers.kube_quotas import cohort_named
from ridgeline.queue.readers.kube_sections import mappings_in, section
from ridgeline.queue.shares import CohortShare, QueueShare

Share = TypeVar("Share", QueueShare, CohortShare)
_WORDS = {
    "Never": "never", "Any": "any", "LowerPriority": "lower-priority",
    "LowerOrNewerEqualPriority": "lower-or-newer-equal-priority",
    "StrictFIFO": "strict-fifo", "BestEffortFIFO": "best-effort-fifo",
    "Borrow": "may-stop-search", "Preempt": "may-stop-search",
    "MayStopSearch": "may-stop-search", "TryNextFlavor": "try-next-flavor",
}  # fmt: skip
"""Kueue's words and ours; `Borrow` and `Preempt` are what `MayStopSearch` was called."""


@dataclass(frozen=True, slots=True)
class KueueShares:
    """What queues may have of a cluster."""

    queues: dict[str, QueueShare]
    cohorts: dict[str, CohortShare]
    flavors: dict[str, Flavor]
    local_queues: dict[str, str]
    """The ClusterQueue of each LocalQueue."""
    fair_sharing: bool


def shares_of(
    objects: Sequence[dict[str, Any]], nodes: Sequence[LiveNode], where: str
) -> KueueShares:
    """All that Kueue's objects say of GPUs.

    Raises:
        InputError: Something is not modelled, or not to be known from them; which.
    """
    of_kind: dict[str, list[dict[str, Any]]] = {}
    for one in objects:
        of_kind.setdefault(one["kind"], []).append(one)
    queues = {
        name_of(one): _queue(one, f"{where}: ClusterQueue {name_of(one)}")
        for one in of_kind.get("ClusterQueue", [])
    }
    cohorts = {
        name_of(one): _cohort(one, f"{where}: Cohort {name_of(one)}")
        for one in of_kind.get("Cohort", [])
    }
    above = {one.parent for one in cohorts.values()} - {""}
    cohorts |= {name: CohortShare() for name in sorted(above - set(cohorts))}
    quotas: list[QueueShare | CohortShare] = [*queues.values(), *cohorts.values()]
    named = dict.fromkeys(one.name for share in quotas for one in share.flavors)
    about = {name_of(one): one for one in of_kind.get("ResourceFlavor", [])}
    flavors = {}
    if len(named) > 1:
        flavors = {name: _flavor(name, about, nodes, where) for name in named}
    else:  # one flavor is all GPUs
        for name in named:
            _check_taints(name, about.get(name, {}), where)
        queues = {name: _merged(one) for name, one in queues.items()}
        cohorts = {name: _merged(one) for name, one in cohorts.items()}
    return KueueShares(
        queues=queues,
        cohorts=cohorts,
        flavors=flavors,
        local_queues=_local_queues(of_kind.get("LocalQueue", []), where),
        fair_sharing=_is_fair(of_kind.get("Configuration", []), queues, cohorts, where),
    )


def _queue(one: dict[str, Any], where: str) -> QueueShare:
    spec = section(one, "spec")
    preemption, fungible = section(spec, "preemption"), section(spec, "flavorFungibility")
    borrowing = section(preemption, "borrowWithinCohort")
    if borrowing.get("maxPriorityThreshold") is not None:
        raise InputError(f"{where}: borrowWithinCohort.maxPriorityThreshold is not modelled")
    if fungible.get("preference") is not None:
        raise InputError(f"{where}: flavorFungibility.preference is not modelled")
    if str(spec.get("stopPolicy") or "None") != "None":
        raise InputError(
            f"{where}: stopPolicy {spec['stopPolicy']}: it admits nobody; leave it out"
        )
    for key in ("admissionChecks", "admissionChecksStrategy", "admissionScope"):
        if spec.get(key):
            raise InputError(f"{where}: {key}: what it lets wait cannot be known from here")
    found = {
        "weight": _weight(spec, where),
        # A queue in no cohort borrows of nobody, whereas ours that name none are together in one.
        "cohort": cohort_named(spec) or f"of {name_of(one)} alone",
        "reclaim_within_cohort": _word(preemption, "reclaimWithinCohort", "Never", where),
        "within_queue": _word(preemption, "withinClusterQueue", "Never", where),
        "borrow_within_cohort": _word(borrowing, "policy", "Never", where) != "never",
        "strategy": _word(spec, "queueingStrategy", "BestEffortFIFO", where),
        "when_can_borrow": _word(fungible, "whenCanBorrow", "MayStopSearch", where),
        "when_can_preempt": _word(fungible, "whenCanPreempt", "TryNextFlavor", where),
        "flavors": _quotas(spec, where),
        **_apart(spec, where),
    }
    return _converted(found, QueueShare, where)


def _cohort(one: dict[str, Any], where: str) -> CohortShare:
    spec = section(one, "spec")
    found = {
        "parent": cohort_named(spec, parent=True),
        "weight": _weight(spec, where),
        "flavors": _quotas(spec, where),
        **_apart(spec, where),
    }
    return _converted(found, CohortShare, where)


def _converted(found: dict[str, Any], kind: type[Share], where: str) -> Share:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from None


def _quotas(spec: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The quotas of GPUs, by flavor in their order."""
    found: dict[str, dict[str, Any]] = {}
    for group in mappings_in(spec.get("resourceGroups")):
        for flavor in mappings_in(group.get("flavors")):
            for resource in mappings_in(flavor.get("resources")):
                if "/mig-" in str(resource.get("name")):
                    raise InputError(f"{where}: {resource['name']}: quotas count whole GPUs")
                if not is_gpu(str(resource.get("name"))):
                    continue
                name = str(flavor.get("name"))
                if name in found:
                    raise InputError(f"{where}: flavor {name} has quotas of two kinds of GPUs")
                found[name] = {
                    **_beside([flavor], where),
                    "name": name,
                    "quota": whole(resource.get("nominalQuota"), "nominalQuota", where),
                    "borrowing_limit": _limit(resource, "borrowingLimit", where),
                    "lending_limit": _limit(resource, "lendingLimit", where),
                }
    return list(found.values())


def _apart(spec: dict[str, Any], where: str) -> dict[str, Any]:
    """Quotas of cores and memory that stand in groups without GPUs, by their keys."""
    groups = [
        mappings_in(group.get("flavors"))
        for group in mappings_in(spec.get("resourceGroups"))
        if not any(is_gpu(str(name)) for name in _resources(mappings_in(group.get("flavors"))))
    ]
    return _beside([flavor for flavors in groups for flavor in flavors], where)


def _beside(flavors: Sequence[dict[str, Any]], where: str) -> dict[str, Any]:
    """The quotas of cores and memory of flavors together, by our keys."""
    found: dict[str, Any] = {}
    for name, key, parts in (("cpu", "cores", 1000.0), ("memory", "memory_gib", 1000.0 * 2**30)):
        quotas = [one[name] for flavor in flavors if name in (one := _resources([flavor]))]

        def together(
            limit: str, quotas: Sequence[dict[str, Any]] = quotas, parts: float = parts
        ) -> float | None:
            if any(one.get(limit) is None for one in quotas):
                return None
            return sum(milli(one[limit], limit, where) for one in quotas) / parts

        if quotas:
            found[key] = {"quota": together("nominalQuota") or 0.0,
                          "borrowing_limit": together("borrowingLimit"),
                          "lending_limit": together("lendingLimit")}  # fmt: skip
    return found


def _resources(flavors: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The quotas of flavors by the names of their resources."""
    return {str(one.get("name")): one for flavor in flavors
            for one in mappings_in(flavor.get("resources"))}  # fmt: skip


def _limit(resource: dict[str, Any], key: str, where: str) -> int | None:
    return None if resource.get(key) is None else whole(resource[key], key, where)


def _merged(share: Share) -> Share:
    """A share whose only flavor is all GPUs."""
    for one in share.flavors:
        return msgspec.structs.replace(
            share, flavors=(), quota=one.quota, borrowing_limit=one.borrowing_limit,
            lending_limit=one.lending_limit, cores=one.cores or share.cores,
            memory_gibibytes=one.memory_gibibytes or share.memory_gibibytes,
        )  # fmt: skip
    if isinstance(share, QueueShare):  # it may not borrow what it has no flavor of
        return msgspec.structs.replace(share, borrowing_limit=0)
    return share


def _flavor(
    name: str, about: Mapping[str, dict[str, Any]], nodes: Sequence[LiveNode], where: str
) -> Flavor:
    """The kind of GPU that a flavor stands for."""
    if name not in about:
        raise InputError(
            f"{where}: ResourceFlavor {name} is not there, so that its nodes are not known; add"
            " kubectl get resourceflavors -o json"
        )
    _check_taints(name, about[name], where)
    labels = section(about[name], "spec", "nodeLabels")
    with_gpus = [node for node in nodes if node.num_gpus]
    here = [node for node in with_gpus if all(node.labels.get(k) == v for k, v in labels.items())]
    kinds = {node.model for node in here}
    alike = [node for node in with_gpus if node.model in kinds]
    if len(kinds) != 1 or "" in kinds or len(alike) != len(here):
        raise InputError(
            f"{where}: ResourceFlavor {name}: its nodeLabels choose {len(here)} nodes with GPUs,"
            " which are not all nodes of one kind of GPU; other flavors are not modelled"
        )
    return Flavor(gpu_type=kinds.pop())


def _check_taints(name: str, flavor: dict[str, Any], where: str) -> None:
    spec = section(flavor, "spec")
    if spec.get("nodeTaints") and not spec.get("tolerations"):
        raise InputError(
            f"{where}: ResourceFlavor {name}: nodeTaints: which jobs tolerate them is not known;"
            " leave the taints out where all do, or the flavor where none does"
        )


def _word(found: dict[str, Any], key: str, default: str, where: str) -> str:
    word = str(found.get(key) or default)
    if word not in _WORDS:
        raise InputError(f"{where}: {key} {word!r} is not known")
    return _WORDS[word]


def _weight(spec: dict[str, Any], where: str) -> float:
    weight = section(spec, "fairSharing").get("weight")
    return 1.0 if weight is None else milli(weight, "fairSharing.weight", where) / 1000


def _local_queues(objects: Sequence[dict[str, Any]], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in objects:
        name = name_of(one).rpartition("/")[2]
        queue = str(section(one, "spec").get("clusterQueue") or "")
        if found.setdefault(name, queue) != queue:
            raise InputError(
                f"{where}: LocalQueue {name} is of {found[name]} in one namespace and of {queue} in"
                " another; jobs tell its name alone"
            )
    return found


def _is_fair(
    configurations: Sequence[dict[str, Any]],
    queues: Mapping[str, QueueShare],
    cohorts: Mapping[str, CohortShare],
    where: str,
) -> bool:
    """Whether shares are fair, which Kueue's own Configuration alone tells."""
    for one in configurations:
        fair = section(one, "fairSharing")
        strategies = fair.get("preemptionStrategies") or []
        if list(strategies) not in ([], ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]):
            raise InputError(f"{where}: fairSharing.preemptionStrategies: only both are modelled")
        return bool(fair) and fair.get("enable") is not False
    both: list[tuple[str, QueueShare | CohortShare]] = [*queues.items(), *cohorts.items()]
    weighing = [name for name, one in both if one.weight != 1.0]
    if weighing:
        raise InputError(
            f"{where}: {weighing[0]} has a fairSharing.weight, and whether fair sharing is on tells"
            " Kueue's Configuration alone; add it to the list, with metadata: {}"
        )
    return False
