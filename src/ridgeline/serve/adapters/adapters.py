"""All LoRA adapters of one engine (Hu et al., 2106.09685): names, memory, which token uses which.

    adapters = Adapters(model, max_adapters=8)
    index = adapters.load("sql", examined("adapters/sql"))
    adapters.use(torch.tensor([index, index, 0]))   # of the three tokens of the next forward
    model(...)

An adapter that was evicted is read again from its file when `index` asks for it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.adapters import AdapterFile
from ridgeline.checkpoints.layers import features, place_module
from ridgeline.checkpoints.low_rank import LowRank, read_low_rank
from ridgeline.errors import InputError
from ridgeline.serve.adapters.linear import AdaptedLinear, plan
from ridgeline.serve.messages import MemoryRow


class NoRoom(InputError):
    """Every adapter in memory is in use; the request may come again later."""


class Adapters:
    """Indices 1 … max_adapters are places in memory; 0 is the model itself.

    `busy` in the methods below are names that the engine has requests for: they are not evicted.
    """

    def __init__(
        self, model: nn.Module, max_adapters: int, dtype: torch.dtype | None = None
    ) -> None:
        if max_adapters < 1:
            raise InputError(f"--max-adapters {max_adapters}: at least 1 is needed")
        self._model = model
        self._dtype = dtype or next(p.dtype for p in model.parameters() if p.is_floating_point())
        self._head = _output_layer(model)
        self._files: dict[str, AdapterFile] = {}
        self.names: tuple[str, ...] = ()
        """The names that requests may ask for, in memory or not."""
        self._loads: dict[str, int] = {}
        self._slots: list[str | None] = [None] * max_adapters
        self._recent: dict[str, None] = {}
        """Names in memory, the least recently used first."""
        self._wrapped: dict[str, AdaptedLinear] = {}
        self.layout_version = 0
        """Grows when layers were wrapped or their tensors moved: CUDA graphs and compiled code from
        before must not be used any more."""

    @property
    def loaded(self) -> tuple[str, ...]:
        """In memory, the least recently used first."""
        return tuple(self._recent)

    def key(self, name: str) -> str:
        """What separates cached prefixes: another adapter under the same name has another key."""
        return f"{name}#{self._loads[name]}" if name else ""

    def load(self, name: str, file: AdapterFile, busy: Collection[str] = ()) -> int:
        """Make an adapter known and bring it into memory; returns its index.

        Raises:
            NoRoom: Every place is taken by a busy adapter.
            InputError: The name is taken, or the file holds nothing that fits this model.
        """
        if not name:
            raise InputError("an adapter needs a name")
        if name in self._files:
            raise InputError(f"adapter {name} is loaded already; unload it first")
        index = self._read(name, file, busy)
        self._files[name] = file
        self.names = tuple(self._files)
        self._loads[name] = self._loads.get(name, 0) + 1
        return index

    def unload(self, name: str, busy: Collection[str] = ()) -> None:
        """Forget an adapter and free its place.

        Raises:
            InputError: There is none of that name, or requests use it.
        """
        self._check_known(name)
        if name in busy:
            raise InputError(f"adapter {name} is in use; unload it when its requests have ended")
        if name in self._recent:
            self._evict(name)
        del self._files[name]
        self.names = tuple(self._files)

    def index(self, name: str, busy: Collection[str] = ()) -> int:
        """The index of an adapter by name ("" is 0), which is read again if it was evicted.

        Raises:
            NoRoom: It was evicted, and every place is taken by a busy adapter.
            InputError: There is none of that name.
        """
        if not name:
            return 0
        self._check_known(name)
        if name not in self._recent:
            return self._read(name, self._files[name], busy)
        self._recent[name] = self._recent.pop(name)
        return self._slots.index(name) + 1

    def use(
        self, indices: Tensor | None, logit_rows: Tensor | None = None, *, static: bool = False
    ) -> None:
        """Say which adapter each token of the coming forwards has, until it is said again.

        Args:
            indices: [T] int64 on the model's device, 0: none; None: no token has one.
            logit_rows: [R] int64: the tokens whose logits are computed; None: all.
            static: The forward is recorded or compiled: always compute in the same shapes.
        """
        tokens = None if indices is None else plan(indices, static=static)
        rows = tokens
        if indices is not None and logit_rows is not None and self._head in self._wrapped:
            rows = plan(indices[logit_rows], static=static)
        for name, layer in self._wrapped.items():
            layer.use = rows if name == self._head else tokens

    def memory(self) -> list[MemoryRow]:
        """The memory of the tensors of all places, filled or not."""
        held = sum(t.nbytes for layer in self._wrapped.values() for t in (layer.a, layer.b))
        if not held:
            return []
        note = f"{len(self._slots)} places over {len(self._wrapped)} layers"
        return [MemoryRow(what="adapters", bytes=held, note=note)]

    def _check_known(self, name: str) -> None:
        if name not in self._files:
            known = ", ".join(self._files) or "none"
            raise InputError(f"there is no adapter {name}; loaded: {known}")

    def _read(self, name: str, file: AdapterFile, busy: Collection[str]) -> int:
        self._check_fit(file)
        pairs = {
            layer: self._fitting(file, layer, pair) for layer, pair in read_low_rank(file).items()
        }
        slot = self._free_slot(busy)
        moved = False
        try:
            for layer, pair in pairs.items():
                if layer not in self._wrapped:
                    self._wrap(layer)
                    moved = True
                moved |= self._wrapped[layer].put(slot, pair)
        except BaseException:  # no memory for it: not a part of it stays
            for wrapped in self._wrapped.values():
                wrapped.clear(slot)
            self.layout_version += 1
            raise
        self.layout_version += moved
        self._slots[slot] = name
        self._recent[name] = None
        return slot + 1

    def _fitting(self, file: AdapterFile, layer: str, pair: LowRank) -> LowRank:
        """In the dtype in which it is kept."""
        kept = LowRank(pair.a.to(self._dtype), pair.b.to(self._dtype))
        if not (kept.a.isfinite().all() and kept.b.isfinite().all()):
            raise InputError(
                f"{file.path} adapts {layer} by numbers beyond {self._dtype}; is lora_alpha right?"
            )
        return kept

    def _check_fit(self, file: AdapterFile) -> None:
        for layer in file.layers:
            says = f"{Path(file.path).parent} adapts {layer.name[:200]}"
            try:
                inputs, outputs = features(self._model.get_submodule(layer.name))
            except AttributeError:
                raise InputError(
                    f"{says}, which is no linear layer of this model; it was made for another model"
                ) from None
            if ".experts." in layer.name:
                raise InputError(f"{says}: routed experts cannot have adapters")
            if (layer.a.shape[1], layer.b.shape[0]) != (inputs, outputs):
                raise InputError(
                    f"{says} as {layer.a.shape[1]} → {layer.b.shape[0]}, but it is"
                    f" {inputs} → {outputs}; it was made for another model"
                )

    def _free_slot(self, busy: Collection[str]) -> int:
        if None not in self._slots:
            idle = next((name for name in self._recent if name not in busy), None)
            if idle is None:
                raise NoRoom(
                    f"all {len(self._slots)} adapters in memory are in use; try again later, or"
                    " start with a larger --max-adapters"
                )
            self._evict(idle)
        return self._slots.index(None)

    def _evict(self, name: str) -> None:
        slot = self._slots.index(name)
        for layer in self._wrapped.values():
            layer.clear(slot)
        self._slots[slot] = None
        del self._recent[name]

    def _wrap(self, name: str) -> None:
        layer = AdaptedLinear(self._model.get_submodule(name), len(self._slots), self._dtype)
        place_module(self._model, name, layer)
        self._wrapped[name] = layer


def _output_layer(model: nn.Module) -> str | None:
    """Name of the layer that makes logits, which sees other rows than the rest."""
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if getter is not None else None
    return next((name for name, module in model.named_modules() if module is head), None)
