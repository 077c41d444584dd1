"""Events of Kubernetes, and what their messages say by the patterns in `kube_events.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from ridgeline.queue.doctor.state import ToldReason
from ridgeline.queue.readers.kube_sections import section


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
