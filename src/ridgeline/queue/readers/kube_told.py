"""Why Kubernetes itself says that pods do not start: by events, admission checks, and groups.

What events say is matched by the patterns in `kube_events.toml`; nodes that an autoscaler wants and
does not get are Karpenter's NodeClaims and ProvisioningRequests. Source: Karpenter documentation,
"NodeClaims" (conditions Launched, Registered, Initialized).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.state import (
    ADMISSION_CHECK,
    GATE,
    SCHEDULER,
    LivePod,
    ToldOf,
    ToldReason,
)
from ridgeline.queue.readers.kube_events import (
    events_in,
    matched,
    named_in,
    said_of_groups,
    said_of_pods,
)
from ridgeline.queue.readers.kube_pods import is_gpu, name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section
from ridgeline.queue.readers.kube_templates import OF_KUEUE

TO_COME = " pod "
"""What stands in the names of pods that are not there yet, behind their workload's."""
_LONGEST = 160
OFTEN = 3
"""Fewer evictions of a workload may be of one moment."""
_EXCEEDED = re.compile(r"exceeded quota: ([\w.-]+), ([^\n]+)")
_HASH = re.compile(r"-[a-z0-9]{4,10}$")


def refused_workloads(objects: Sequence[dict[str, Any]]) -> dict[tuple[str, str], ToldReason]:
    """Workloads of which a controller could make no pods, by kind and name, and why."""
    found = {}
    given = {(one["kind"], name_of(one)) for one in objects}
    counted = _counted_quotas(objects)
    for about, reason, message in events_in(objects):
        if reason == "FailedCreate":
            kind, name = str(about.get("kind")), named_in(about)
            told = matched("refused", reason, message, workload=f"{kind} {name}")
            told = told or _by_quota(message, f"{kind} {name}", counted)
            told = told or _refused_otherwise(message, f"{kind} {name}")
            if told is not None:
                found[kind, name] = told
                if kind == "ReplicaSet" and (kind, name) not in given:
                    found["Deployment", _HASH.sub("", name)] = told
    return found


def _refused_otherwise(message: str, workload: str) -> ToldReason | None:
    """A refusal in words that no pattern has."""
    _, _, why = message.partition("is forbidden: ")
    if not why or "exceeded quota" in why:
        return None
    return ToldReason(way="refused", said=f"the pods of {workload} are refused: {why[:_LONGEST]}")


def _by_quota(message: str, workload: str, counted: set[str]) -> ToldReason | None:
    """A refusal by a ResourceQuota, but for those of which workloads without pods are counted."""
    namespace, _, _ = workload.partition(" ")[2].partition("/")
    match = _EXCEEDED.search(message)
    if match is None or (workload not in counted and f"{namespace}/{match[1]}" in counted):
        return None
    why = f"ResourceQuota {namespace}/{match[1]} refuses pods of {workload}: {match[2][:_LONGEST]}"
    return ToldReason(way="over-quota", said=why)


def _counted_quotas(objects: Sequence[dict[str, Any]]) -> set[str]:
    """The quotas of all pods of a namespace, and the workloads that have pods by now."""
    found = {
        name_of(one)
        for one in objects
        if one["kind"] == "ResourceQuota"
        and not {"scopes", "scopeSelector"} & section(one, "spec").keys()
    }
    for one in objects:
        if one["kind"] == "Pod":
            about = section(one, "metadata")
            for owner in mappings_in(about.get("ownerReferences")):
                found.add(f"{owner.get('kind')} {about.get('namespace')}/{owner.get('name')}")
    return found


def given_up(workload: dict[str, Any]) -> str:
    """Why Kueue has given a Workload up by itself, which then waits for nothing; empty: it has not.

    It does so after as many evictions as its configuration allows; what a user set inactive is
    meant to be.
    """
    if section(workload, "spec").get("active") is not False:
        return ""
    for one in mappings_in(section(workload, "status").get("conditions")):
        if one.get("type") == "Evicted" and str(one.get("reason")).startswith("DeactivatedDueTo"):
            return str(one.get("message") or one.get("reason")).strip().rstrip(".")
    return ""


def unready_checks(workload: dict[str, Any]) -> list[dict[str, Any]]:
    """The admission checks of a Workload of Kueue's that has its quota and still waits for them."""
    status = section(workload, "status")
    admitted = any(
        one.get("type") in ("Admitted", "Finished") and one.get("status") == "True"
        for one in mappings_in(status.get("conditions"))
    )
    if admitted or not section(status, "admission"):
        return []
    checks = mappings_in(status.get("admissionChecks"))
    return [one for one in checks if one.get("state") in ("Pending", "Retry", "Rejected")]


def told_by_cluster(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> list[LivePod]:
    """The pods, each with the reason for which it cannot start, or no node is added, if told."""
    owners = {name: told for (_, name), told in refused_workloads(objects).items()}
    owners |= dict(_unadmitted(objects))
    groups = said_of_groups(objects) | _too_few(pods, objects)
    said = said_of_pods(objects) | _behind_gates(objects)
    not_added = unlaunched(objects) | _of_pods("not_added", objects)
    stalled = _of_pods("stalled", objects)
    found = []
    for pod in pods:
        if pod.node or pod.done:
            by = stalled.get(pod.name) if pod.stalled else None
            found.append(replace(pod, stalled_by=by) if by else pod)
            continue
        owner, to_come, _ = pod.name.partition(TO_COME)
        told = owners.get(owner) if to_come else None
        if told is None and not pod.says("limit"):  # a limit that was counted says more
            told = groups.get(pod.group) or said.get(pod.name)
        found.append(
            replace(
                pod, told=told, gated=pod.gated or bool(told and told.way != SCHEDULER),
                told_of=_told_of(pod, not_added),
            )
        )  # fmt: skip
    return found


def _told_of(pod: LivePod, told: Mapping[str, ToldReason]) -> Mapping[ToldOf, str]:
    """With why no node is added for a pod; what is told of no pod in particular is of all."""
    of_it = told.get(pod.name) or told.get(ANY_POD)
    return {**pod.told_of, "autoscaler": of_it.said} if of_it else pod.told_of


def _of_pods(kind: str, objects: Sequence[dict[str, Any]]) -> dict[str, ToldReason]:
    """What events of a kind say of pods, by the pod's name."""
    return {
        named_in(about): told
        for about, reason, message in events_in(objects)
        if about.get("kind") == "Pod" and (told := matched(kind, reason, message)) is not None
    }


def _unadmitted(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ToldReason]]:
    """Why Kueue does not admit Workloads, but for used-up quotas and queues that say why."""
    inactive = {f"ClusterQueue {name_of(one)} is inactive" for one in objects if _tells_why(one)}
    for one in objects:
        if one["kind"] == "Workload" and str(one.get("apiVersion")).startswith(OF_KUEUE):
            for condition in mappings_in(section(one, "status").get("conditions")):
                unmet = (
                    condition.get("type") == "QuotaReserved" and condition.get("status") != "True"
                )
                said = str(condition.get("message") or "") if unmet else ""
                said = "" if said in inactive else said
                told = matched("unadmitted", "", said) if said else None
                if told is None and said and condition.get("reason") == "Inadmissible":
                    told = ToldReason(way="kueue", said=f"Kueue says: {said.strip()}")
                if told is not None:
                    yield name_of(one), told
            if again := _evicted_again(one):
                yield name_of(one), again
            if why := given_up(one):
                yield (
                    name_of(one),
                    ToldReason(way="given-up", said=f"Kueue gave a workload up: {why}"),
                )
            for check in unready_checks(one)[:1]:
                why = str(check.get("message") or "").strip().rstrip(".")
                said = f"the admission check {check.get('name')} is {check.get('state')}"
                yield (
                    name_of(one),
                    ToldReason(way=ADMISSION_CHECK, said=f"{said}: {why}" if why else said),
                )


def _tells_why(one: dict[str, Any]) -> bool:
    """Whether it is a ClusterQueue that says itself why it admits nobody."""
    return one["kind"] == "ClusterQueue" and any(
        told.get("type") == "Active" and told.get("status") == "False" and told.get("message")
        for told in mappings_in(section(one, "status").get("conditions"))
    )


def _evicted_again(workload: dict[str, Any]) -> ToldReason | None:
    """Why Kueue has evicted a Workload several times, and lets it in only later."""
    status = section(workload, "status")
    times = section(status, "requeueState").get("count")
    if not isinstance(times, int) or times < OFTEN:
        return None
    for one in mappings_in(status.get("conditions")):
        if one.get("type") == "Evicted" and one.get("status") == "True":
            why = str(one.get("message") or "").strip().rstrip(".")
            said = f"Kueue evicted a workload {times} times ({one.get('reason')}): {why}"
            return ToldReason(way="evicted-again", said=said)
    return None


def _behind_gates(objects: Sequence[dict[str, Any]]) -> dict[str, ToldReason]:
    """The pods that wait behind scheduling gates, but for those of Kueue, which are its quotas."""
    found = {}
    for one in objects:
        if one["kind"] == "Pod":
            gates = [str(gate.get("name")) for gate in
                     mappings_in(section(one, "spec").get("schedulingGates"))]  # fmt: skip
            foreign = [gate for gate in gates if not gate.startswith(OF_KUEUE)]
            if foreign:
                said = f"the scheduling gate {foreign[0]} was not taken away"
                found[name_of(one)] = ToldReason(way=GATE, said=said)
    return found


def _too_few(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> dict[str, ToldReason]:
    """The groups that have fewer pods than they start with."""
    members = Counter(pod.group for pod in pods if pod.group)
    least = {
        name_of(one): section(one, "spec").get("minMember")
        for one in objects
        if one["kind"] == "PodGroup"
    }
    return {
        name: ToldReason(
            way="too-few-members",
            said=f"PodGroup {name} starts {number} pods together (minMember) and has"
            f" {members[name]}",
        )
        for name, number in least.items()
        if isinstance(number, int) and 0 < members[name] < number
    }


ANY_POD = ""
"""Stands for a pod's name where a node is for no pod in particular."""
_STEPS = ("Launched", "Registered", "Initialized", "Provisioned")
_LONGEST_STEP = 160


def unlaunched(objects: Sequence[dict[str, Any]]) -> dict[str, ToldReason]:
    """Why nodes with GPUs that were asked for do not come."""
    for one in objects:
        if one["kind"] not in ("NodeClaim", "ProvisioningRequest") or not _has_gpus(one):
            continue
        for told in mappings_in(section(one, "status").get("conditions")):
            failed = str(told.get("type")) in _STEPS and told.get("status") != "True"
            failed = failed or (told.get("type") == "Failed" and told.get("status") == "True")
            message = str(told.get("message") or "").strip()
            if failed and message and _is_failure(told):
                said = f"{one['kind']} {name_of(one)}: {message[:_LONGEST_STEP]}"
                return {ANY_POD: ToldReason(way="not_added", said=said)}
    return {}


def _is_failure(told: dict[str, Any]) -> bool:
    """Whether a step failed; one that is under way says that it is unknown yet."""
    text = f"{told.get('reason')} {told.get('message')}"
    return any(word in text for word in ("Fail", "fail", "nsufficient", "error", "xceed"))


def _has_gpus(one: dict[str, Any]) -> bool:
    if one["kind"] == "ProvisioningRequest":
        return True
    return any(is_gpu(name) for name in section(one, "spec", "resources", "requests"))
