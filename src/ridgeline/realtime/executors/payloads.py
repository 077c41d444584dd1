"""A frame's data on its way between processes: arrays and tensors by place, all else by pickle.

Pickle's protocol 5 hands buffers out (PEP 574); NumPy gives its own, and a tensor is turned into
an array of the same memory first. They are copied once, into the writer's slot; readers build their
arrays on the shared memory itself. The rest of a value (lists, dataclasses, numbers) travels in
the message.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ridgeline.realtime.executors.arenas import Arena, MemorySlot

ALIGNMENT_BYTES = 64
"""A cache line, and the alignment that vector instructions like."""


class SharedPayload(msgspec.Struct, frozen=True, array_like=True):
    """The pickle of one value, and where its buffers lie."""

    body: bytes
    slot: MemorySlot | None = None
    """Where its buffers lie; None: it has none."""
    spans: tuple[tuple[int, int], ...] = ()
    """Start within the slot and length of each buffer, in bytes."""


class _FramePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Arrays and tensors in an order in which their memory is one piece."""
        if type(value) is np.ndarray:
            contiguous = value.flags.c_contiguous or value.flags.f_contiguous
            if contiguous or value.dtype.hasobject:
                return NotImplemented
            return np.ascontiguousarray(value).__reduce_ex__(5)
        torch = sys.modules.get("torch")
        if torch is not None and type(value) in {torch.Tensor, torch.nn.Parameter}:
            return _reduced_tensor(torch, value)
        return NotImplemented


def _reduced_tensor(torch: Any, tensor: Any) -> Any:
    if tensor.device.type != "cpu":
        raise TypeError(f"a tensor on {tensor.device}: processes share the host's memory")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return NotImplemented
    tensor = tensor.detach().resolve_conj().resolve_neg()
    order = tuple(sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis)))
    piece = tensor.permute(order).contiguous()  # no copy for channels_last and its kind
    numpy_knows = tensor.dtype in _dtypes_of_numpy(torch)
    plain = piece if numpy_knows else piece.view(_same_size(torch, tensor.dtype))
    dtype = "" if numpy_knows else str(tensor.dtype).removeprefix("torch.")
    return _tensor_of, (plain.numpy(), dtype, order)


@functools.cache
def _dtypes_of_numpy(torch: Any) -> frozenset[Any]:
    names = ("bool", "uint8", "int8", "int16", "int32", "int64",
             "float16", "float32", "float64", "complex64", "complex128")  # fmt: skip
    return frozenset(getattr(torch, name) for name in names)


def _same_size(torch: Any, dtype: Any) -> Any:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]


def _tensor_of(array: Any, dtype: str, order: tuple[int, ...]) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    if dtype:
        tensor = tensor.view(getattr(torch, dtype))
    back = [0] * len(order)
    for place, axis in enumerate(order):
        back[axis] = place
    return tensor.permute(back)


def pack(value: Any, arena: Arena, offered: MemorySlot | None) -> SharedPayload:
    """Write a value's buffers into a slot of the arena, the offered one where they fit.

    Raises:
        Exception: Whatever pickle says of a value that it cannot take.
    """
    body = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _FramePickler(body, protocol=5, buffer_callback=buffers.append).dump(value)
    pieces = [buffer.raw() for buffer in buffers]
    if not pieces:
        return SharedPayload(body.getvalue())
    spans = []
    end = 0
    for piece in pieces:
        start = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        end = start + piece.nbytes
        spans.append((start, piece.nbytes))
    slot = arena.fitting(offered, max(end, 1))
    memory = np.frombuffer(arena.memory(slot), np.uint8)
    for piece, (start, length) in zip(pieces, spans, strict=True):
        memory[start : start + length] = np.frombuffer(piece, np.uint8)
    return SharedPayload(body.getvalue(), slot, tuple(spans))


def unpack(payload: SharedPayload, arenas: Sequence[Arena]) -> tuple[Any, list[weakref.ref[Any]]]:
    """The value, its arrays on the shared memory itself.

    The references die with the last array, view or tensor that points there: until then the slot
    must not be written again.
    """
    if payload.slot is None:
        return pickle.loads(payload.body), []  # noqa: S301 - our own workers wrote it
    memory = arenas[payload.slot.arena].memory(payload.slot)
    windows = [np.frombuffer(memory, np.uint8, length, start) for start, length in payload.spans]
    value = pickle.loads(payload.body, buffers=windows)  # noqa: S301 - as above
    return value, [weakref.ref(window) for window in windows]


def unpack_copy(payload: SharedPayload, arenas: Sequence[Arena]) -> Any:
    """The value in memory of its own, for whoever keeps it after the slot is written again."""
    if payload.slot is None:
        return pickle.loads(payload.body)  # noqa: S301 - as above
    memory = memoryview(arenas[payload.slot.arena].memory(payload.slot))
    copies = [bytearray(memory[start : start + length]) for start, length in payload.spans]
    return pickle.loads(payload.body, buffers=copies)  # noqa: S301 - as above
