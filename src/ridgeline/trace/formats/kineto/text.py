"""A trace file as text in pieces, and the borders between the events in it.

Where a batch of events may be cut: between `}`, a comma and `{"`. Inside a string a quote is always
escaped, so those characters in a row are structure and never part of a name, however the file is
indented or whether it is at all. They can still lie between two objects nested inside one event;
the batch is then no valid JSON, which the decoder notices, and the caller falls back to
`pieces_of_batch`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ridgeline.errors import InputError

PIECE_BYTES = 2**19
"""Uncompressed text per step: decoded objects of one piece stay in the processor's caches."""
READ_BYTES = 2**16
LONGEST_HEADER_BYTES = 2**28
GZIP_MAGIC = b"\x1f\x8b"
_TAIL_BYTES = 2**16

_BORDER = re.compile(rb'\}\s*,\s*\{\s*"')
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_NOT_A_NUMBER = re.compile(rb"([:,\[]\s*)[-+]?(?:nan|inf(?:inity)?)\b(?:\(.*?\))?", re.IGNORECASE)
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL = re.compile(r"[\x00-\x1f]")


def text_pieces(path: Path, warnings: list[str]) -> Iterator[bytes]:
    """The file's text, gunzipped where it is a gzip file, whatever its name says."""
    try:
        with path.open("rb") as file:
            start = file.read(len(GZIP_MAGIC))
            file.seek(0)
            if start == GZIP_MAGIC:
                yield from _gunzipped(file, warnings)
                return
            while piece := file.read(PIECE_BYTES):
                yield piece
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _gunzipped(file: BinaryIO, warnings: list[str]) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    compressed = file.read(READ_BYTES)
    while compressed:
        try:
            text = stream.decompress(compressed, PIECE_BYTES)
        except zlib.error as error:
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
            stream = zlib.decompressobj(wbits=31)
        else:
            compressed = stream.unconsumed_tail or file.read(READ_BYTES)
    if not stream.eof:
        warnings.append("the gzip stream ends early; read up to there")


def last_border(text: bytes | bytearray) -> int:
    """Where the last `},{` of the text cuts it, just after the brace; 0 where there is none.

    >>> last_border(b'{"ph":"X","name":"}, {"},{"ph":"M"},{"na')
    35
    """
    window = _TAIL_BYTES
    while True:
        start = max(0, len(text) - window)
        found = 0
        for match in _BORDER.finditer(text, start):
            found = match.start() + 1
        if found or start == 0:
            return found
        window *= 8


def next_event(text: bytes | bytearray, start: int) -> int:
    """Where the event after a border begins: past white space and the comma."""
    while start < len(text) and text[start] in b" \t\r\n,":
        start += 1
    return start


def pieces_of_batch(text: bytes) -> Iterator[tuple[int, int]]:
    """The spans between borders: single events, but where objects nested in one are split too."""
    start = 0
    for match in _BORDER.finditer(text):
        yield start, match.start() + 1
        start = next_event(text, match.start() + 1)
    yield start, len(text)


def events_start(text: bytes) -> int | None:
    """Position after the `[` of the top-level `traceEvents`; None where it has not come yet."""
    stripped = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if stripped.startswith(b"["):
        return len(text) - len(stripped) + 1
    found = text.find(b'"traceEvents"')
    if found < 0:
        return None
    depth, key_at = 0, -1
    for token in _TOKEN.finditer(text):
        first = token.group()[:1]
        if key_at >= 0 and first == b"[" and not text[key_at : token.start()].strip(b" \t\r\n:"):
            return token.end()
        key_at = -1
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and token.group() == b'"traceEvents"':
            key_at = token.end()
    return None


def repaired(event: bytes) -> bytes:
    """An event with what profilers get wrong put right: NaN, bare control characters, escapes.

    >>> repaired(b'{"a": nan, "b": [-inf, 1]}')
    b'{"a": null, "b": [null, 1]}'
    """
    text = _NOT_A_NUMBER.sub(rb"\1null", event).decode("utf-8", "replace")
    return _BAD_ESCAPE.sub(r"\\\\", _CONTROL.sub(" ", text)).encode()
