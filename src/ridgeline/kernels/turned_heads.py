"""Rotary embeddings of a model: the functions of its files that turn queries and keys.

Models of transformers have `apply_rotary_pos_emb(q, k, cos, sin)` in their file, and scripts that
are written after them do, too. What such a function computes is found by random numbers: pairs of
halves or of neighbours; cos and sin as they are, or halves to be repeated; a head as a whole, or
its beginning alone; and whether results keep the heads' dtype where cos has another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.kernels.agreement import is_close
from ridgeline.kernels.rotary import rotary

TURNING = "*:apply_rotary_pos_emb"
"""The function of a model's file, whichever file that is."""


@dataclass(frozen=True)
class _Turn:
    """What a function computes."""

    interleaved: bool
    repeated: bool
    """Whether the first half of cos and sin holds for both numbers of a pair."""
    partial: bool = False
    mixed: bool = False
    """Whether results keep the heads' dtype where cos and sin have another."""

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        size = cos.shape[-1]
        if self.repeated:
            cos, sin = (one[..., : size // 2].repeat_interleave(2, -1) for one in (cos, sin))
        if size == q.shape[-1]:
            return rotary(q, k, cos, sin, interleaved=self.interleaved)
        turned = rotary(q[..., :size], k[..., :size], cos, sin, interleaved=self.interleaved)
        rest = (q[..., size:], k[..., size:])
        first, second = (torch.cat(both, -1) for both in zip(turned, rest, strict=True))
        return first, second


_TURNS = (_Turn(False, False), _Turn(True, False), _Turn(True, True))


def turning_files(model: nn.Module) -> list[tuple[str, Callable[[Any], Any]]]:
    """Names of the functions that this model's modules find in their files, and what replaces them.

    A function is left alone that computes something else.
    """
    found = []
    for file in sorted({type(module).__module__ for module in model.modules()}):
        original = getattr(sys.modules.get(file), "apply_rotary_pos_emb", None)
        turn = None if original is None else _turn_of(original)
        if turn is not None:
            found.append((TURNING.replace("*", file), _replacing(turn)))
    return found


def _turn_of(original: Any) -> _Turn | None:
    for turn in _TURNS:
        if _alike(original, turn, 8, torch.float32):
            partial = _alike(original, turn, 6, torch.float32)
            mixed = _alike(original, turn, 8, torch.bfloat16)
            return _Turn(turn.interleaved, turn.repeated, partial, mixed)
    return None


def _alike(original: Any, turn: _Turn, size: int, dtype: torch.dtype) -> bool:
    """Whether a function and a turn give the same of heads of 8, of which `size` are turned."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(2, heads, 3, 8, generator=generator).to(dtype) for heads in (4, 2))
    theta = torch.randn(1, 3, size, generator=generator)
    given = (queries, keys, theta.cos(), theta.sin())
    try:
        wanted = original(*given)
        return all(is_close(a, b) for a, b in zip(turn(*given), wanted, strict=True))
    except Exception:  # it takes other arguments
        return False


def _replacing(turn: _Turn) -> Callable[[Any], Any]:
    """A function of a model's file that turns queries and keys, by the kernel where that fits."""

    def make(original: Any) -> Any:
        def apply_rotary_pos_emb(
            q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            if args or kwargs.get("unsqueeze_dim", 1) != 1 or not _fits(turn, q, k, cos, sin):
                return original(q, k, cos, sin, *args, **kwargs)  # type: ignore[no-any-return]
            return turn(q, k, cos, sin)

        return apply_rotary_pos_emb

    return make


def _fits(turn: _Turn, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    if q.dim() != 4 or k.dim() != 4 or cos.dim() != 3 or cos.shape != sin.shape:
        return False
    size, whole = cos.shape[-1], q.shape[-1]
    alike = q.dtype == k.dtype and (turn.mixed or q.dtype == cos.dtype == sin.dtype)
    places = k.shape[2] == q.shape[2] == cos.shape[1] and cos.shape[0] in (1, q.shape[0])
    sizes = k.shape[-1] == whole and (size == whole or (turn.partial and size < whole))
    return alike and places and sizes and size % 2 == 0 and not cos.requires_grad
