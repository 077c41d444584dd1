"""Parts of objects of Kubernetes, of which each may be missing or of another kind."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def section(one: dict[str, Any], *keys: str) -> dict[str, Any]:
    """What lies under keys, if it is a mapping; else an empty one."""
    found: Any = one
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def mappings_in(found: object) -> list[dict[str, Any]]:
    """The mappings in a list; of anything else none."""
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def unix_seconds(text: object) -> float | None:
    """The moment that a text of Kubernetes names; None where it names none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
