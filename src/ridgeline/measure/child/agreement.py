"""How near the answers of a converted program come to those of the module, on the same inputs.

SQNR: power of the module's answer over that of the difference, in dB, the least over the floating
outputs. Same answer: the share of samples whose largest score is the same one, where the output
has scores: [samples, classes, …]. Top-1 against labels would hide answers that changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from ridgeline.measure.child.inputs import tensors_in

LEAST_SQNR: Mapping[str, float] = MappingProxyType({"fp32": 60.0, "bf16": 20.0, "int8": 15.0})
"""dB below which a program is refused. Seen on ResNet-50: float32 above 100, bfloat16 48, int8 37;
on a small CIFAR network int8 25 to 28."""
LEAST_SAME = 0.93
"""Share of samples with the same answer below which an int8 program is refused."""


@dataclass(slots=True)
class OutputAgreement:
    """What was seen over the calls so far."""

    calls: int = 0
    samples: int = 0
    same: int = 0
    scored: int = 0
    """Samples whose output had scores."""
    sqnr: float = math.inf
    """dB, the least of all calls; infinite: all equal."""
    unlike: str = ""
    """What is of another kind altogether: shapes, number of tensors."""

    def add(self, wanted: Any, found: Any) -> None:
        """Compare one call's answers."""
        ours, theirs = list(tensors_in(wanted)), list(tensors_in(found))
        self.calls += 1
        shapes = [tuple(one.shape) for one in ours]
        if shapes != [tuple(one.shape) for one in theirs] or type(wanted) is not type(found):
            self.unlike = "it answers in another shape than the module"
            return
        for a, b in zip(ours, theirs, strict=True):
            if a.is_floating_point():
                self.sqnr = min(self.sqnr, sqnr(a, b))
        first = next((one for one in ours if one.is_floating_point() and one.dim() > 1), None)
        self.samples += len(first) if first is not None else 1
        if first is not None and first.dim() == 2 and first.shape[1] > 1:
            second = theirs[[one is first for one in ours].index(True)]
            self.scored += len(first)
            self.same += int((first.argmax(1) == second.argmax(1)).sum())

    def refusal(self, precision: str) -> str | None:
        """Why the program may not answer for the module; None: it may."""
        if self.unlike:
            return self.unlike
        least = LEAST_SQNR[precision]
        if not self.sqnr >= least:
            return f"outputs have an SQNR of {self.sqnr:.1f} dB; {precision} needs {least:.0f}"
        if precision == "int8" and self.same < LEAST_SAME * self.scored:
            return (
                f"the same answer for {self.same} of {self.scored} samples; int8 needs "
                f"{LEAST_SAME:.0%}"
            )
        return None

    def __str__(self) -> str:
        equal = "equal outputs" if math.isinf(self.sqnr) else f"SQNR {self.sqnr:.0f} dB"
        if not self.scored:
            return equal
        return f"{equal}, the same answer for {self.same} of {self.scored} samples"


def sqnr(wanted: torch.Tensor, found: torch.Tensor) -> float:
    """Signal to noise in dB: 10 log10(|x|² / |x − y|²).

    >>> sqnr(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    inf
    """
    signal, other = wanted.detach().double(), found.detach().double()
    noise = float((signal - other).square().sum())
    power = float(signal.square().sum())
    if noise == 0:
        return math.inf
    if not math.isfinite(noise) or power == 0:
        return -math.inf
    return 10 * math.log10(power / noise)
