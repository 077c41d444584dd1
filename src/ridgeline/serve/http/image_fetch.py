"""Images that are fetched: by https alone, from hosts that the operator allows, within limits.

Whoever may name an address could else have the server ask hosts that only it reaches. So a host has
to be on the list (`--allowed-media-domains`), and a redirect is followed to such hosts alone.
"""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline.errors import InputError, in_words
from ridgeline.serve.http.protocol.errors import ApiError, refused

if TYPE_CHECKING:
    import httpx

OPTION = "--allowed-media-domains"
LARGEST_BYTES = 20 * 2**20
"""The largest file of an image."""
FETCH_SECONDS = 10.0
"""The time for an image to come from an address, redirects included."""
MOST_REDIRECTS = 3
PARAM = "messages"
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|[0-9a-f:]+", re.ASCII)


def check_domains(given: Sequence[str]) -> tuple[str, ...]:
    """The hosts that an option names. Raises InputError where one is none."""
    hosts = tuple(one.lower() for one in given)
    for one, host in zip(given, hosts, strict=True):
        if not _HOST.fullmatch(host):
            raise InputError(f"{OPTION} {one}: give the name of a host, as in images.example.com")
    return hosts


async def fetch(url: str, hosts: tuple[str, ...]) -> bytes:
    """The bytes at an address. Raises ApiError, 400.

    Args:
        url: As the client gave it.
        hosts: Those that may be asked.
    """
    import httpx

    try:
        async with asyncio.timeout(FETCH_SECONDS):
            return await _follow(url, hosts)
    except (TimeoutError, httpx.TimeoutException):
        raise refused(f"an image did not come within {FETCH_SECONDS:g} s", PARAM) from None
    except (httpx.HTTPError, OSError) as error:
        words = in_words(error) or type(error).__name__
        raise refused(f"an image cannot be fetched: {words}", PARAM) from None


def too_large() -> ApiError:
    """What is told of a file beyond the limit."""
    return refused(f"an image is larger than {LARGEST_BYTES} bytes", PARAM)


async def _follow(url: str, hosts: tuple[str, ...]) -> bytes:
    import httpx

    # A connection that is cancelled in the middle of its handshake is left open by httpcore; one
    # whose time runs out is closed.
    limits = httpx.Timeout(2 * FETCH_SECONDS, connect=FETCH_SECONDS / 2)
    for _ in range(MOST_REDIRECTS + 1):
        address = _allowed(url, hosts)
        async with (
            httpx.AsyncClient(verify=_certificates(), timeout=limits) as client,
            client.stream("GET", address, headers={"Accept-Encoding": "identity"}) as response,
        ):
            if not response.has_redirect_location:
                return await _body(response)
            url = str(address.join(response.headers["Location"]))
    raise refused(f"an image is behind more than {MOST_REDIRECTS} redirects", PARAM)


def _allowed(url: str, hosts: tuple[str, ...]) -> httpx.URL:
    """The address, if it may be asked. Raises ApiError."""
    import httpx

    try:
        address = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise refused("an image's url is none", PARAM) from None
    if address.scheme != "https" or not address.host:
        raise refused("an image's url begins with data: or https://", PARAM)
    if address.host.lower() not in hosts:
        raise refused(
            f"images are not fetched from {address.host[:100]!r} here; send the image as a data:"
            f" URL, or from a host that the server was started with ({OPTION})",
            PARAM,
        )
    return address


async def _body(response: httpx.Response) -> bytes:
    if response.status_code != 200:
        text = f"{response.url.host!r} answers {response.status_code} where an image was asked for"
        raise refused(text, PARAM)
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > LARGEST_BYTES:
            raise too_large()
        parts.append(part)
    return b"".join(parts)


@functools.lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """What other hosts are trusted by; reading it takes tens of milliseconds."""
    import httpx

    return httpx.create_ssl_context()
