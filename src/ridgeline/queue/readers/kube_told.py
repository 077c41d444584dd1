"""Why Kubernetes itself says that pods do not start: by events, admission checks, and groups.

What events say is matched by the patterns in `kube_events.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from ridgeline.queue.doctor.state import ADMISSION_CHECK, LivePod, ToldReason
from ridgeline.queue.readers.kube_pods import mappings_in, name_of, section
from ridgeline.queue.readers.kube_templates import OF_KUEUE

TO_COME = " pod "
"""What stands in the names of pods that are not there yet, behind their workload's."""
_HASH = re.compile(r"-[a-z0-9]{4,10}$")


def refused_workloads(objects: Sequence[dict[str, Any]]) -> dict[tuple[str, str], ToldReason]:
    """Workloads of which a controller could make no pods, by kind and name, and why."""
    found = {}
    given = {(one["kind"], name_of(one)) for one in objects}
    for about, reason, message in _events(objects):
        if reason == "FailedCreate":
            kind, name = str(about.get("kind")), _of(about)
            told = _matched("refused", reason, message, workload=f"{kind} {name}")
            if told is not None:
                found[kind, name] = told
                if kind == "ReplicaSet" and (kind, name) not in given:
                    found["Deployment", _HASH.sub("", name)] = told
    return found


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
    groups = _too_few(pods, objects)
    not_added, stalled = _of_pods("not_added", objects), _of_pods("stalled", objects)
    found = []
    for pod in pods:
        if pod.node or pod.done:
            by = stalled.get(pod.name, "") if pod.stalled else ""
            found.append(replace(pod, stalled_by=by) if by else pod)
            continue
        owner, to_come, _ = pod.name.partition(TO_COME)
        told = owners.get(owner) if to_come else groups.get(pod.group)
        found.append(
            replace(
                pod, told=told, gated=pod.gated or told is not None,
                not_added=not_added.get(pod.name, ""),
            )
        )  # fmt: skip
    return found


def _of_pods(kind: str, objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What events of a kind say of pods, by the pod's name."""
    return {
        _of(about): told.said
        for about, reason, message in _events(objects)
        if about.get("kind") == "Pod" and (told := _matched(kind, reason, message)) is not None
    }


def _unadmitted(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ToldReason]]:
    """Why Kueue does not admit Workloads, beside quotas that are used up."""
    for one in objects:
        if one["kind"] == "Workload" and str(one.get("apiVersion")).startswith(OF_KUEUE):
            for condition in mappings_in(section(one, "status").get("conditions")):
                unmet = (
                    condition.get("type") == "QuotaReserved" and condition.get("status") != "True"
                )
                said = str(condition.get("message") or "") if unmet else ""
                if said and (told := _matched("unadmitted", "", said)) is not None:
                    yield name_of(one), told
            for check in unready_checks(one)[:1]:
                why = str(check.get("message") or "").strip().rstrip(".")
                said = f"the admission check {check.get('name')} is {check.get('state')}"
                yield (
                    name_of(one),
                    ToldReason(way=ADMISSION_CHECK, said=f"{said}: {why}" if why else said),
                )


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


def _events(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """What each event is about, its reason and its message; in both of its APIs."""
    for one in objects:
        if one["kind"] == "Event":
            about = section(one, "involvedObject") or section(one, "regarding")
            message = one.get("message") or one.get("note")
            yield about, str(one.get("reason")), str(message or "")


def _of(about: dict[str, Any]) -> str:
    namespace = about.get("namespace")
    return f"{namespace}/{about.get('name')}" if namespace else str(about.get("name"))


def _matched(kind: str, reason: str, message: str, **more: str) -> ToldReason | None:
    """The first pattern of a kind that an event fits."""
    for one in _patterns()[kind]:
        match = re.search(one["words"], message)
        if match and one.get("reason", reason) == reason:
            said = one["said"].format(**more, **match.groupdict()).strip(" :")
            return ToldReason(way=one.get("way", kind), said=said)
    return None


@cache
def _patterns() -> dict[str, list[dict[str, str]]]:
    text = (files("ridgeline.queue.readers") / "kube_events.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
