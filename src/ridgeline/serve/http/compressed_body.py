"""Bodies that clients send compressed (RFC 9110, 8.4), as long as they may be when they are not."""

from __future__ import annotations

import zlib

from ridgeline.serve.http.protocol.errors import ApiError, refused

_EITHER = zlib.MAX_WBITS | 32
"""Take the head of gzip and of zlib (HTTP's deflate) alike."""


def plain_body(body: bytes, coding: bytes, longest: int) -> bytes:
    """The body without its coding.

    Args:
        body: As it came.
        coding: The header `Content-Encoding`; empty: there was none.
        longest: The most bytes that come of it.

    Raises:
        ApiError: 415: the coding is not known; 400: the body is not of it; 413: it is too long.
    """
    name = coding.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        text = f"Content-Encoding {name[:40]!r} is not read here; send gzip, deflate or none"
        raise ApiError(415, text)
    machine = zlib.decompressobj(_EITHER)
    try:
        found = machine.decompress(body, longest + 1)
    except zlib.error as error:
        raise refused(f"the body is no {name}: {error}") from None
    if len(found) > longest:
        raise ApiError(413, f"the body is longer than {longest} bytes (--max-body-bytes)")
    if not machine.eof or machine.unused_data:
        raise refused(f"the body is no {name}: it does not end where that does")
    return found
