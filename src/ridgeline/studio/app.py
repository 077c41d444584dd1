"""The routes of the studio: pages, answers as JSON, and the looks. Nothing of one reader is kept.

/                     every explorer and page
/NAME?INPUT=…         an explorer in a state (and /NAME of `pages/`)
/api/NAME?INPUT=…     what the page's script draws of that state
/api/NAME/answer?…    the answer, as its command prints it with --json
/looks/FILE           style sheets and scripts, plotly.js among them

The page's script gets one state of an explorer: words, blocks, figures, the command.
"""

from __future__ import annotations

import gzip
import logging
import shlex
from collections.abc import Callable
from functools import cache
from importlib.resources import files as resources
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline.errors import InputError, RidgelineError
from ridgeline.report.page import draw_blocks
from ridgeline.studio.explorer import Explorer, Picture, State, address_of, explorers, read_state
from ridgeline.studio.files import Files
from ridgeline.studio.guard import Door, StudioGuard
from ridgeline.studio.page import pages
from ridgeline.studio.shell import explorer_page, home_page, message_page
from ridgeline.visible import visible_text

LOOKS = {
    "page.css": ("ridgeline.report", "text/css"),
    "trace_page.css": ("ridgeline.report", "text/css"),
    "studio.css": ("ridgeline.studio.looks", "text/css"),
    "drill.js": ("ridgeline.studio.looks", "text/javascript"),
    "studio.js": ("ridgeline.studio.looks", "text/javascript"),
    "plotly.min.js": ("plotly.package_data", "text/javascript"),
}
"""File that a page may ask for → the package that ships it, and its kind."""
MOST_PAIRS = 64

log = logging.getLogger("ridgeline.studio")


def create_app(files: Files, door: Door) -> Starlette:
    """The whole studio over these files."""
    routes: list[BaseRoute] = [
        Route("/", lambda _: HTMLResponse(home_page(files))),
        Route("/looks/{name}", _look),
    ]
    for name, explorer in explorers().items():
        routes += _explorer_routes(name, explorer, files)
    for page in pages().values():
        routes += page.routes(files)
    return Starlette(
        routes=routes,
        middleware=[Middleware(StudioGuard, door=door)],
        exception_handlers={
            HTTPException: _told(files),
            RidgelineError: _told(files),
            Exception: _told(files),
        },
    )


def _explorer_routes(name: str, explorer: Explorer, files: Files) -> list[BaseRoute]:
    def page(request: Request) -> Response:
        return _page(name, explorer, request, files)

    def shown(request: Request) -> Response:
        return JSONResponse(shown_answer(explorer, _state(explorer, request, files)))

    def answer(request: Request) -> Response:
        content = answer_document(explorer, _state(explorer, request, files))
        kept = f'attachment; filename="{name}.json"'
        return Response(
            content, media_type="application/json", headers={"content-disposition": kept}
        )

    return [
        Route(f"/{name}", page),
        Route(f"/api/{name}", shown),
        Route(f"/api/{name}/answer", answer),
    ]


def _page(name: str, explorer: Explorer, request: Request, files: Files) -> Response:
    """The page; a state that cannot be is told in it, beside inputs at their defaults."""
    state = State({one.name: one.default for one in explorer.inputs}, files)
    try:
        state = _state(explorer, request, files)
        return HTMLResponse(explorer_page(name, explorer, state, shown_answer(explorer, state)))
    except InputError as error:
        return HTMLResponse(explorer_page(name, explorer, state, {}, str(error)), 400)


def _state(explorer: Explorer, request: Request, files: Files) -> State:
    try:
        pairs = parse_qsl(
            request.url.query, keep_blank_values=True, max_num_fields=MOST_PAIRS, errors="strict"
        )
    except ValueError:  # of Unicode, too
        raise InputError("the address cannot be read; open the page anew from the list") from None
    return read_state(explorer.inputs, pairs, files)


def _look(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in LOOKS:
        raise HTTPException(404)
    headers = {"cache-control": "no-cache", "vary": "accept-encoding"}
    if name == "plotly.min.js":
        headers["cache-control"] = "max-age=86400"
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(_packed(name), media_type=LOOKS[name][1], headers=headers)
    return Response(_own(name), media_type=LOOKS[name][1], headers=headers)


def _own(name: str) -> bytes:
    return resources(LOOKS[name][0]).joinpath(name).read_bytes()


@cache
def _packed(name: str) -> bytes:
    return gzip.compress(_own(name), 1)


def _told(files: Files) -> Callable[[Request, Exception], Response]:
    """One clear message in place of an answer; the server goes on."""

    def tell(request: Request, error: Exception) -> Response:
        text, status = _words(error)
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": text}, status)
        return HTMLResponse(message_page("That did not work", text, files), status)

    return tell


def _words(error: Exception) -> tuple[str, int]:
    if isinstance(error, InputError):
        return str(error), 400
    if isinstance(error, RidgelineError):
        return str(error), 500
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return "There is no such page; the list names those that are.", 404
        return error.detail, error.status_code
    log.error("an answer failed", exc_info=error)
    return "A failure of Ridgeline, not of what was asked; the terminal says more.", 500


def shown_answer(explorer: Explorer, state: State) -> dict[str, Any]:
    """The document that a page draws itself from."""
    return shown_picture(explorer.draw(explorer.answer(state))) | {
        "command": command_line(explorer, state),
        "address": urlencode(address_of(explorer.inputs, state)),
    }


def shown_picture(picture: Picture) -> dict[str, Any]:
    """Words, markup and figures of a picture."""
    markup, plots = draw_blocks(picture.blocks)
    return {"sentence": visible_text(picture.sentence), "markup": markup, "figures": plots}


def command_line(explorer: Explorer, state: State) -> str:
    """The command that gives the same, as one types it."""
    return shlex.join(["ridgeline", *explorer.command(state)])


def answer_document(explorer: Explorer, state: State) -> bytes:
    """The answer as its command prints it with `--json`."""
    return msgspec.json.format(msgspec.json.encode(explorer.answer(state)), indent=1) + b"\n"
