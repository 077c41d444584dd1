"""Eager answers that prove nothing of what is compared with them: the same for every input, or NaN.

Weights that were never loaded, a head that starts at zero, or a division of zeros: every format
agrees with such a model whatever it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline.export.check_inputs import CheckCase
from ridgeline.runtimes.capture.structure import flatten


def dead_answers(case: CheckCase, outputs: Sequence[Any]) -> list[str]:
    """Lines to say beside a comparison; none where the answers tell inputs apart.

    Args:
        case: Calls of one batch and size.
        outputs: What the eager model answers to each.
    """
    answers = [[one for one in flatten(output)[0] if one.numel()] for output in outputs]
    numbers = [one for answer in answers for one in answer if one.is_floating_point()]
    notes = []
    broken = sum(not bool(one.isfinite().all()) for one in numbers)
    if broken:
        notes.append(
            f"eager itself answers NaN or infinity in {broken} of {len(numbers)} outputs, which are"
            " not compared there"
        )
    if answers[0] and _differ(case.calls) and all(_equal(answers[0], one) for one in answers[1:]):
        what = "" if any(bool(one.any()) for one in answers[0]) else ", zero everywhere"
        notes.append(
            f"eager answers the same to every input{what}, so that agreement says nothing of a"
            " format: load the weights"
        )
    return notes


def _differ(calls: Sequence[dict[str, Tensor]]) -> bool:
    first = list(calls[0].values())
    return any(not _equal(first, list(one.values())) for one in calls[1:])


def _equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))
