"""Events of Kubernetes, and what their messages say by the patterns in `kube_events.toml`.

Schedulers say more of waiting pods than which resource they lack: in a pod's condition
PodScheduled, in the conditions of its PodGroup (Volcano's and KAI's), or in an event of the group.
kube-scheduler lists what keeps a pod off how many nodes; what the rules count by themselves
(resources, taints, labels, volumes, claims, ports) says nothing new here. Source: Kubernetes
documentation, "Scheduling Framework"; the words of its plug-ins.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from ridgeline.queue.doctor.state import SCHEDULER, ToldReason
from ridgeline.queue.readers.kube_pods import name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section


def events_in(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """What each event is about, its reason and its message; in both of its APIs."""
    for one in objects:
        if one["kind"] == "Event":
            about = section(one, "involvedObject") or section(one, "regarding")
            message = one.get("message") or one.get("note")
            yield about, str(one.get("reason")), str(message or "")


def named_in(about: dict[str, Any]) -> str:
    """What an event is about, by its name after its namespace."""
    namespace = about.get("namespace")
    return f"{namespace}/{about.get('name')}" if namespace else str(about.get("name"))


def matched(kind: str, reason: str, message: str, **more: str) -> ToldReason | None:
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


_NODES = re.compile(r"\d+/\d+ nodes are available: (.*)$", re.DOTALL)
_BEFORE_PREEMPTION = re.compile(r"^(.*?)[.,]?\s*(?:preemption: .*)?$", re.DOTALL)
_LONGEST = 160
_PART = re.compile(r"^(\d+) (.+?)\.?$", re.DOTALL)
_COUNTED = re.compile(
    r"Insufficient |untolerated taint|taints? that the pod|unschedulable|node affinity/selector"
    r"|node selector|affinity rules|topology spread|olume|claim|free ports|Too many pods|not ready"
    r"|NodeName|allocate all"
)
"""Parts of kube-scheduler's message that rules count by themselves."""


def said_of_pods(objects: Sequence[dict[str, Any]]) -> dict[str, ToldReason]:
    """What a scheduler says of each pod that it does not start, by the pod's name."""
    found = {}
    for one in objects:
        if one["kind"] == "Pod":
            for told in mappings_in(section(one, "status").get("conditions")):
                if told.get("type") == "PodScheduled" and told.get("status") == "False":
                    said = _of_message(str(told.get("message") or ""))
                    if said is not None:
                        found[name_of(one)] = said
    return found


def said_of_groups(objects: Sequence[dict[str, Any]]) -> dict[str, ToldReason]:
    """What events and conditions say of each PodGroup, by its name."""
    found = {}
    for about, _, message in events_in(objects):
        if about.get("kind") == "PodGroup" and (said := matched("said", "", message)):
            found[named_in(about)] = said
    for one in objects:
        if one["kind"] == "PodGroup":
            status = section(one, "status")
            told = mappings_in(status.get("schedulingConditions"))
            told += mappings_in(status.get("conditions"))
            words = [str(c.get("message") or "") for c in told if c.get("status") != "False"]
            said = next((of_it for text in words if (of_it := matched("said", "", text))), None)
            if said is not None:
                found[name_of(one)] = said
    return found


def _of_message(message: str) -> ToldReason | None:
    told = _BEFORE_PREEMPTION.match(message)
    message = told[1] if told else message
    listed = _NODES.search(message)
    if listed is None:
        return matched("said", "", message)
    parts = [_PART.match(part.strip()) for part in listed[1].split(", ")]
    by_words = Counter[str]()
    for part in parts:
        if part is not None:
            by_words[part[2]] += int(part[1])
    if not by_words:  # a plug-in that looks at the pod alone, before any node
        words = listed[1].strip().rstrip(".")
        known = matched("said", "", words)
        if known is None and not _COUNTED.search(words):
            known = ToldReason(way=SCHEDULER, said=f"kube-scheduler says: {words[:_LONGEST]}")
        return known
    unknown = Counter({said: n for said, n in by_words.items() if not _COUNTED.search(said)})
    if not unknown:
        return None
    words, nodes = unknown.most_common(1)[0]
    return ToldReason(way=SCHEDULER, said=f"kube-scheduler says of {nodes} nodes: {words}")
