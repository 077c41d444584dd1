"""The tensors behind the blocks that `batching/` keeps the books of.

`KvForm` says how keys and values are kept, as the model computes them or in 8 bits with scales;
`KvPool` allocates them, copies blocks, and hands those of a sequence to another engine and takes
them back. Who holds which block is decided in `batching/blocks.py`, never here.

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
"""Key-value heads and head size of one layer."""
STORED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class FixedScales:
    """The calibrated scales of one layer, [KV] float32 each."""

    keys: Tensor
    values: Tensor

    def same(self, other: FixedScales) -> bool:
        """Whether levels mean the same number."""
        return torch.equal(self.keys, other.keys) and torch.equal(self.values, other.values)


@dataclass(frozen=True, slots=True)
class KvForm:
    """How the keys and values of all layers are kept."""

    dtype: torch.dtype
    fixed: tuple[FixedScales, ...] = ()
    """Calibrated scales by layer; empty: in 8 bits, every token and head has a scale of its own."""

    @property
    def scaled_by_token(self) -> bool:
        """Whether scales are stored beside the keys and values."""
        return self.dtype in STORED.values() and not self.fixed

    @property
    def name(self) -> str:
        """The form as a memory ledger says it."""
        name = str(self.dtype).removeprefix("torch.")
        if self.fixed:
            return f"{name}, scales of the checkpoint"
        return f"{name}, a scale per token and head" if self.scaled_by_token else name

    def bytes_per_token(self, shapes: Sequence[KvShape]) -> int:
        """Keys and values of all layers, and the scales beside them."""
        scale = SCALE_BYTES if self.scaled_by_token else 0
        return sum(2 * heads * (size * self.dtype.itemsize + scale) for heads, size in shapes)


def form_of(asked: KvDtype, model_dtype: torch.dtype, stored: KvForm | None = None) -> KvForm:
    """What `--kv-dtype` means for a model.

    Args:
        asked: `model`: as the checkpoint says. int8 and fp8: with a scale per token and head, also
            where the checkpoint has scales, since those may be of the other type.
        model_dtype: In which keys and values are computed.
        stored: What the checkpoint says of them, if it does.
    """
    if asked != "model":
        return KvForm(STORED[asked])
    return stored or KvForm(model_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceKv:
    """Keys and values of one sequence, out of their blocks; what goes to another engine."""

    tokens: tuple[int, ...]
    """Prompt and what was generated; the last one's keys are not computed yet."""
    keys: tuple[Tensor, ...]
    """Keys by layer, [KV, T, D], with T one less than `tokens`, in the cache's dtype."""
    values: tuple[Tensor, ...]
    key_scales: tuple[Tensor, ...] = ()
    """Scales by layer, where the cache is quantised: [KV, T], or [KV] where they are fixed."""
    value_scales: tuple[Tensor, ...] = ()


class KvPool:
    """The blocks of all layers, not filled at first: a CPU gives memory only to blocks in use."""

    def __init__(
        self,
        shapes: Sequence[KvShape],
        *,
        num_blocks: int,
        block_size: int,
        form: KvForm,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.form = form
        self.device = device

        def blocks(heads: int, *size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(num_blocks, heads, block_size, *size, dtype=dtype, device=device)

        def scales(heads: int, layer: int) -> tuple[Tensor | None, Tensor | None]:
            if form.fixed:
                fixed = form.fixed[layer]
                return fixed.keys.to(device), fixed.values.to(device)
            if not form.scaled_by_token:
                return None, None
            return blocks(heads, dtype=torch.float32), blocks(heads, dtype=torch.float32)

        self.layers = [
            LayerCache(
                blocks(heads, size, dtype=form.dtype),
                blocks(heads, size, dtype=form.dtype),
                *scales(heads, layer),
            )
            for layer, (heads, size) in enumerate(shapes)
        ]

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that lies in blocks."""
        kinds = ["keys", "values"]
        if self.form.scaled_by_token:
            kinds += ["key_scales", "value_scales"]
        return [getattr(layer, kind) for layer in self.layers for kind in kinds]

    @property
    def bytes(self) -> int:
        """Bytes of all that is allocated."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (from, to), at least one pair; all are read before any is written."""
        origins, targets = (
            torch.tensor(ids, device=self.device) for ids in zip(*pairs, strict=True)
        )
        for tensor in self.tensors:
            tensor[targets] = tensor[origins]

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy tokens from slot to slot, at least one pair; all are read before any is written."""
        size, device = self.block_size, self.device
        origins, targets = (torch.tensor(ids, device=device) for ids in zip(*pairs, strict=True))
        for tensor in self.tensors:
            tensor[targets // size, :, targets % size] = tensor[origins // size, :, origins % size]

    def read(self, blocks: Sequence[int], tokens: Sequence[int]) -> SequenceKv:
        """Copy of the keys and values of all `tokens` but the last, which lie in `blocks`."""
        length = len(tokens) - 1
        table = torch.tensor(blocks, device=self.device)

        def line(stored: Tensor) -> Tensor:
            return stored[table].transpose(0, 1).flatten(1, 2)[:, :length].contiguous()

        def scales(kind: str) -> tuple[Tensor, ...]:
            if self.form.scaled_by_token:
                return tuple(line(getattr(layer, kind)) for layer in self.layers)
            return tuple(getattr(layer, kind) for layer in self.layers if self.form.fixed)

        return SequenceKv(
            tokens=tuple(tokens),
            keys=tuple(line(layer.keys) for layer in self.layers),
            values=tuple(line(layer.values) for layer in self.layers),
            key_scales=scales("key_scales"),
            value_scales=scales("value_scales"),
        )

    def write(self, blocks: Sequence[int], kv: SequenceKv) -> None:
        """Write what `read` of another pool gave into these blocks; raises as `check`."""
        self.check(kv)
        length = len(kv.tokens) - 1
        at = torch.arange(length, device=self.device)
        table = torch.tensor(blocks, device=at.device)
        where = (table[at // self.block_size], slice(None), at % self.block_size)
        for index, layer in enumerate(self.layers):
            layer.keys[where] = kv.keys[index].to(at.device).transpose(0, 1)
            layer.values[where] = kv.values[index].to(at.device).transpose(0, 1)
            if self.form.scaled_by_token:
                assert layer.key_scales is not None
                assert layer.value_scales is not None
                layer.key_scales[where] = kv.key_scales[index].to(at.device).T
                layer.value_scales[where] = kv.value_scales[index].to(at.device).T

    def check(self, kv: SequenceKv) -> None:
        """Raise `InputError` if these keys and values are not of this pool's shapes and form."""
        mine = [
            (layer.keys.shape[1], layer.keys.shape[3], layer.keys.dtype) for layer in self.layers
        ]
        theirs = [(keys.shape[0], keys.shape[2], keys.dtype) for keys in kv.keys]
        if mine != theirs or not self._reads(kv):
            raise InputError(
                "the keys and values that came from the other engine do not fit this one's cache: "
                "start both with the same model, --dtype and --kv-dtype"
            )

    def _reads(self, kv: SequenceKv) -> bool:
        """Whether levels mean the same number in both."""
        if not self.form.fixed:
            by_token = all(scales.ndim == 2 for scales in kv.key_scales)
            return by_token and bool(kv.key_scales) == self.form.scaled_by_token
        theirs = zip(kv.key_scales, kv.value_scales, strict=True)
        scales = [FixedScales(*(one.cpu() for one in both)) for both in theirs]
        return len(scales) == len(self.form.fixed) and all(
            mine.same(other) for mine, other in zip(self.form.fixed, scales, strict=True)
        )
