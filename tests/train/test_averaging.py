"""The moving average of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ridgeline.train.averaging import WeightAverage


def test_the_average_is_the_weighted_sum_of_all_past_weights() -> None:
    model = nn.Linear(3, 2).double()
    average = WeightAverage([model], 0.9)
    expected = model.weight.detach().float()
    for step in range(5):
        with torch.no_grad():
            model.weight.fill_(float(step))
        average.update()
        expected = 0.9 * expected + 0.1 * step
    torch.testing.assert_close(average.shadows()["weight"], expected)


def test_a_small_step_is_not_lost_on_bf16_weights() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    average = WeightAverage([model], 0.999)
    nn.init.constant_(model.weight, 2.0)
    average.update()
    assert average.shadows()["weight"].item() == torch.tensor(1.001).item()


def test_swapped_in_weights_go_back_bit_for_bit_even_after_an_error() -> None:
    model = nn.Linear(4, 4).bfloat16()
    average = WeightAverage([model], 0.5)
    nn.init.normal_(model.weight)
    own = model.weight.detach().clone()
    average.update()

    def look_and_fail() -> None:
        with average.swapped_in():
            assert not torch.equal(model.weight, own)
            torch.testing.assert_close(model.weight, average.shadows()["weight"].bfloat16())
            raise KeyError

    with pytest.raises(KeyError):
        look_and_fail()
    assert torch.equal(model.weight, own)


def test_frozen_weights_are_not_averaged_and_state_is_taken_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(requires_grad=False)
    average = WeightAverage([model], 0.5)
    assert set(average.shadows()) == {"1.weight", "1.bias"}
    for saved in average.state_dict().placed.values():
        saved.fill_(7.0)  # as a checkpoint is loaded: in place
    with average.swapped_in():
        assert bool((model[1].weight == 7.0).all())
