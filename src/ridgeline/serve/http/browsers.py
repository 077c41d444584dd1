"""Pages of other origins that may ask from a browser (CORS, https://fetch.spec.whatwg.org)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

_ORIGIN = re.compile(r"https?://[^/\s]+")
SHOWN_HEADERS = ("X-Request-Id", "X-Without-Effect", "X-Sampling-Defaults", "Retry-After")
"""Headers of a response that a page's script may read."""


def check_origins(given: Sequence[str]) -> tuple[str, ...]:
    """The origins that an option names. Raises InputError where one is none."""
    for origin in given:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise InputError(
                f"--allowed-origins {origin}: give scheme and host, as in http://localhost:3000, or"
                " * for all"
            )
    return tuple(given)


def let_browsers_ask(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Answer the browsers' questions before requests, and name the origins in replies."""
    if origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=SHOWN_HEADERS,
        )
