"""A layer made bad on purpose is named first, and cured within a tenth of the multiplications."""

from __future__ import annotations

import pytest
import torch
from tests.compress.vision.networks import Residual, images, settled
from torch import nn

from ridgeline.compress.vision.mixed import mixed

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
