"""The files that were named on the command line, each as the command that wrote it shows it.

A file's page stands in a frame of its own without any rights: what a file holds is text of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline.errors import InputError
from ridgeline.report import page as report_page
from ridgeline.report.markup import Markup, element
from ridgeline.studio.explorer import OpenFile, explorers
from ridgeline.studio.files import Files, NamedFile
from ridgeline.studio.opened import TRACE, kind_of, opened_document
from ridgeline.studio.page import Page
from ridgeline.studio.shell import framed

BOXED = f"sandbox allow-scripts; {report_page.POLICY}; frame-ancestors 'self'"


def routes(files: Files) -> Sequence[BaseRoute]:
    """The list, a file in the frame, and the file's own page."""

    def listed(_: Request) -> Response:
        return HTMLResponse(_list(files))

    def one(request: Request) -> Response:
        return _shown(files.at(request.path_params["number"]), files)

    def drawn(request: Request) -> Response:
        document = opened_document(files.at(request.path_params["number"]).path)
        return HTMLResponse(
            report_page.draw_page(document), headers={"content-security-policy": BOXED}
        )

    return [
        Route("/files", listed),
        Route("/files/{number}", one),
        Route("/files/{number}/page", drawn),
    ]


def _list(files: Files) -> str:
    entries = [
        element(
            "a",
            element("h2", one.path.name),
            element("p", one.problem or f"a record of the kind {one.kind}"),
            href=f"/files/{one.number}",
        )
        for one in files.files
    ]
    header = element("header", element("h1", "Files"), element("p", PAGE.about, class_="question"))
    return framed("Files", "files", [header, element("div", *entries, class_="cards")], files)


def _shown(file: NamedFile, files: Files) -> Response:
    name = file.path.name
    header = element("header", element("h1", name))
    try:
        if kind_of(file.path) != TRACE:  # those take seconds: their own page tells
            opened_document(file.path)
    except InputError as error:
        told = element("p", str(error), role="alert", class_="problem")
        return HTMLResponse(framed(name, "files", [header, told], files), 400)
    frame = Markup(
        f'<iframe src="/files/{file.number}/page" sandbox="allow-scripts"'
        ' title="What the file holds"></iframe>'
    )
    return HTMLResponse(framed(name, "files", [header, *_explorers(file), frame], files))


def _explorers(file: NamedFile) -> list[Markup]:
    """Links to the explorers that take such a file, with it chosen."""
    links = [
        element("a", explorer.title, href=f"/{name}?{urlencode({one.name: str(file.number)})}")
        for name, explorer in explorers().items()
        for one in explorer.inputs
        if isinstance(one, OpenFile) and file.kind in one.records
    ]
    return [element("p", "Also under your hands in: ", *links, class_="beside")] if links else []


PAGE = Page(
    place=20,
    title="Files",
    about="What commands wrote, as they would show it.",
    routes=routes,
    shown=lambda files: bool(files.files),
)
