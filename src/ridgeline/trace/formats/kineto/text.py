"""The borders between events in the text of a trace, and what profilers get wrong in it.

Where a batch of events may be cut: between `}`, a comma and `{"`. Inside a string a quote is always
escaped, so those characters in a row are structure and never part of a name, however the file is
indented or whether it is at all. They can still lie between two objects nested inside one event;
the batch is then no valid JSON, which the decoder notices, and the caller falls back to
`pieces_of_batch`.

Every function is linear in its text, whatever stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TAIL_BYTES = 2**12
"""Most events are shorter, so the last border is in so much text; else more is looked at."""
_BORDER = re.compile(rb'\}\s*,\s*\{\s*"')
# A string that never ends is a token too: else each quote in it would be tried as a start.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[{}\[\]]', re.DOTALL)
_NOT_A_NUMBER = re.compile(
    rb"([:,\[]\s*+)[-+]?(?:nan|inf(?:inity)?)\b(?:\([^()\"]{0,40}\))?", re.IGNORECASE
)
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL = re.compile(r"[\x00-\x1f]")
_NO_BLANK = re.compile(rb"[^ \t\r\n,]")


def last_border(text: bytes | bytearray, known: int = 0) -> int:
    """Where the last `},{` of the text cuts it, just after the brace; 0 where there is none.

    The first `known` bytes were searched before, and hold no whole border.

    >>> last_border(b'{"ph":"X","name":"}, {"},{"ph":"M"},{"na')
    35
    """
    # A border that begins in the known part begins with the last brace there.
    brace = text.rfind(b"}", 0, known)
    first = known if brace < 0 else brace
    window = _TAIL_BYTES
    while True:
        start = max(first, len(text) - window)
        found = 0
        for match in _BORDER.finditer(text, start):
            found = match.start() + 1
        if found or start == first:
            return found
        window *= 8


def first_border(text: bytes | bytearray) -> int:
    """Where the first `},{` of the text cuts it, just after the brace; 0 where there is none."""
    found = _BORDER.search(text)
    return found.start() + 1 if found else 0


def next_event(text: bytes | bytearray, start: int) -> int:
    """Where the event after a border begins: past white space and the comma."""
    found = _NO_BLANK.search(text, start)
    return found.start() if found else len(text)


def pieces_of_batch(text: bytes) -> Iterator[tuple[int, int]]:
    """The spans between borders: single events, but where objects nested in one are split too."""
    start = 0
    for match in _BORDER.finditer(text):
        yield start, match.start() + 1
        start = next_event(text, match.start() + 1)
    yield start, len(text)


def events_start(text: bytes | bytearray) -> int | None:
    """Position after the `[` of the top-level `traceEvents`; None where it has not come yet."""
    first = _NO_BLANK.search(text, len(BYTE_ORDER_MARK) * text.startswith(BYTE_ORDER_MARK))
    if first and first.group() == b"[":
        return first.end()
    found = text.find(b'"traceEvents"')
    if found < 0:
        return None
    depth, key_at = 0, -1
    for token in _TOKEN.finditer(text):
        opened = text[token.start() : token.start() + 1]
        if key_at >= 0 and opened == b"[" and not text[key_at : token.start()].strip(b" \t\r\n:"):
            return token.end()
        key_at = -1
        if opened in b"{[":
            depth += 1
        elif opened in b"}]":
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
