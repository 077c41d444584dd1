from __future__ import annotations

import pytest
import torch

from ridgeline.compress.evaluate.loaded import load
from ridgeline.compress.watching.outliers import outliers, watched_channels


def test_layers_with_large_channels_are_named_the_worst_first():
    most, worse = torch.ones(64), torch.ones(64)
    most[5], most[9] = 20.0, 50.0
    worse[3] = 100.0
    first, second = outliers({"even": torch.full((8,), 3.0), "some": most, "worse": worse})
    assert (first.layer, first.channels) == ("worse", (3,))
    assert (second.layer, second.channels) == ("some", (9, 5))
    assert second.ratios == pytest.approx((50.0, 20.0))
    assert second.levels_left == pytest.approx(127 / 50)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_every_layer_but_the_head_is_watched_over_all_calls_and_then_no_more(tiny_model, kind):
    model = load("MODEL", tiny_model(kind), "cpu").model
    layer = {"llama": "model.layers.1.mlp.down_proj", "gpt2": "transformer.h.1.mlp.c_proj"}[kind]
    inputs = []
    handle = model.get_submodule(layer).register_forward_pre_hook(
        lambda _, args: inputs.append(args[0].flatten(0, 1))
    )
    with watched_channels(model) as largest, torch.no_grad():
        for start in (0, 20):
            model(torch.arange(start, start + 20)[None])
    handle.remove()
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(largest[layer], torch.cat(inputs).abs().amax(0))
    assert len(largest) == {"llama": 2 * 7, "gpt2": 2 * 4}[kind]
