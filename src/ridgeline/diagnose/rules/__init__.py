"""One file per rule, with the causes of one subject. `diagnose` finds them and names none.

A rule module defines

    CAUSES                        names of the causes that it may report; each has one owner
    find(reading) -> [Finding]    pure: evidence in, findings out

A rule reports what its evidence supports, however little it is worth; whether that is worth a
person's time is for `ranking.py` to say. A new file is a new rule. What may not enter: another
rule, torch, a clock, a file.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

from ridgeline.diagnose.reading import Reading
from ridgeline.diagnose.rule_files import rule_files
from ridgeline.records import Finding


class Rule(Protocol):
    """The shape of a rule module."""

    CAUSES: tuple[str, ...]

    def find(self, reading: Reading) -> list[Finding]:
        """Findings of this rule on one profile."""


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by file name."""
    return rule_files(__name__, __path__)
