"""Lines of evidence, read from the records of real runs that stand beside the scenarios.

A record is what a command wrote (`doctor --json`, `doctor --trace --json`, `compress --json`, a
run's log) or rows of a published table, with its source. A key leads into it: parts by name or
by number, `*` for every item of a list.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

import msgspec

from ridgeline import quantity

_UNREADABLE = 1e15
"""From here on a number is written with its exponent."""


class EvidenceLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of evidence."""

    says: str
    key: str
    """Where it stands in the record: `findings.0.evidence.num_losses_seen`, `rows.*.scheme`."""
    unit: str = ""
    """Where the key's name does not end with it."""
    most: int = 6
    """Items that are shown of a list."""


@functools.cache
def record(name: str) -> dict[str, Any]:
    """One of the records, as JSON has it."""
    file = resources.files("ridgeline.drills") / "scenarios" / "records" / f"{name}.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return found


@functools.cache
def record_names() -> tuple[str, ...]:
    """Every record that there is, in order."""
    folder = resources.files("ridgeline.drills") / "scenarios" / "records"
    return tuple(sorted(one.name.removesuffix(".json.gz") for one in folder.iterdir()))


def source_of(content: dict[str, Any]) -> str:
    """Where a record is from, in words."""
    if "files" in content:
        files = content["files"]
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        return f"ridgeline doctor --trace {files[0]}{more}"
    if "profile" in content:
        made = content["profile"]["environment"]
        return f"ridgeline doctor -- {' '.join(made['command'])}, {made['date'][:10]}"
    if content.get("record") == "compression":
        return f"ridgeline compress --scheme {content['rows'][-1]['scheme']}"
    if "recipe" in content:
        return f"ridgeline train {content['recipe']}"
    return str(content["source"])


def value_at(content: Any, key: str) -> Any:
    """What a key leads to; a `*` gives the list of what the rest leads to in each item.

    >>> value_at({"rows": [{"bits": 4}, {"bits": 3}]}, "rows.*.bits")
    [4, 3]
    """
    part, _, rest = key.partition(".")
    if not part:
        return content
    if part == "*":
        return [value_at(item, rest) for item in content]
    return value_at(content[int(part) if isinstance(content, list) else part], rest)


def line(seen: EvidenceLine, content: dict[str, Any]) -> str:
    """One line of evidence: what it is, and its value in its unit."""
    value = value_at(content, seen.key)
    name = seen.unit or seen.key.rpartition(".")[2]
    values = value[: seen.most] if isinstance(value, list) else [value]
    return f"{seen.says}: {', '.join(_shown(name, one) for one in values)}"


def lines_of(found: dict[str, float | int | str], leave_out: Sequence[str] = ()) -> list[str]:
    """The evidence of a finding, a line each.

    >>> lines_of({"gc_seconds": 0.25, "window": "trace"}, ("window",))
    ['gc: 250 ms']
    """
    return [
        f"{quantity.without_unit(name)}: {_shown(name, value)}"
        for name, value in found.items()
        if name not in leave_out
    ]


def _shown(name: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "not finite" if name in ("losses", "loss") else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if abs(value) >= _UNREADABLE:
        return f"{value:.2e}"
    return quantity.shown(name, value)
