"""The file of one entry: a magic, a header in msgpack, tensors on page boundaries.

Tensors are mapped privately and never copied: what the kernel has of the file in memory is what
the engine multiplies, and engines of one machine share it. The header is told by its SHA-256,
each tensor by the sum of its words, which is taken at the speed of memory and reads every page, so
that the first step finds them there. A sum does not see words that changed places; a file whose
header, length and sums are right is taken for what was written.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch
from torch import Tensor

from ridgeline.records.store import whole_file

MAGIC = b"RIDGELINE-PACKED"
PAGE = 4096
"""Tensors begin at multiples of it, and zeros fill what is left."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn),
        *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    )
}
_LENGTH_BYTES = 8
_DIGEST_BYTES = hashlib.sha256().digest_size


class EntryDamaged(Exception):
    """A file is not what was written."""


class TensorPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a tensor lies behind the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    bytes: int
    words: int
    """The sum of its 64-bit words."""


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an entry says of itself."""

    key: str
    content: bytes
    """Whatever the writer needs to know."""
    tensors: tuple[TensorPlace, ...]


def write_entry(path: Path, key: str, content: bytes, tensors: Sequence[Tensor]) -> None:
    """Write an entry, whole or not at all.

    Args:
        path: The file.
        key: What it depends on; `read_entry` wants the same.
        content: Any bytes, which come back as they are.
        tensors: On the CPU, none of them empty.

    Raises:
        OSError: There is no room for it, or the folder cannot be written to.
    """
    places: list[TensorPlace] = []
    start = 0
    for tensor in tensors:
        size = tensor.nbytes
        places.append(
            TensorPlace(
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(tensor.shape),
                start=start,
                bytes=size,
                words=_sum_of_words(_bytes(tensor)),
            )
        )
        start += _in_pages(size)
    header = msgspec.msgpack.encode(_Header(key=key, content=content, tensors=tuple(places)))
    with whole_file(path) as file:
        file.write(_filled(_beginning(header)))
        for tensor in tensors:
            _write_padded(file, tensor)


def read_entry(path: Path, key: str) -> tuple[bytes, list[Tensor]]:
    """The content and the tensors of an entry, mapped; whoever writes to one gets a page of it.

    Raises:
        FileNotFoundError: There is none.
        EntryDamaged: It is none of ours, of another key, cut off or changed.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        header, begins = _read_header(file)
        size = file.seek(0, 2)
        if header.key != key:
            raise EntryDamaged("it is of another model")
        if size != begins + sum(_in_pages(one.bytes) for one in header.tensors):
            raise EntryDamaged("it is cut off")
        if not header.tensors:
            return header.content, []
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    return header.content, [_mapped(mapped, begins, one) for one in header.tensors]


def _mapped(mapped: mmap.mmap, begins: int, place: TensorPlace) -> Tensor:
    """A tensor over its part of the file.

    Raises:
        EntryDamaged: Its bytes are others than were written.
    """
    dtype = DTYPES.get(place.dtype)
    if dtype is None or place.bytes < 1:
        raise EntryDamaged("a tensor is of no known type")
    start = begins + place.start
    raw = torch.frombuffer(mapped, dtype=torch.uint8, count=place.bytes, offset=start)
    if _sum_of_words(raw) != place.words:
        raise EntryDamaged("its bytes have changed")
    try:
        return raw.view(dtype).view(place.shape)
    except RuntimeError:
        raise EntryDamaged("a tensor is not as long as its shape") from None


def _read_header(file: BinaryIO) -> tuple[_Header, int]:
    """The header, and where tensors begin."""
    fixed = len(MAGIC) + _LENGTH_BYTES + _DIGEST_BYTES
    beginning = file.read(fixed)
    if len(beginning) < fixed or not beginning.startswith(MAGIC):
        raise EntryDamaged("it is no file of packed weights")
    length = int.from_bytes(beginning[len(MAGIC) : len(MAGIC) + _LENGTH_BYTES], "little")
    if length > file.seek(0, 2):
        raise EntryDamaged("it is cut off")
    file.seek(fixed)
    header = file.read(length)
    if hashlib.sha256(header).digest() != beginning[-_DIGEST_BYTES:]:
        raise EntryDamaged("its header has changed")
    try:
        decoded = msgspec.msgpack.decode(header, type=_Header)
    except msgspec.MsgspecError:
        raise EntryDamaged("its header is of another layout") from None
    return decoded, _in_pages(fixed + length)


def _beginning(header: bytes) -> bytes:
    length = len(header).to_bytes(_LENGTH_BYTES, "little")
    return b"".join((MAGIC, length, hashlib.sha256(header).digest(), header))


def _write_padded(file: BinaryIO, tensor: Tensor) -> None:
    raw = _bytes(tensor)
    file.write(raw.numpy().data)
    file.write(bytes(_in_pages(len(raw)) - len(raw)))


def _filled(content: bytes) -> bytes:
    return content + bytes(_in_pages(len(content)) - len(content))


def _in_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _sum_of_words(raw: Tensor) -> int:
    """The sum of a tensor's 64-bit words and of the bytes behind them, around 2**64."""
    whole = len(raw) // 8 * 8
    words = raw[:whole].view(torch.int64).sum()
    return int(words + raw[whole:].long().sum())


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """The room that tensors take in an entry."""
    return sum(_in_pages(one.nbytes) for one in tensors)
