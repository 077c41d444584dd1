"""Stage balancing against every possible split."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.models import load_model
from ridgeline.train.parallel.balance import end_flops, layer_flops, split_layers


def _totals(costs, split, before, behind):
    totals = [sum(costs[layer] for layer in stage) for stage in split]
    totals[0] += before
    totals[-1] += behind
    return totals


def _every_split(num_layers, num_stages):
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        edges = (0, *cuts, num_layers)
        yield [range(a, b) for a, b in pairwise(edges)]


@given(
    costs=st.lists(st.integers(1, 50), min_size=1, max_size=9),
    num_stages=st.integers(1, 5),
    before=st.integers(0, 60),
    behind=st.integers(0, 120),
    limit=st.integers(1, 9),
)
def test_the_split_is_the_best_of_all_splits(costs, num_stages, before, behind, limit):
    def fits(stage, layers):
        return len(layers) <= limit + stage

    every = [
        split
        for split in _every_split(len(costs), num_stages)
        if all(fits(stage, layers) for stage, layers in enumerate(split))
    ]
    if not every:
        with pytest.raises(InputError, match="stages"):
            split_layers(costs, num_stages, before=before, behind=behind, fits=fits)
        return
    found = split_layers(costs, num_stages, before=before, behind=behind, fits=fits)
    assert found in every

    def badness(split):
        totals = _totals(costs, split, before, behind)
        return max(totals), sum(total * total for total in totals)

    assert badness(found) == min(badness(split) for split in every)


def test_a_head_of_a_big_vocabulary_takes_layers_from_the_last_stage():
    model = load_model("llama-3.2-1b")
    costs = layer_flops(model, 4096)
    before, behind = end_flops(model, 4096)
    assert behind > 3 * costs[0]
    sizes = [len(one) for one in split_layers(costs, 4, before=before, behind=behind)]
    assert sizes == [5, 5, 5, 1]
    assert [len(one) for one in split_layers(costs, 4)] == [4, 4, 4, 4]


def test_full_recomputation_adds_a_forward_pass():
    model = load_model("llama-3.2-1b")
    plain, again = layer_flops(model, 2048), layer_flops(model, 2048, "full")
    # Forward is about a third of a layer's training FLOPs.
    assert again[0] / plain[0] == pytest.approx(4 / 3, abs=0.02)


def test_more_stages_than_layers_is_refused():
    with pytest.raises(InputError, match="pp x vpp = 3 stages for 2 layers"):
        split_layers([1.0, 1.0], 3)
