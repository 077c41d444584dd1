"""A combination of schemes, put together from uniformly compressed models and measured.

The layers are those of the uniform models, so a method that looks at activations (GPTQ) saw other
ones than it will in the combination; what is saved at the end is compressed, and measured, anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ridgeline.compress.evaluate.judge import AS_GIVEN, Judge
from ridgeline.compress.evaluate.sensitive import swapped
from ridgeline.compress.search.budget import Combination
from ridgeline.records.compression import Divergence, Quality


def measured(
    judge: Judge,
    combination: Combination,
    layers: Mapping[str, tuple[str, ...]],
    uniform: Mapping[str, Path],
) -> tuple[Quality, Divergence]:
    """Quality of a combination.

    Args:
        judge: With the model as given.
        combination: By unit.
        layers: Of each unit.
        uniform: Scheme → directory of the model with that scheme throughout.
    """
    used = {option.scheme for option in combination.chosen.values()} - {AS_GIVEN}
    subject = judge.fresh()
    with ExitStack() as swaps:
        for scheme in sorted(used):
            other = judge.load(uniform[scheme]).model
            names = [
                layer
                for unit, option in combination.chosen.items()
                if option.scheme == scheme
                for layer in layers[unit]
            ]
            swaps.enter_context(swapped(subject.model, other, names))
        return judge.compare(subject, "a combination")
