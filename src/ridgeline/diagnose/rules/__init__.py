"""One file per rule. `diagnose` finds them here and names none of them.

A rule module defines

    CAUSES                        names of the causes that it may report; each has one owner
    find(reading) -> [Finding]    pure: evidence in, findings out

A rule reports what its evidence supports, however little it is worth; whether that is worth a
person's time is for `ranking.py` to say. A new file is a new rule. What may not enter: another
rule, torch, a clock, a file.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any, Protocol

from ridgeline.diagnose.reading import Reading
from ridgeline.records import Finding


class Rule(Protocol):
    """The shape of a rule module."""

    CAUSES: tuple[str, ...]

    def find(self, reading: Reading) -> list[Finding]:
        """Findings of this rule on one profile."""


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by file name."""
    found: dict[str, Rule] = {}
    owners: dict[str, str] = {}
    for info in pkgutil.iter_modules(__path__):
        module: Any = importlib.import_module(f"{__name__}.{info.name}")
        for cause in module.CAUSES:
            if cause in owners:
                raise AssertionError(f"{cause} belongs to both {owners[cause]} and {info.name}")
            owners[cause] = info.name
        found[info.name] = module
    return found
