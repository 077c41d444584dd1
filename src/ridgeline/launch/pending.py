"""Why is it pending: one sentence from what an API server or Slurm knows, and the cure.

Pure functions over API objects. What the objects say is made into facts (who says it, and what);
the table `pending.toml` turns facts into sentences. Its rows stand in the order of causes: Kueue
before pods, because a run that is not admitted has none.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

Object = Mapping[str, Any]
Source = Literal["workload", "event", "pod", "container", "gang", "slurm"]


class WaitingReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reason to wait."""

    source: Source = msgspec.field(name="from")
    match: str
    why: str
    cure: str


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of `pending.toml`, row by row."""

    reason: tuple[WaitingReason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """Somebody's word on why it waits, as `REASON: MESSAGE`."""

    source: Source
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why, in one sentence, and what to do."""

    why: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRun:
    """What an API server has of one run."""

    main: Object | None = None
    workloads: Sequence[Object] = ()
    """The Workloads of Kueue, which hold it back."""
    pods: Sequence[Object] = ()
    pod_groups: Sequence[Object] = ()
    events: Sequence[Object] = ()


@functools.cache
def table() -> tuple[WaitingReason, ...]:
    """The rows of `pending.toml`."""
    content = (Path(__file__).parent / "pending.toml").read_bytes()
    return msgspec.toml.decode(content, type=Table).reason


def explain(facts: Sequence[Clue]) -> Waiting | None:
    """The first row of the table that one of the facts matches."""
    for row in table():
        for fact in facts:
            found = re.search(row.match, fact.text) if fact.source == row.source else None
            if found:
                groups = [found.group(0), *((text or "").strip() for text in found.groups())]
                return Waiting(why=_filled(row.why, groups), cure=_filled(row.cure, groups))
    return None


def _filled(sentence: str, groups: Sequence[str]) -> str:
    return re.sub(r"\{(\d)\}", lambda place: groups[int(place.group(1))], sentence).rstrip(": ")


def why_pending(seen: SeenRun) -> Waiting:
    """Why the run waits."""
    found = explain(facts_of(seen))
    if found is not None:
        return found
    if seen.main is not None and _is_suspended(seen.main) and not seen.workloads:
        return Waiting(
            why="it is suspended, and no queue has taken notice of it",
            cure="Kueue is not installed, or does not manage this kind of job or namespace",
        )
    if not seen.pods:
        return Waiting(
            why="it has no pods yet",
            cure="ask again in a moment; if that lasts, its controller is not installed",
        )
    phases = Counter(str(_status(pod).get("phase", "Unknown")) for pod in seen.pods)
    told = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
    return Waiting(why=f"its pods are {told}, without a reason given", cure="ask again in a moment")


def why_slurm_waits(reason: str) -> Waiting:
    """What squeue's reason means. The table's last row takes every reason."""
    found = explain([Clue(source="slurm", text=reason.strip("() "))])
    assert found is not None
    return found


def facts_of(seen: SeenRun) -> list[Clue]:
    """Everything that the objects say about waiting."""
    facts = [fact for workload in seen.workloads for fact in _workload_facts(workload)]
    facts += _gang_facts(seen.pod_groups)
    for pod in seen.pods:
        if _status(pod).get("phase") == "Pending":
            facts += _pod_facts(pod)
    for event in seen.events:
        if event.get("type") == "Warning":
            text = f"{event.get('reason', '')}: {event.get('message', '')}"
            facts.append(Clue(source="event", text=text))
    return facts


def _workload_facts(workload: Object) -> list[Clue]:
    conditions = {one["type"]: one for one in _conditions(workload)}
    if conditions.get("Admitted", {}).get("status") == "True":
        return []
    facts = []
    reserved = conditions.get("QuotaReserved", {})
    if reserved.get("status") == "False" and reserved.get("message"):
        facts.append(Clue(source="workload", text=f"{reserved['reason']}: {reserved['message']}"))
    for check in _status(workload).get("admissionChecks", ()):
        if check.get("state") not in ("Ready", None):
            told = f"{check.get('name')} {check.get('message', '')}".strip()
            facts.append(Clue(source="workload", text=f"AdmissionCheck: {told}"))
    evicted = conditions.get("Evicted", {})
    if evicted.get("status") == "True":
        text = f"{evicted.get('reason', '')}: {evicted.get('message', '')}"
        facts.append(Clue(source="workload", text=text))
    return facts or [Clue(source="workload", text="Waiting")]


def _gang_facts(groups: Sequence[Object]) -> list[Clue]:
    return [
        Clue(source="gang", text=f"{one.get('reason')}: {one.get('message', '')}")
        for group in groups
        for one in _conditions(group)
        if one.get("type") == "PodGroupScheduled" and one.get("status") == "False"
    ]


def _pod_facts(pod: Object) -> list[Clue]:
    facts = [
        Clue(source="pod", text=f"{one.get('reason', '')}: {one.get('message', '')}")
        for one in _conditions(pod)
        if one.get("type") == "PodScheduled" and one.get("status") == "False"
    ]
    for container in _status(pod).get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            text = f"{waiting.get('reason', '')}: {waiting.get('message', '')}"
            facts.append(Clue(source="container", text=text))
    return facts


def _status(thing: Object) -> Mapping[str, Any]:
    return thing.get("status") or {}


def _conditions(thing: Object) -> Sequence[Mapping[str, Any]]:
    return _status(thing).get("conditions") or ()


def _is_suspended(main: Object) -> bool:
    return bool(main.get("spec", {}).get("suspend"))
