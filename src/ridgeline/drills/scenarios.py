"""A failure is a story, evidence from a real record, and the choice of diagnosis and fix.

A scenario is a file of `scenarios/`. Of its diagnoses and fixes the first is right; the seed of a
question decides in which order they are shown.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from importlib import resources

import msgspec

from ridgeline.drills.evidence import EvidenceLine, line, record, source_of
from ridgeline.drills.solved import CHOICE, RightOption, SolvedQuestion
from ridgeline.records.drill import Ask, DrillQuestion, WorkedStep

TOPIC = "failures"


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One failure as its file tells it."""

    title: str
    story: str
    record: str
    """The name of a file of `records/`."""
    cause: str = ""
    """What `diagnose/` calls it, where it has a rule for it."""
    diagnoses: list[str]
    """The first is right."""
    fixes: list[str]
    """The first is right."""
    why: str
    evidence: list[EvidenceLine]


@functools.cache
def scenarios() -> dict[str, Scenario]:
    """Every scenario by the name of its file."""
    folder = resources.files("ridgeline.drills") / "scenarios"
    files = {one.name.removesuffix(".toml"): one for one in folder.iterdir()
             if one.name.endswith(".toml")}  # fmt: skip
    return {
        name.replace("_", "-"): msgspec.toml.decode(file.read_bytes(), type=Scenario)
        for name, file in sorted(files.items())
    }


def ask_scenario(name: str, scenario: Scenario, seed: int) -> SolvedQuestion:
    """A scenario as a question."""
    draw = random.Random(f"{name}:{seed}")
    content = record(scenario.record)
    what, right_cause = choice(
        "What is wrong?", scenario.diagnoses[0], scenario.diagnoses[1:], draw
    )
    cure, right_cure = choice("What do you do?", scenario.fixes[0], scenario.fixes[1:], draw)
    return SolvedQuestion(
        question=DrillQuestion(
            id=f"{name}:{seed}",
            topic=TOPIC,
            text=f"{scenario.title}. {scenario.story}",
            evidence=[line(one, content) for one in scenario.evidence],
            asks=[what, cure],
        ),
        right=(right_cause, right_cure),
        solution=(
            WorkedStep(says=scenario.why, command=source_of(content), result=scenario.diagnoses[0]),
        ),
    )


def choice(
    prompt: str, right: str, others: Sequence[str], draw: random.Random
) -> tuple[Ask, RightOption]:
    """An ask with the right option somewhere among the others.

    >>> ask, right = choice("Which?", "a", ["b", "c"], random.Random(0))
    >>> ask.options[right.number], sorted(ask.options)
    ('a', ['a', 'b', 'c'])
    """
    options = [right, *others]
    draw.shuffle(options)
    return (
        Ask(prompt=prompt, unit=CHOICE, options=options),
        RightOption(number=options.index(right)),
    )
