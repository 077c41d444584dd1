"""A question with options: in which order they stand, and which one is right."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ridgeline.drills.solved import CHOICE, RightOption
from ridgeline.records.drill import Ask


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
