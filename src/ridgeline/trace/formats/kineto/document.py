"""The document around the events of a Kineto trace: devices, rank, clock.

Keys of libkineto/src/output_json.cpp: `deviceProperties`, `distributedInfo`,
`baseTimeNanoseconds`. They stand before the events, after them, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.trace.columns import TraceDevice
from ridgeline.trace.formats.kineto.text import BYTE_ORDER_MARK, repaired

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for text that is no JSON, no UTF-8, or nested beyond reason."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)|worker[_-]?(\d+)", re.IGNORECASE)


def read_document(before: bytes, after: bytes, *, ended: bool) -> tuple[dict[str, Any], bool]:
    """Everything but the events, and whether what follows them had to be left out.

    `before` ends with the bracket that opens the events; `after` begins with the one that closes
    them, where the file has it (`ended`).
    """
    plain = before.removeprefix(BYTE_ORDER_MARK)
    if plain.lstrip(b" \t\r\n").startswith(b"["):
        return {}, False
    text = plain + after
    attempts = [plain + b"]}"]
    if ended:
        attempts = [text, text[: text.rfind(b"}") + 1], *attempts]
    for number, attempt in enumerate(attempts):
        for version in (attempt, repaired(attempt)):
            try:
                document = msgspec.json.decode(version)
            except BROKEN:
                continue
            return document if isinstance(document, dict) else {}, bool(number and ended)
    return {}, False


def devices_of(document: dict[str, Any]) -> tuple[TraceDevice, ...]:
    """The GPUs that the header lists, whether or not anything ran on them."""
    return tuple(_devices(document.get("deviceProperties")))


def _devices(found: Any) -> Iterator[TraceDevice]:
    for entry in found if isinstance(found, list) else []:
        if not isinstance(entry, dict):
            continue
        yield TraceDevice(
            index=whole_number(entry.get("id")) or 0,
            name=text_or_none(entry.get("name")) or "",
            num_sms=whole_number(entry.get("numSms")),
            memory_bytes=whole_number(entry.get("totalGlobalMem")),
        )


def rank_of(distributed: dict[str, Any], path: Path) -> int | None:
    """The rank that the trace gives, else the one in the name of its file."""
    rank = whole_number(distributed.get("rank"))
    if rank is None and (found := _RANK_IN_NAME.search(path.name)):
        rank = int(found[1] or found[2])
    return rank


def shape_text(dims: bytes, types: bytes, values: bytes) -> str:
    """The inputs of an operator as compact JSON: `[dims, types]`, and values where it has them."""
    text = b"[" + dims + b"," + (types or b"[]") + (b"," + values if values else b"") + b"]"
    try:
        found = msgspec.json.decode(text, type=list[list[Any]])
    except BROKEN:
        return "[[],[]]"
    if not all(isinstance(dims, list) for dims in found[0]):
        return "[[],[]]"
    return msgspec.json.encode(found).decode()  # without white space


def whole_number(value: Any) -> int | None:
    """A number of the document as a whole one; None where it is none, or beyond 64 bits."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, int | float) and abs(value) < 2**63:
        return int(value)
    return None


def text_or_none(value: Any) -> str | None:
    """A text of the document; None where something else stands there."""
    return value if isinstance(value, str) else None
