"""Whole blocks that hardly change what flows through them, pruned.

How much a block matters is 1 - E[cos(x, y)] over tokens, of what enters and what leaves it (Men et
al., "ShortGPT", arXiv 2403.03853, equation 1: block influence); or, dearer and closer to what is
wanted, how much the loss rises without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError


def influence(entering: Tensor, leaving: Tensor) -> float:
    """1 - mean cosine of a block's input and output, each [tokens, hidden]."""
    x, y = entering.float(), leaving.float()
    return 1.0 - float(torch.cosine_similarity(x, y, dim=-1).mean())


def loss_without(blocks: Sequence[nn.Module], loss: Callable[[], float]) -> list[float]:
    """The loss with each block left out in turn; `loss` runs the whole model."""
    found = []
    for block in blocks:
        with _skipped(block):
            found.append(loss())
    return found


@contextmanager
def _skipped(block: nn.Module) -> Iterator[None]:
    """What enters it leaves it, in the form that its class returns."""

    def unchanged(_module: nn.Module, args: tuple[Tensor, ...], output: object) -> object:
        return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]

    handle = block.register_forward_hook(unchanged)
    try:
        yield
    finally:
        handle.remove()


def kept_layers(worth: Sequence[float], share: float) -> list[int]:
    """Places of the blocks that stay, in order: round(share · blocks) of least worth go.

    Raises:
        InputError: None would go, or none would stay.

    >>> kept_layers([0.9, 0.1, 0.2, 0.5], 0.5)
    [0, 3]
    """
    removed = round(share * len(worth))
    if not 0 < removed < len(worth):
        raise InputError(
            f"a share of {share:g} of {len(worth)} layers is {removed}; one at least must go, and"
            " one stay"
        )
    going = sorted(range(len(worth)), key=lambda place: worth[place])[:removed]
    return [place for place in range(len(worth)) if place not in going]


def renamed(name: str, blocks: str, kept: Sequence[int]) -> str | None:
    """The name of a tensor in the model without the other blocks; None: it goes with its block.

    Args:
        name: As the model had it.
        blocks: Name of the list of blocks.
        kept: Places that stay.

    >>> renamed("model.layers.3.mlp.up_proj.weight", "model.layers", [0, 3])
    'model.layers.1.mlp.up_proj.weight'
    """
    found = re.match(re.escape(blocks) + r"\.(\d+)\.", name)
    if found is None:
        return name
    place = int(found[1])
    if place not in kept:
        return None
    return f"{blocks}.{list(kept).index(place)}.{name[found.end() :]}"
