"""Temperature and cuts in the order that a request asks for."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from ridgeline.serve.messages import Sampling
from ridgeline.serve.sampling.distribution import probabilities
from ridgeline.serve.sampling.sampler_order import OURS, named_samplers, ordered

ON = Sampling(temperature=0.5, min_p=0.15, top_k=6, top_p=0.8)


def one_after_another(logits: torch.Tensor, sampling: Sampling, order: list[str]) -> torch.Tensor:
    """The definition: each sampler on the probabilities that the one before left."""
    weights = logits.double().softmax(-1)
    for name in order:
        if name == "temperature":
            weights = weights ** (1 / sampling.temperature)
        elif name == "min_p":
            weights = torch.where(weights >= sampling.min_p * weights.max(), weights, 0.0)
        elif name == "top_k":
            least = weights.sort(descending=True).values[sampling.top_k - 1]
            weights = torch.where(weights >= least, weights, 0.0)
        else:
            ranked = weights.sort(descending=True)
            before = ranked.values.cumsum(-1) - ranked.values
            weights = weights.index_fill(0, ranked.indices[before >= sampling.top_p], 0.0)
        weights = weights / weights.sum()
    return weights


@pytest.mark.parametrize("order", list(permutations(OURS)))
def test_any_order_gives_what_its_definition_does(order: tuple[str, ...]) -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)) * 2
    sampling = ordered(ON, order)
    found = probabilities(logits.clone(), [sampling, ON, sampling, Sampling(), sampling])
    for row in (0, 2, 4):
        expected = one_after_another(logits[row], ON, list(order))
        torch.testing.assert_close(found[row].double(), expected, atol=1e-6, rtol=1e-4)
    usual = probabilities(logits.clone(), [ON] * 5)
    torch.testing.assert_close(found[1], usual[1])
    if not sampling.chain:  # said to be the usual one
        torch.testing.assert_close(found[0], usual[0])


def test_orders_that_cut_alike_are_the_usual_one() -> None:
    assert ordered(ON, ["top_k", "temperature", "min_p", "top_p"]).chain == ()
    assert ordered(ON, ["temperature", "top_k", "min_p", "top_p"]).chain == ()
    assert ordered(ON, ["top_p", "temperature"]).chain == ("top_p", "temperature")
    assert ordered(Sampling(top_p=0.9), ["top_p", "temperature"]).chain == ()


def test_names_and_letters_are_known_and_others_refused() -> None:
    assert named_samplers("edskypmxt")[3:6] == ("top_k", "typ_p", "top_p")
    assert named_samplers(["temp", "top-k", "top_k"]) == ("temperature", "top_k")
    with pytest.raises(ValueError, match="'z' is no sampler; known are adaptive_p, dry"):
        named_samplers("kz")
    with pytest.raises(ValueError, match="penalties come first here, not behind top_k"):
        ordered(Sampling(top_k=3, presence_penalty=1), ["top_k", "penalties"])
    assert ordered(Sampling(top_k=3), ["top_k", "penalties"]).top_k == 3
