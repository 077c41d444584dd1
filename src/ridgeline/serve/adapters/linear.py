"""A linear layer with the additions of many adapters: y = W x + b + B_i A_i x for a token of i.

Tokens T, inputs K, outputs N, adapters in memory S, largest rank R. Two ways to the same sum:

- *grouped*: the rows of each adapter are gathered, multiplied by its A and B at its own rank, and
  added back. Other rows are not touched. Best where groups are long: prefill.
- *masked*: x times the A of all adapters at once, zeros where an adapter is not the token's, times
  all B: [T, K] · [K, S R], mask, [T, S R] · [S R, N]. Four operators whatever the mix, and shapes
  that do not depend on it, as CUDA graphs and compiled decoding need. It multiplies S times too
  much, which is little beside W as long as S R is small beside K and N. Gathering each token's own
  A and B instead (as Punica's BGMV does in one kernel, Chen et al., 2310.18547, section 4) would
  copy R (K + N) numbers per token when it is done with PyTorch's operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.checkpoints.layers import features
from ridgeline.checkpoints.low_rank import LowRank

MOST_MASKED_TOKENS = 256
"""Up to so many tokens of several adapters the masked way is the faster on two CPU cores."""


@dataclass(frozen=True, slots=True)
class Use:
    """Which adapter each row of a forward has."""

    indices: Tensor
    """The adapter of each token, [T] int64; 0: none."""
    groups: tuple[tuple[int, Tensor | None], ...] | None = None
    """(adapter, its rows [·] int64, None: all of them); no groups at all: masked."""
    loaded: int | None = None
    """How many of the first adapters in memory matter to the masked way; None: all places."""
    mask: Tensor | None = None
    """[T, loaded, 1] bool; None: each layer makes it from `indices`, as a recorded graph must."""


def plan(indices: Tensor, *, static: bool) -> Use | None:
    """How one forward adds its adapters; None: no token has one.

    Args:
        indices: [T] int64.
        static: Always masked, without looking at the values: what graphs record must not depend
            on them, and on a GPU looking would wait for it.
    """
    if static or indices.is_cuda:
        return Use(indices)
    present = sorted(set(indices.tolist()) - {0})
    if not present:
        return None
    if len(present) > 1 and len(indices) <= MOST_MASKED_TOKENS:
        return Use(indices, loaded=present[-1], mask=_mask(indices, present[-1]))
    if len(present) == 1 and bool((indices == present[0]).all()):
        return Use(indices, ((present[0], None),))
    return Use(indices, tuple((i, (indices == i).nonzero().flatten()) for i in present))


def _mask(indices: Tensor, loaded: int) -> Tensor:
    slots = torch.arange(1, loaded + 1, device=indices.device)
    return (indices[:, None] == slots)[..., None]


class AdaptedLinear(nn.Module):
    """Stands where a linear layer stood, which it keeps as `base`."""

    def __init__(self, base: nn.Module, slots: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = base
        self.in_features, self.out_features = features(base)
        self.use: Use | None = None
        self.ranks = [0] * slots
        device = next((t.device for t in (*base.parameters(), *base.buffers())), None)
        self.register_buffer(
            "a", torch.zeros(slots, 0, self.in_features, dtype=dtype, device=device), False
        )
        self.register_buffer(
            "b", torch.zeros(slots, 0, self.out_features, dtype=dtype, device=device), False
        )

    a: Tensor
    """The matrices A of all adapters, [S, R, K]."""
    b: Tensor
    """The matrices B, [S, R, N], each transposed: the first adapters of all are one matrix."""

    def put(self, slot: int, pair: LowRank) -> bool:
        """Store one adapter's pair; whether the tensors moved, to hold a larger rank."""
        moved = pair.rank > self.a.shape[1]
        if moved:
            more = pair.rank - self.a.shape[1]
            # Both, or where memory ends, neither.
            a, b = (functional.pad(side, (0, 0, 0, more)) for side in (self.a, self.b))
            self.a, self.b = a, b
        self.clear(slot)
        self.a[slot, : pair.rank] = pair.a.to(self.a)
        self.b[slot, : pair.rank] = pair.b.T.to(self.b)
        self.ranks[slot] = pair.rank
        return moved

    def clear(self, slot: int) -> None:
        """Forget the numbers of one adapter."""
        self.a[slot].zero_()
        self.b[slot].zero_()
        self.ranks[slot] = 0

    def forward(self, x: Tensor) -> Tensor:
        """[…, K] to […, N]; the leading dimensions hold the rows that `use` speaks of."""
        out: Tensor = self.base(x)
        if self.use is None:
            return out
        rows, flat = x.reshape(-1, self.in_features), out.reshape(-1, self.out_features)
        if len(rows) != len(self.use.indices):
            raise RuntimeError(
                f"adapters are set for {len(self.use.indices)} tokens, the layer got {len(rows)}"
            )
        add = self._masked if self.use.groups is None else self._grouped
        add(rows, flat, self.use)
        return flat.view(out.shape)

    def _grouped(self, rows: Tensor, out: Tensor, use: Use) -> None:
        for index, where in use.groups or ():
            slot = index - 1
            rank = self.ranks[slot]
            if not rank:
                continue
            a, b = self.a[slot, :rank], self.b[slot, :rank]
            if where is None:
                out.addmm_(functional.linear(rows.to(a.dtype), a), b)
            else:
                hidden = functional.linear(rows[where].to(a.dtype), a)
                out.index_add_(0, where, hidden.mm(b).to(out.dtype))

    def _masked(self, rows: Tensor, out: Tensor, use: Use) -> None:
        loaded = self.a.shape[0] if use.loaded is None else use.loaded
        mask = _mask(use.indices, loaded) if use.mask is None else use.mask
        hidden = functional.linear(rows.to(self.a.dtype), self.a[:loaded].flatten(0, 1))
        hidden = (hidden.view(len(rows), loaded, -1) * mask).flatten(1)
        out.addmm_(hidden, self.b[:loaded].flatten(0, 1))
