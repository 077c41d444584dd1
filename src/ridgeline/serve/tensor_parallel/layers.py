"""Modules around a share of a layer: they add up, or put together, what the shares gave.

The linear layer inside stays a child of its own, so that it can be packed or quantised like any
other. A layer that is cut along its outputs needs no module: its output is a share, and the layer
behind it, cut along its inputs, takes that share.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ridgeline.serve.tensor_parallel.group import RankLine


class SummedLinear(nn.Module):
    """A linear layer of which each rank has some of the inputs: outputs are added up."""

    def __init__(self, inner: nn.Module, group: RankLine, *, takes_all: bool) -> None:
        """Wrap this rank's share of the layer.

        Args:
            inner: The share; only the first rank's has a bias.
            group: The ranks.
            takes_all: It is given all inputs, and not this rank's alone.
        """
        super().__init__()
        self.inner = inner
        self._group = group
        self._takes_all = takes_all

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs], the same on all ranks."""
        if self._takes_all:
            x = x.chunk(self._group.size, -1)[self._group.rank]
        return self._group.add_up(self.inner(x))


class GatheredLinear(nn.Module):
    """A linear layer of which each rank has some of the outputs: all are put together."""

    def __init__(self, inner: nn.Module, group: RankLine, out_features: int) -> None:
        super().__init__()
        self.inner = inner
        self._group = group
        self._out_features = out_features

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs], the same on all ranks."""
        return self._group.put_together(self.inner(x))[..., : self._out_features]


class SplitEmbedding(nn.Module):
    """An embedding of which each rank has some of the words: one rank's row, the others' zeros."""

    def __init__(self, inner: nn.Module, group: RankLine, num_words: int) -> None:
        """Wrap this rank's share of the layer.

        Args:
            inner: The embedding of this rank's words.
            group: The ranks.
            num_words: Words of a rank; the last one's may be fewer.
        """
        super().__init__()
        self.inner = inner
        self._group = group
        self._num_words = num_words

    def forward(self, ids: Tensor) -> Tensor:
        """[...] to [..., width], the same on all ranks."""
        own = ids - self._group.rank * self._num_words
        others = (own < 0) | (own >= self._num_words)
        rows = self.inner(own.masked_fill(others, 0))
        return self._group.add_up(rows.masked_fill(others[..., None], 0))


def add_up_outputs(module: nn.Module, group: RankLine) -> None:
    """Let a module (a mixture's experts) answer with the sum over all ranks.

    A hook, and no module around it: whoever owns experts reads more of them than their output.
    """

    def summed(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        return group.add_up(output)

    module.register_forward_hook(summed)


def keep_own_experts(module: Any, group: RankLine) -> None:
    """Let a mixture's experts compute what was sent to those of this rank, and nothing else.

    Every rank has all tokens, so none is sent anywhere; those that no expert here wants get zeros.

    Args:
        module: The experts, with this rank's weights, counted from the rank's first one.
        group: The ranks, which have equally many.
    """
    count = len(next(module.parameters()))
    first = group.rank * count
    computed = module.forward
    module.num_experts = count

    def forward(states: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """[T, width], [T, k] numbers and [T, k] weights of experts to [T, width], to be summed."""
        own = experts - first
        tokens, choices = ((own >= 0) & (own < count)).nonzero(as_tuple=True)
        found = states.new_zeros(states.shape)
        if len(tokens):
            chosen = own[tokens, choices, None], weights[tokens, choices, None]
            found.index_add_(0, tokens, computed(states[tokens], *chosen).to(found.dtype))
        return found

    module.forward = forward
