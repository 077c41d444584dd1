"""The text of a trace file in pieces, decompressed where it is packed: `text_pieces(path)`.

What a file is packed with is told by its first bytes, whatever its name says: gzip (several streams
one after the other are one text; `isal` unpacks it in a quarter of the time, `zlib` on processors
that it is not built for), zstd where the `zstandard` package is there, UTF-16. A stretch of blanks
or zero bytes, as a full disk or a sparse file leaves behind, is one blank: it costs the time to
skip it and no memory.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ridgeline.errors import InputError

PIECE_BYTES = 2**18
"""Uncompressed text per step: decoded objects of one piece stay in the processor's caches."""
READ_BYTES = 2**16
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BLANKS = b" \t\r\n\0"
_NO_BLANK = re.compile(rb"[^ \t\r\n\0]")
_UTF16 = {
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
    b"{\0": "utf-16-le", b"[\0": "utf-16-le", b"\0{": "utf-16-be", b"\0[": "utf-16-be",
}  # fmt: skip
"""The first two bytes of a JSON text in UTF-16, with and without its mark."""


def text_pieces(path: Path, warnings: list[str]) -> Iterator[bytes]:
    """The file's text as UTF-8 in pieces; what had to be left out is added to `warnings`.

    Raises:
        InputError: it cannot be read, or is packed with zstd and nothing here unpacks that.
    """
    try:
        with path.open("rb") as file:
            yield from _recoded(_unpacked(path, file, warnings))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextmanager
def refused_unless_whole(path: Path, kind: str) -> Iterator[bytes]:
    """The whole text, for a block that decodes it.

    Raises:
        InputError: it cannot be read, or the block cannot decode it: it is no whole `kind`.
    """
    warnings: list[str] = []
    text = b"".join(text_pieces(path, warnings))
    try:
        yield text
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        why = warnings[0] if warnings else str(error)
        raise InputError(f"{path}: not a whole {kind}: {why}") from None


def first_text(path: Path) -> bytes:
    """The first piece of the text, by which formats tell their files.

    Raises:
        InputError: it cannot be read.
    """
    known = path.stat()
    return _first_text(path, known.st_size, known.st_mtime_ns)


@lru_cache(maxsize=1)
def _first_text(path: Path, size: int, changed_ns: int) -> bytes:  # noqa: ARG001 - of the key
    return next(text_pieces(path, []), b"")


def without_blank_stretches(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces, with each that is nothing but blanks or zero bytes as one blank."""
    for piece in pieces:
        yield piece if _NO_BLANK.search(piece) else b" "


def _unpacked(path: Path, file: BinaryIO, warnings: list[str]) -> Iterator[bytes]:
    start = file.read(len(ZSTD_MAGIC))
    file.seek(0)
    if start.startswith(GZIP_MAGIC):
        yield from _gunzipped(file, warnings)
    elif start == ZSTD_MAGIC:
        yield from _unpacked_zstd(path, file, warnings)
    else:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _inflating() -> Any:
    """The module that unpacks gzip: `isal`'s, or zlib on processors that it is not built for."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


def _gunzipped(file: BinaryIO, warnings: list[str]) -> Iterator[bytes]:
    library = _inflating()
    stream = library.decompressobj(wbits=31)
    compressed = file.read(READ_BYTES)
    while compressed:
        try:
            text = stream.decompress(compressed, PIECE_BYTES)
        except library.error as error:
            warnings.append(f"the gzip stream is damaged ({error}); read up to there")
            return
        if text:
            yield text
        if stream.eof:
            # A gzip file may be several streams one after the other.
            compressed = stream.unused_data or file.read(READ_BYTES)
            if not compressed.startswith(GZIP_MAGIC):
                if compressed.strip(b"\0"):
                    warnings.append("ignored what follows the end of the gzip stream")
                return
            stream = library.decompressobj(wbits=31)
        else:
            compressed = stream.unconsumed_tail or file.read(READ_BYTES)
    if not stream.eof:
        warnings.append("the gzip stream ends early; read up to there")


def _unpacked_zstd(path: Path, file: BinaryIO, warnings: list[str]) -> Iterator[bytes]:
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        raise InputError(
            f"{path}: packed with zstd; unpack it (zstd -d), or run: pip install zstandard"
        ) from None
    with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream:
        try:
            while piece := stream.read(PIECE_BYTES):
                yield piece
        except zstandard.ZstdError as error:
            warnings.append(f"the zstd stream is damaged ({error}); read up to there")


def _recoded(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 as UTF-8; any other text as it is."""
    first = next(pieces, b"")
    encoding = _UTF16.get(first[:2])
    if encoding is None:
        yield first
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first).encode()
    for piece in pieces:
        yield decoder.decode(piece).encode()
