"""What kernels read and write under the interpreter: bytes, bounds and places written twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder


@dataclass
class Traffic:
    """Addresses of the bytes that were touched while it watched."""

    loads: list[np.ndarray] = field(default_factory=list)
    stores: list[np.ndarray] = field(default_factory=list)

    @property
    def unique_bytes(self) -> int:
        """Bytes read at least once, and bytes written at least once."""
        return sum(len(np.unique(_joined(found))) for found in (self.loads, self.stores))

    @property
    def total_bytes(self) -> int:
        return sum(len(_joined(found)) for found in (self.loads, self.stores))

    @property
    def bytes_stored_twice(self) -> int:
        stored = _joined(self.stores)
        return len(stored) - len(np.unique(stored))

    def bytes_outside(self, *tensors: torch.Tensor) -> int:
        """How many touched bytes lie in none of these tensors' storages."""
        touched = np.unique(_joined([*self.loads, *self.stores]))
        known = np.zeros(len(touched), dtype=bool)
        for tensor in tensors:
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            known |= (touched >= start) & (touched < start + storage.nbytes())
        return int((~known).sum())


def _joined(found: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _bytes_of(pointers: Any, mask: Any) -> np.ndarray:
    kind = pointers.get_element_ty()
    wide = max(1, kind.primitive_bitwidth // 8)
    active = np.asarray(pointers.data)[np.asarray(mask.data).astype(bool)].reshape(-1)
    return (active[:, None] + np.arange(wide, dtype=np.uint64)).reshape(-1)


@contextmanager
def watched() -> Iterator[Traffic]:
    """Watch every load and store of the kernels that run inside."""
    traffic = Traffic()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def masked_load(self: Any, pointers: Any, mask: Any, *rest: Any, **others: Any) -> Any:
        traffic.loads.append(_bytes_of(pointers, mask))
        return load(self, pointers, mask, *rest, **others)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        traffic.stores.append(_bytes_of(pointers, mask))
        return store(self, pointers, value, mask, *rest)

    InterpreterBuilder.create_masked_load = masked_load
    InterpreterBuilder.create_masked_store = masked_store
    try:
        yield traffic
    finally:
        InterpreterBuilder.create_masked_load = load
        InterpreterBuilder.create_masked_store = store
