"""Which techniques to ask about next, and how many in one question.

The questions that stand to choice:

- what is likely to help and starts quickly, as one stack: asked first, its A/B is the headline;
- what is likely to help and takes a compilation to start, each by itself;
- what may do harm (its pessimistic gain is a loss), each by itself;
- what is expected to gain too little to show on its own, together.

Of those that fit into the time that is left the one comes next that is expected to gain most per
second it takes. What is foretold to lose more than it gains, and little at best, waits until a
profile of the tuned script foretells more.

No technique is named here: how equal it leaves the result, what it excludes and when it is
applied stands on its card.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline import quantity
from ridgeline.measure.wire import Applied
from ridgeline.records.ledger import Options
from ridgeline.techniques import Card, Context, Gain, Stage, all_techniques, options_of, technique
from ridgeline.tune.forecast import leaning

MIN_EXPECTED_GAIN = 1.01
"""A technique that at best brings less than 1 % is not worth a measurement."""
WORTH_A_RISK = 1.1
"""Gain at best from which a technique is measured that is expected to lose more than it gains."""
UNLIKELY = 0.1
"""Share of its best gain that such a technique counts with."""
SHOWS_ALONE = 1.05
"""Expected gain from which a technique is asked about for its own sake: to tell less from noise
takes more rounds than a row is worth, so the small ones are asked about together."""
_MOST_FOR_OTHERS = 0.5
"""Share of the time that is left which what compiles leaves to the other candidates."""
_SPARE = 1.3
"""Times what they will take: to end what was cut off takes a while, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueCandidate:
    """A technique with settings that could help."""

    applied: Applied
    gain: Gain

    @property
    def card(self) -> Card:
        """What stands on the technique's card."""
        return technique(self.applied.technique).CARD

    @property
    def label(self) -> str:
        """Name and settings in words."""
        return label_of(self.applied.technique, self.applied.options)

    @property
    def expected(self) -> float:
        """Geometric mean of the expected gain's two ends."""
        return math.sqrt(self.gain.low * self.gain.high)

    @property
    def promise(self) -> float:
        """Logarithm of the gain to reckon with, as far as its model was right so far.

        Of one more likely to lose, hardly any.
        """
        likely = math.log(self.expected) + leaning(self.applied.technique)
        return max(likely, UNLIKELY * math.log(self.gain.high))

    @property
    def is_slow_to_start(self) -> bool:
        """Does the script compile something before its first step?"""
        return self.card.stage >= Stage.COMPILE

    @property
    def may_harm(self) -> bool:
        """Is a loss expected at worst?"""
        return self.gain.low < 1.0


def candidates(
    context: Context, only: tuple[str, ...], skipped: dict[str, str]
) -> list[TechniqueCandidate]:
    """Techniques that apply, most promising first; `skipped` is told why others do not."""
    found = []
    for name, module in all_techniques().items():
        held = (context.stack or {}).get(name)
        if (only and name not in only) or (held is not None and not module.CARD.opaque):
            continue
        fits = module.applies(context)
        if not fits.ok:
            skipped.setdefault(name, fits.reason)
            continue
        skipped.pop(name, None)
        for options in options_of(module, context):
            if options == held:
                continue
            applied = Applied(technique=name, options=options)
            candidate = TechniqueCandidate(applied=applied, gain=module.predict(context, options))
            if candidate.gain.high < MIN_EXPECTED_GAIN:
                skipped[candidate.label] = f"worth {candidate.gain.high - 1:.1%} at best"
                continue
            if candidate.expected < 1 and candidate.gain.high < WORTH_A_RISK:
                foretold = quantity.ratio_range(*candidate.gain)
                skipped[candidate.label] = f"foretold to lose more than it gains, {foretold}"
                continue
            found.append(candidate)
    return sorted(found, key=lambda candidate: -candidate.expected)


def seconds_for_others(
    chosen: list[TechniqueCandidate],
    open_: list[TechniqueCandidate],
    seconds_for: Callable[[list[Applied]], float],
    left_seconds: float,
) -> float:
    """What is left to the others where a question may prepare for longer than anyone foresees."""
    if not any(one.is_slow_to_start for one in chosen):
        return 0.0
    needed = sum(seconds_for([one.applied]) for one in open_ if one not in chosen)
    return min(_SPARE * needed, _MOST_FOR_OTHERS * left_seconds)


def next_question(
    open_: list[TechniqueCandidate],
    seconds_for: Callable[[list[Applied]], float],
    left_seconds: float,
) -> list[TechniqueCandidate]:
    """Candidates to ask about next, as one; the strongest first. Empty: none is left, or fits."""
    steady = [one for one in open_ if not one.may_harm]
    likely = [one for one in steady if one.expected >= SHOWS_ALONE]
    quick = one_per_slot([one for one in likely if not one.is_slow_to_start])
    small = [one for one in steady if one.expected < SHOWS_ALONE]
    together = [
        one_per_slot([one for one in small if one.is_slow_to_start is slow])
        for slow in (False, True)
    ]
    alone = [one for one in likely if one.is_slow_to_start]
    alone += [one for one in open_ if one.may_harm]

    def fits(chosen: list[TechniqueCandidate]) -> bool:
        return bool(chosen) and seconds_for([one.applied for one in chosen]) <= left_seconds

    def pays(chosen: list[TechniqueCandidate]) -> float:
        return sum(one.promise for one in chosen) / seconds_for([one.applied for one in chosen])

    if fits(quick):
        return quick
    # Where all of them do not fit, the strongest may: its A/B checks fewer things.
    questions = [quick[:1], *([one] for one in alone), *together]
    return max(filter(fits, questions), key=pays, default=[])


def or_hopeful(
    small: list[TechniqueCandidate],
    open_: list[TechniqueCandidate],
    least_seconds_for: Callable[[list[Applied]], float],
    left_seconds: float,
) -> list[TechniqueCandidate]:
    """What would show and may just be finished in the time; otherwise what is too small to show."""
    hopeful = next_question(open_, least_seconds_for, left_seconds)
    return small if is_small(hopeful) else hopeful


def is_small(chosen: list[TechniqueCandidate]) -> bool:
    """Is none of them expected to show on its own?"""
    return all(one.expected < SHOWS_ALONE and not one.may_harm for one in chosen)


def one_per_slot(open_: list[TechniqueCandidate]) -> list[TechniqueCandidate]:
    """The first of each slot: those that can be applied together."""
    chosen: dict[str, TechniqueCandidate] = {}
    for candidate in open_:
        chosen.setdefault(slot_of(candidate.applied.technique), candidate)
    return list(chosen.values())


def one_per_slot_of(members: list[Applied]) -> list[Applied]:
    """The first of each slot, of techniques whose expected gain is no matter any more."""
    chosen: dict[str, Applied] = {}
    for member in members:
        chosen.setdefault(slot_of(member.technique), member)
    return list(chosen.values())


def displaced_by(name: str, stack: list[Applied]) -> str | None:
    """The member of the stack that has the technique's place; None: it is free."""
    slot = slot_of(name)
    return next((m.technique for m in stack if slot_of(m.technique) == slot), None)


def slot_of(name: str) -> str:
    """What a technique excludes others from: its slot, or its own name."""
    return technique(name).CARD.slot or name


def key_of(stack: list[Applied]) -> str:
    """A stack in words."""
    return " ".join(label_of(m.technique, m.options) for m in stack) or "nothing"


def label_of(name: str, options: Options) -> str:
    """A technique with its options in words."""
    settings = ",".join(f"{key}={value}" for key, value in sorted(options.items()))
    return f"{name}({settings})" if settings else name
