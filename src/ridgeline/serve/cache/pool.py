"""Keys and values of all layers in blocks: allocation, copy-on-write, handing over.

Shapes: N blocks, KV key-value heads, B tokens a block, D head size, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.paged_attention import LayerCache

KvDtype = Literal["model", "fp8", "int8"]
KvShape = tuple[int, int]
"""Of one layer: key-value heads, head size."""
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceKv:
    """Keys and values of one sequence, out of their blocks; what goes to another engine."""

    tokens: tuple[int, ...]
    """Prompt and what was generated; the last one's keys are not computed yet."""
    keys: tuple[Tensor, ...]
    """By layer: [KV, T, D], with T one less than `tokens`, in the cache's dtype."""
    values: tuple[Tensor, ...]
    key_scales: tuple[Tensor, ...] = ()
    """By layer: [KV, T], where the cache is quantised."""
    value_scales: tuple[Tensor, ...] = ()


class KvPool:
    """All layers' blocks. Not filled at first, so a CPU gives memory only to blocks in use."""

    def __init__(
        self,
        shapes: Sequence[KvShape],
        *,
        num_blocks: int,
        block_size: int,
        kv_dtype: KvDtype,
        like: Tensor,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        dtype = stored_dtype(kv_dtype, like.dtype)
        device = like.device
        scaled = kv_dtype != "model"

        def blocks(heads: int, size: int) -> Tensor:
            return torch.empty(num_blocks, heads, block_size, size, dtype=dtype, device=device)

        def scales(heads: int) -> Tensor | None:
            return torch.ones(num_blocks, heads, block_size, device=device) if scaled else None

        self.layers = [
            LayerCache(blocks(heads, size), blocks(heads, size), scales(heads), scales(heads))
            for heads, size in shapes
        ]

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that is allocated."""
        return [tensor for layer in self.layers for tensor in _stored(layer)]

    @property
    def bytes(self) -> int:
        """Of all that is allocated."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (from, to) in every layer; all are read before any is written."""
        if not pairs:
            return
        origins, targets = (
            torch.tensor(ids, device=self.layers[0].keys.device) for ids in zip(*pairs, strict=True)
        )
        for tensor in self.tensors:
            tensor[targets] = tensor[origins]

    def take_out(self, blocks: Sequence[int], tokens: Sequence[int]) -> SequenceKv:
        """Copy of the keys and values of all `tokens` but the last, which lie in `blocks`."""
        length = len(tokens) - 1
        table = torch.tensor(blocks, device=self.layers[0].keys.device)

        def line(stored: Tensor) -> Tensor:
            return stored[table].transpose(0, 1).flatten(1, 2)[:, :length].contiguous()

        scaled = [layer for layer in self.layers if layer.key_scales is not None]
        return SequenceKv(
            tokens=tuple(tokens),
            keys=tuple(line(layer.keys) for layer in self.layers),
            values=tuple(line(layer.values) for layer in self.layers),
            key_scales=tuple(line(layer.key_scales) for layer in scaled),  # type: ignore[arg-type]
            value_scales=tuple(line(layer.value_scales) for layer in scaled),  # type: ignore[arg-type]
        )

    def put_in(self, blocks: Sequence[int], kv: SequenceKv) -> None:
        """Write what `take_out` of another pool gave into these blocks; raises as `check`."""
        self.check(kv)
        length = len(kv.tokens) - 1
        at = torch.arange(length, device=self.layers[0].keys.device)
        table = torch.tensor(blocks, device=at.device)
        where = (table[at // self.block_size], slice(None), at % self.block_size)
        for index, layer in enumerate(self.layers):
            layer.keys[where] = kv.keys[index].to(at.device).transpose(0, 1)
            layer.values[where] = kv.values[index].to(at.device).transpose(0, 1)
            if layer.key_scales is not None and layer.value_scales is not None:
                layer.key_scales[where] = kv.key_scales[index].to(at.device).T
                layer.value_scales[where] = kv.value_scales[index].to(at.device).T

    def check(self, kv: SequenceKv) -> None:
        """Raise `InputError` if these keys and values are not of this pool's shapes and dtype."""
        mine = [
            (layer.keys.shape[1], layer.keys.shape[3], layer.keys.dtype) for layer in self.layers
        ]
        theirs = [(keys.shape[0], keys.shape[2], keys.dtype) for keys in kv.keys]
        if mine != theirs:
            raise InputError(
                "the keys and values that came from the other engine do not fit this one's cache: "
                "start both with the same model, --dtype and --kv-dtype"
            )


def stored_dtype(kv_dtype: KvDtype, model_dtype: torch.dtype) -> torch.dtype:
    """In which keys and values are kept."""
    return {"model": model_dtype, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[kv_dtype]


def bytes_per_token(shapes: Sequence[KvShape], kv_dtype: KvDtype, model_dtype: torch.dtype) -> int:
    """Keys and values of all layers, scales included."""
    item = stored_dtype(kv_dtype, model_dtype).itemsize
    scale = 0 if kv_dtype == "model" else SCALE_BYTES
    return sum(2 * heads * (size * item + scale) for heads, size in shapes)


def _stored(layer: LayerCache) -> list[Tensor]:
    kinds = (layer.keys, layer.values, layer.key_scales, layer.value_scales)
    return [tensor for tensor in kinds if tensor is not None]
