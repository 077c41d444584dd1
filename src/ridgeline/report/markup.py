"""HTML that is safe by construction: text is escaped unless it was built here."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable

from ridgeline.visible import visible_text


class Markup(str):
    """A piece of finished HTML. Everything else that meets an element is escaped."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str) -> Markup:
    """One element; `class_` stands for `class`, and `data_x` for `data-x`.

    >>> element("p", "1 < 2", element("b", "!"), class_="note")
    '<p class="note">1 &lt; 2<b>!</b></p>'
    """
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    head = "".join(
        f' {names[name]}="{html.escape(visible_text(value))}"' for name, value in attributes.items()
    )
    return Markup(f"<{tag}{head}>{joined(children)}</{tag}>")


def joined(children: Iterable[str]) -> Markup:
    """Pieces one after the other."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else html.escape(visible_text(child), quote=False)
            for child in children
        )
    )


def table(
    header: list[str], rows: Iterable[list[str]], *, text_columns: int = 1, class_: str = ""
) -> Markup:
    """A table in a container that scrolls by itself; all but the first columns are numbers."""
    kinds = ["text" if index < text_columns else "number" for index in range(len(header))]
    head = [element("th", name, class_=kind) for name, kind in zip(header, kinds, strict=True)]
    body = [
        element(
            "tr",
            *(element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)),
        )
        for row in rows
    ]
    inner = element(
        "table", element("thead", element("tr", *head)), element("tbody", *body), class_=class_
    )
    return element("div", inner, class_="scroll")


def data_script(identifier: str, value: object) -> Markup:
    """JSON for the page's own script; nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(f'<script type="application/json" id="{html.escape(identifier)}">{text}</script>')
