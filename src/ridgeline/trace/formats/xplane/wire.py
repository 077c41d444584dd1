"""Protocol buffers off the wire, as far as an XSpace needs them.

A message is a row of fields: a key (number and wire type, as a varint), then a varint, 4 or 8
bytes, or a length and so many bytes (protobuf.dev/programming-guides/encoding). Nothing is copied:
nested messages are views of the file.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: a varint as a number, everything else as its bytes.

    Raises:
        ValueError: no message, or one that is cut.

    >>> [(number, value) for number, value in fields(memoryview(bytes([8, 150, 1])))]
    [(1, 150)]
    """
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place, end)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(message, place, end)
            yield number, value
            continue
        size = {_EIGHT: 8, _FOUR: 4}.get(kind)
        if kind == _LENGTH:
            size, place = _varint(message, place, end)
        if size is None or number == 0 or place + size > end:
            raise ValueError(f"no field of a message at byte {place}")
        yield number, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while place < end and shift < 70:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError(f"a number that does not end at byte {place}")


def text(value: int | memoryview | None) -> str:
    """A string field; empty where it is missing or no text."""
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview) else ""


def number(value: int | memoryview | None) -> int:
    """An integer field, 0 where it is missing; negative ones are 64 bits on the wire."""
    if not isinstance(value, int):
        return 0
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
