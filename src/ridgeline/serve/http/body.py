"""What of a body is looked at before anything parses it: its characters and its depth."""

from __future__ import annotations

import json
import re

from ridgeline.records.input_file import DEEPEST, too_deep
from ridgeline.serve.http.protocol.errors import refused

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>u[dD][89a-fA-F]..)|.)", re.DOTALL
)
"""A backslash with what belongs to it; halves of characters that stand together are one."""


def check_body(body: bytes) -> None:
    """Refuse what no request can be.

    Raises:
        ApiError: 400: the body is nested too deeply, no UTF-8, or has half a character in it.
    """
    if b"\0" in body:  # as in UTF-16, which Python's parser would take
        raise refused("the body is no JSON: it has NUL bytes; send it as UTF-8")
    try:
        body.decode()
    except UnicodeDecodeError:
        raise refused("the body is no JSON: it is not UTF-8") from None
    if too_deep(body):
        raise refused(f"the body is nested too deeply: more than {DEEPEST} levels")
    if rb"\u" in body and any(one["half"] for one in _ESCAPE.finditer(body)):
        param = _where(body)
        place = f"{param}: " if param else "the body: "
        raise refused(
            f"{place}half a character (one surrogate of two, \\ud800 to \\udfff) is no text", param
        )


def _where(body: bytes) -> str | None:
    """The first field with half a character in it."""
    try:
        given = json.loads(body)
    except ValueError:
        return None
    for name, value in given.items() if isinstance(given, dict) else ():
        try:
            name.encode()
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return name if name.isidentifier() else None
    return None
