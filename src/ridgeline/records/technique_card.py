"""What `ridgeline techniques` prints: the cards, and what each technique gained where measured."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ridgeline.records.input_file import read_toml
from ridgeline.records.tagged import TaggedRecord

GAINS = Path(__file__).with_name("measured_gains.toml")


class MeasuredGain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ledger row of a public script, kept in `records/measured_gains.toml`."""

    technique: str
    script: str
    """Its name in `tests/public/scripts.toml`."""
    multiplier: float
    ci_low: float
    ci_high: float
    kept: bool
    """Whether the technique survived the measurement."""


class GainFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the techniques gained (`measured_gains.toml`) over the corpus."""

    measured_on: str
    """Machine, torch and date; several where the scripts were not measured together."""
    command: str
    """What was run for each script."""
    gain: list[MeasuredGain] = []


def measured_gains() -> GainFile | None:
    """What was measured over the corpus, where that is part of this version."""
    return read_toml(GAINS, GainFile) if GAINS.exists() else None


class TechniqueCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One technique, as its card says."""

    name: str
    title: str
    about: str
    """The first words of its file: what it changes, and why that is faster."""
    cures: list[str]
    """Causes of findings that it cures."""
    costs: str
    """What it costs in memory, start-up time, exactness or readability."""
    equivalence: str
    """What it may do to the result: `bit-equal`, `rounding`, `reduced-precision`, `quantised` or
    `statistical`."""
    equivalence_with: dict[str, str] = {}
    """The equivalence that holds instead where an option is set → by that option's name."""
    source: str
    stage: str
    """When it is applied: stages follow each other in the order of the list."""
    slot: str | None
    """Techniques in one slot exclude each other."""
    required: dict[str, str]
    """Options without which it cannot be applied → their types."""
    optional: dict[str, str]
    """Options that it also takes → their types."""
    measured: list[MeasuredGain]
    """What it gained over the corpus; empty where nobody measured it."""


class TechniqueList(TaggedRecord, frozen=True, kw_only=True, tag="techniques"):
    """The answer of `ridgeline techniques`."""

    techniques: list[TechniqueCard]
    """In the order in which a stack applies them; one where a name was given."""
    measured_on: str | None
    """Where the gains were measured; null where there are none."""
