"""Where to cut a model into pipeline stages, so that the dearest stage is as cheap as can be.

A pipeline runs at the pace of its slowest stage (Narayanan et al., arXiv 1806.03377, section 3.1,
"PipeDream", which partitions by dynamic programming as well). Here the stages are contiguous runs
of layers; the embedding stands before the first layer and the head behind the last, and with a
big vocabulary the head weighs as much as several layers. Among the cuts with the least maximum the
one with the least sum of squares is taken: as even as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import inf

from ridgeline.cost.operators import end_operators, layer_operators
from ridgeline.errors import InputError
from ridgeline.models.spec import ModelSpec, num_layers
from ridgeline.records.layout import Recompute

Fits = Callable[[int, range], bool]
"""Whether a stage (by index) may hold these layers: its memory suffices."""


def layer_flops(model: ModelSpec, seq: int, recompute: Recompute = "none") -> list[float]:
    """Forward and backward FLOPs of each layer for one sequence, recomputation included.

    >>> from ridgeline.models import load_model
    >>> costs = layer_flops(load_model("llama-3-8b"), 8192)
    >>> len(costs), round(costs[0] / 1e12, 1)
    (32, 12.6)
    """
    costs = []
    for layer in range(num_layers(model)):
        operators = layer_operators(model, seq, 1, layer=layer)
        total = sum(one.flops * one.count for one in operators)
        if recompute == "full":
            total += sum(one.flops * one.count for one in operators if one.direction == "forward")
        costs.append(total)
    return costs


def end_flops(model: ModelSpec, seq: int) -> tuple[float, float]:
    """FLOPs of what stands before the first layer, and of what stands behind the last."""
    operators = end_operators(model, seq, 1)
    before = sum(one.flops * one.count for one in operators if one.name == "embedding")
    return before, sum(one.flops * one.count for one in operators) - before


def split_layers(
    costs: Sequence[float],
    num_stages: int,
    *,
    before: float = 0.0,
    behind: float = 0.0,
    fits: Fits | None = None,
) -> list[range]:
    """The layers of each stage: the split with the least maximum, and then the most even one.

    >>> split_layers([1.0] * 8, 3, behind=2.0)
    [range(0, 3), range(3, 6), range(6, 8)]

    Args:
        costs: Of each layer, in any unit.
        num_stages: How many stages; each gets at least one layer.
        before: Cost of the embedding, on the first stage.
        behind: Cost of the final norm, the head and the loss, on the last stage.
        fits: Where memory limits what a stage may hold.

    Raises:
        InputError: There are fewer layers than stages, or nothing fits.
    """
    if num_stages > len(costs):
        raise InputError(
            f"layout: pp x vpp = {num_stages} stages for {len(costs)} layers; each stage needs one"
        )
    sums = [0.0]
    for one in costs:
        sums.append(sums[-1] + one)

    def cost(stage: int, first: int, end: int) -> float:
        if fits is not None and not fits(stage, range(first, end)):
            return inf
        total = sums[end] - sums[first]
        total += before if stage == 0 else 0.0
        return total + (behind if stage == num_stages - 1 else 0.0)

    pace = _best(len(costs), num_stages, cost, combine=max)
    if pace[0] == inf:
        raise InputError(
            f"layout: no split of {len(costs)} layers into {num_stages} stages fits in memory;"
            " raise pp, tp or recomputation"
        )
    # A hair above the optimum: sums in another order round differently.
    limit = pace[0] * (1 + 1e-12)

    def squared(stage: int, first: int, end: int) -> float:
        value = cost(stage, first, end)
        return value * value if value <= limit else inf

    ends = _best(len(costs), num_stages, squared, combine=lambda one, rest: one + rest)[1]
    return [range(first, end) for first, end in zip((0, *ends[:-1]), ends, strict=True)]


def _best(
    num_layers_: int,
    num_stages: int,
    cost: Callable[[int, int, int], float],
    combine: Callable[[float, float], float],
) -> tuple[float, tuple[int, ...]]:
    """The least combined cost of contiguous stages, and where each ends."""

    @cache
    def after(stage: int, first: int) -> tuple[float, tuple[int, ...]]:
        if stage == num_stages - 1:
            return cost(stage, first, num_layers_), (num_layers_,)
        found: tuple[float, tuple[int, ...]] = (inf, ())
        for end in range(first + 1, num_layers_ - (num_stages - stage - 1) + 1):
            rest, ends = after(stage + 1, end)
            total = combine(cost(stage, first, end), rest)
            if not found[1] or total < found[0]:
                found = (total, (end, *ends))
        return found

    return after(0, 0)
