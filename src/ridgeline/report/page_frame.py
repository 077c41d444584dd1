"""The frame of every page: head, style sheet, the figures' data and the script that draws them.

plotly.js is put into the page once; a content-security policy in the page itself forbids it to
fetch anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from ridgeline.report.figures import Figure
from ridgeline.report.markup import Markup, data_script, element, joined
from ridgeline.report.sections import plot

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)


def drawn(
    name: str, figure: Figure | None, plots: dict[str, Figure], height: int = 340
) -> list[Markup]:
    """Enter a figure into the page's plots and return its place; nothing where there is none."""
    if figure is None:
        return []
    plots[f"plot-{name}"] = figure
    return [plot(f"plot-{name}", height)]


def whole_page(title: str, body: Sequence[Markup], plots: dict[str, Figure]) -> str:
    """One self-contained file."""
    scripts = [data_script("figures", plots)]
    if plots:
        scripts += [_script(_plotly()), _script(own_file("page.js"))]
    return framed(title, ("page.css",), body, scripts)


def framed(
    title: str, styles: Sequence[str], body: Sequence[Markup], scripts: Sequence[Markup]
) -> str:
    """A page around `body`, with style sheets of this folder and, at its end, scripts."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"{element('title', f'{title} · Ridgeline')}"
        f"<style>{''.join(own_file(style) for style in styles)}</style></head>\n"
        f"<body>{element('main', *body)}"
        f"{element('footer', 'Ridgeline: limit, measurement, finding, technique, ledger.')}\n"
        f"{joined(scripts)}</body></html>\n"
    )


def _script(source: str) -> Markup:
    return Markup(f"<script>{source}</script>")


def own_file(name: str) -> str:
    """A style sheet or script that ships beside this module."""
    return files("ridgeline.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    """plotly.js as the plotly package ships it; importing that package would cost a second."""
    return files("plotly.package_data").joinpath("plotly.min.js").read_text(encoding="utf-8")
