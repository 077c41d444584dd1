"""What `ridgeline checklist` prints: boxes of the field, answered by records or left open."""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.tagged import TaggedRecord

Standing = Literal["done", "not done", "not applicable", "unknown"]
"""How a box stands. `unknown`: no record that was given says it; nothing is guessed."""


class ChecklistBox(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One box, and what the records say of it."""

    name: str
    """Stable name in kebab case."""
    group: str
    """`training`, `inference`, `distributed` or `launch`."""
    box: str
    """What is so when it is done."""
    priority: int
    """The order in which boxes are worth closing: 1 first, for most of the
    gain is there for least work; 3 last."""
    why: str
    standing: Standing
    evidence: str
    """What the record shows; of an unknown box, where it would be seen."""
    source: str
    """Which record says so: `profile`, `trace`, `recipe` or `ledger`; empty where none does."""
    command: str
    """What closes the box, or finds out about it; empty where nothing is left to do."""


class Checklist(TaggedRecord, frozen=True, kw_only=True, tag="checklist"):
    """The boxes of the groups that were asked for, what comes first on top."""

    groups: list[str]
    sources: list[str]
    """The records that answered, as they were named."""
    counts: dict[str, int]
    """How a box stands → the number of boxes."""
    boxes: list[ChecklistBox]
