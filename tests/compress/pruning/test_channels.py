"""Channels pruned from convolutional networks: what is left is the original without them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ridgeline.compress.pruning.channels.choose import flops, going
from ridgeline.compress.pruning.channels.coupling import Family
from ridgeline.compress.pruning.channels.prune import prune_channels
from ridgeline.errors import InputError
from ridgeline.records.scheme import Pruning

EXAMPLE = (torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8),)


def half(scope: str = "layer", criterion: str = "magnitude", share: float = 0.5) -> Pruning:
    return Pruning(structure="channels", criterion=criterion, share=share, scope=scope)  # type: ignore[arg-type]


def conv(before: int, after: int, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, groups=groups, bias=False), nn.BatchNorm2d(after)
    )


class Residual(nn.Module):
    """Adds what it was given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = conv(width, width), conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.two(self.one(x).relu())).relu()


class Concatenated(nn.Module):
    """Two branches, one after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two, self.mix = conv(width, width), conv(width, 8), conv(width + 8, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([self.one(x).relu(), self.two(x)], dim=1))


class Gated(nn.Module):
    """Squeeze and excite."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, 8), nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(self.down(x.mean(dim=(2, 3))).relu()).sigmoid()
        return x * gate[:, :, None, None]


class Shuffled(nn.Module):
    """Channels of two groups, interleaved, with sizes from the tensor."""

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Halves(nn.Module):
    """One half of the channels gates the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = conv(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.wide(x).chunk(2, dim=1)
        return one * two.sigmoid()


class Classifier(nn.Module):
    """Blocks, then a linear layer over all positions of all channels."""

    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.stem, self.blocks = conv(3, width), nn.Sequential(*blocks)
        self.pool, self.head = nn.AdaptiveAvgPool2d(2), nn.Linear(4 * width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(self.stem(x).relu())).flatten(1))


BLOCKS = {
    "residual": Residual,
    "concatenated": Concatenated,
    "gated": Gated,
    "halves": Halves,
    "depthwise": lambda width: nn.Sequential(conv(width, width, groups=width), nn.Hardswish()),
    "grouped": lambda width: conv(width, width, groups=4),
    "shuffled": lambda _: Shuffled(),
    "group norm": lambda width: nn.Sequential(nn.GroupNorm(4, width), nn.PReLU(width)),
    "transposed": lambda width: nn.ConvTranspose2d(width, width, 1),
}


def built(names: list[str], width: int, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    model = Classifier([BLOCKS[name](width) for name in names], width).eval()
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            for tensor in (one.weight.data, one.running_var):
                tensor.uniform_(0.5, 1.5)
            for tensor in (one.bias.data, one.running_mean):
                tensor.normal_()
    return model


def silenced(model: nn.Module, smaller: nn.Module) -> nn.Module:
    """The original, with zero for the inputs that plain layers of the smaller one do not have.

    Which ones those are is read off the values of the weights, not asked of what is tested.
    """
    answer = copy.deepcopy(model)
    small = dict(smaller.named_modules())
    for name, layer in answer.named_modules():
        if not isinstance(layer, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
            continue
        weight, less = layer.weight.data, small[name].weight.data
        if isinstance(layer, nn.ConvTranspose2d):
            weight, less = weight.transpose(0, 1), less.transpose(0, 1)
        elif isinstance(layer, nn.Conv2d) and layer.groups > 1:
            continue
        row = next(one for one in weight if torch.isin(less[0], one).all())
        kept = torch.isin(row.flatten(1) if row.ndim > 1 else row[:, None], less[0]).all(dim=1)
        weight[:, ~kept] = 0.0
    return answer


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=4),
    scope=st.sampled_from(["layer", "global"]),
    share=st.sampled_from([0.3, 0.5, 0.8]),
    multiple=st.sampled_from([1, 4]),
)
def test_what_is_left_computes_what_the_original_does_without_the_channels(
    names: list[str], scope: str, share: float, multiple: int
) -> None:
    model = built(names, 16)
    smaller = prune_channels(model, EXAMPLE, half(scope, share=share), multiple=multiple).model
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())
    if not {"grouped", "depthwise"} & set(names):  # what reads in groups is not silenced above
        wanted = silenced(model, smaller).double()(EXAMPLE[0].double())
        torch.testing.assert_close(smaller.double()(EXAMPLE[0].double()), wanted)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_half_of_the_channels_of_every_kind_of_block_go(name: str) -> None:
    model = built([name], 16)
    found = prune_channels(model, EXAMPLE, half(), multiple=1)
    assert found.left_whole == ()
    assert found.model.stem[0].out_channels == 8
    assert found.model.head.in_features == 32
    assert flops(found.model, EXAMPLE) < 0.6 * flops(model, EXAMPLE)
    found.model.train()(EXAMPLE[0]).sum().backward()  # it trains on
    assert model.stem[0].out_channels == 16


def test_a_global_share_never_empties_a_layer() -> None:
    families = [
        Family(units=np.arange(1, 17), width=1, weights=("a",)),
        Family(units=np.arange(17, 33), width=1, weights=("b",)),
    ]
    worths = [np.full(16, 1e-6), np.full(16, 1.0)]
    gone = going(families, worths, half("global", share=0.5), 8)
    assert (gone <= 16).sum() == 8
    gone = going(families, worths, half("global", share=0.99), 1)
    assert (gone <= 16).sum() == 15
    assert (gone > 16).sum() == 15


def test_the_channels_that_nothing_depends_on_go_first() -> None:
    model = built(["residual"], 16)
    block = model.blocks[0]
    with torch.no_grad():
        block.two[0].weight[:, ::2] = 0.0
        block.one[0].weight[::2] *= 9.0  # large, and never seen

    def loss_of(module: nn.Module, batch: Tensor) -> Tensor:
        return module(batch).square().mean()

    pruning = half("global", "taylor", share=0.25)
    found = prune_channels(model, EXAMPLE, pruning, batches=EXAMPLE, loss_of=loss_of, multiple=1)
    assert found.model.blocks[0].one[0].out_channels < 16
    torch.testing.assert_close(found.model(*EXAMPLE), model(*EXAMPLE))


class Strange(nn.Module):
    """Between two convolutions, something that a test names."""

    def __init__(self, between: str) -> None:
        super().__init__()
        self.one, self.two, self.three = conv(3, 16), conv(16, 16), nn.Conv2d(16, 4, 1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        match self.between:
            case "softmax":
                x = x.softmax(dim=1)
            case "norm":
                x = nn.functional.layer_norm(x.permute(0, 2, 3, 1), (16,)).permute(0, 3, 1, 2)
            case "mean":
                x = x - x.mean(dim=1, keepdim=True)
            case "sorted":
                x = x.sort(dim=1).values
            case "fixed":
                x = x.view(2, 16, 64).view(2, 16, 8, 8)
        return self.three(self.two(x).relu())


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("between", ["softmax", "norm", "mean", "sorted"])
def test_what_mixes_channels_is_left_whole_and_named(between: str) -> None:
    found = prune_channels(Strange(between).eval(), EXAMPLE, half(), multiple=1)
    assert found.model.one[0].out_channels == 16
    assert found.model.two[0].out_channels == 8
    assert len(found.left_whole) == 1


def test_code_that_fixes_sizes_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="fixes sizes") as caught:
        prune_channels(Strange("fixed").eval(), EXAMPLE, half(), multiple=1)
    assert "\n" not in str(caught.value)


def test_a_model_that_torch_export_cannot_follow_is_refused_in_one_line() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match="cannot follow") as caught:
        prune_channels(Branching(), EXAMPLE, half())
    assert "\n" not in str(caught.value)


def test_criteria_for_single_weights_are_refused() -> None:
    with pytest.raises(InputError, match="ranks single weights"):
        prune_channels(built(["residual"], 16), EXAMPLE, half(criterion="wanda"))
