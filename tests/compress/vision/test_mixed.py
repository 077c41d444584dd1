"""A layer made bad on purpose is named first, and cured within a tenth of the multiplications."""

from __future__ import annotations

import pytest
import torch
from tests.compress.vision.networks import Residual, images, settled
from torch import fx, nn

from ridgeline.compress.vision.graph import run_watched
from ridgeline.compress.vision.mixed import mixed
from ridgeline.compress.vision.points import find_points
from ridgeline.compress.vision.quantise import PreparedVision, prepare
from ridgeline.compress.vision.sensitivity import Outlying, find_outlying, rank_layers

SCALE = 200.0


@torch.no_grad()
def planted(activation: type[nn.Module]) -> nn.Module:
    """One channel of a block's first layer times 200; the next layer takes it back."""
    torch.manual_seed(0)
    model = settled(Residual(width=12, blocks=12), images(size=16))
    block = model.blocks[5]
    block.act = activation()
    block.bn1.weight[3] *= SCALE
    block.bn1.bias[3] *= SCALE
    block.conv2.weight[:, 3] /= SCALE
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU])
def test_a_planted_layer_is_named_first_and_cured(activation: type[nn.Module]) -> None:
    found = mixed(planted(activation), images(batch=8, size=16), "w8a8-int8-rtn")
    assert found.ranking[0].layer == "blocks.5.conv1"
    assert found.ranking[0].sqnr_db < found.ranking[2].sqnr_db - 5
    assert found.after_db > found.before_db + 6
    assert found.float_share <= 0.1
    assert found.equalised == (activation is nn.ReLU)
    assert {one.layer for one in found.quantised.plan if one.in_float} == set(found.in_float)


@pytest.mark.parametrize("offset", [0.0, 50.0])
@torch.no_grad()
def test_what_readers_lose_by_an_outlying_channel_counts_for_its_maker(offset: float) -> None:
    """An offset is taken back by the reader, whose weight's error it multiplies."""
    torch.manual_seed(0)
    first, second, third = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 4, 1)
    given = images(batch=8, size=16)
    offset *= float(first(given[0]).abs().max())
    first.bias[5] += offset
    second.bias -= offset * second.weight[:, 5, 0, 0]
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
    prepared = prepare(model, given, "w8a8-int8-rtn")
    kept = {one.reader.name: one.columns.flatten() for one in outlying_of(prepared)}
    assert list(kept) == (["2"] if offset else [])
    if offset:
        assert kept["2"].reshape(16, 16).all(0).nonzero().flatten().tolist() == [5]
        worst, *rest = rank_layers(prepared)
        assert worst.layer == "0"
        assert all(one.sqnr_db > worst.sqnr_db + 10 for one in rest)


def outlying_of(prepared: PreparedVision) -> tuple[Outlying, ...]:
    values: dict[fx.Node, object] = {}
    run_watched(prepared.graph, prepared.batches[:1], values.__setitem__)
    points = find_points(prepared.layers)
    return find_outlying(prepared.layers, points, prepared.graph, values)
