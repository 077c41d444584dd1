"""The frame around every page: the list of explorers and pages, and the parts of an explorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from ridgeline.report.markup import Markup, data_script, element, joined
from ridgeline.studio.controls import draw_controls
from ridgeline.studio.explorer import Explorer, State, address_of, explorers
from ridgeline.studio.files import Files
from ridgeline.studio.page import pages

NAME = "Ridgeline studio"


def framed(
    title: str, here: str, body: Sequence[str], files: Files, *, scripts: Sequence[str] = ()
) -> str:
    """A whole page; `here` is the name of its entry in the list."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"{element('title', f'{title} · {NAME}')}"
        '<link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/looks/page.css">'
        '<link rel="stylesheet" href="/looks/studio.css"></head>\n<body>'
        f"{element('a', 'Skip to the content', href='#content', class_='skip')}"
        f"{_bar(here, files)}"
        f"{element('main', *body, id='content', tabindex='-1')}\n"
        f"{joined(scripts)}</body></html>\n"
    )


def script(name: str, *, module: bool = True) -> Markup:
    """A script of `looks/`, run when the page stands."""
    kind = 'type="module"' if module else "defer"
    return Markup(f'<script {kind} src="/looks/{name}"></script>')


def explorer_page(
    name: str, explorer: Explorer, state: State, shown: Mapping[str, Any], problem: str = ""
) -> str:
    """An explorer as it stands; `problem` is why it shows no picture."""
    body = [
        element(
            "header",
            element("h1", explorer.title),
            element("p", explorer.question, class_="question"),
        ),
        element(
            "div",
            _sentence(shown.get("sentence", ""), problem),
            element(
                "form",
                draw_controls(explorer.inputs, state),
                element("button", "Back to the start", type="button", id="reset", class_="quiet"),
                id="controls",
                aria_label="What may be moved",
                autocomplete="off",
            ),
            element("div", shown.get("markup", Markup("")), id="picture"),
            _takeaway(explorer, shown.get("command", "")),
            class_="explorer",
        ),
    ]
    defaults = State({one.name: one.default for one in explorer.inputs})
    facts = {
        "name": name,
        "figures": shown.get("figures", {}),
        "start": urlencode(address_of(explorer.inputs, defaults)),
    }
    scripts = [
        data_script("shown", facts),
        script("plotly.min.js", module=False),
        script("studio.js"),
    ]
    return framed(explorer.title, name, body, state.files, scripts=scripts)


def home_page(files: Files) -> str:
    """Every explorer and page with what it answers."""
    cards = [
        _card(name, one.title, one.question, number=str(place))
        for place, (name, one) in enumerate(explorers().items(), start=1)
    ]
    others = [
        _card(name, one.title, one.about) for name, one in pages().items() if one.shown(files)
    ]
    body = [
        element(
            "header",
            element("h1", "What is the limit, and what moves it?"),
            element(
                "p",
                "Every picture is computed by the function behind a command; each page shows the"
                " command that prints the same. An address holds all that was moved: send it.",
                class_="question",
            ),
        ),
        element("div", *cards, *others, class_="cards"),
    ]
    return framed("Start", "", body, files)


def message_page(title: str, text: str, files: Files) -> str:
    """One message, in the frame."""
    body = [element("header", element("h1", title)), element("p", text, role="alert")]
    return framed(title, "", body, files)


def _bar(here: str, files: Files) -> Markup:
    entries = [_entry(name, one.title, here) for name, one in explorers().items()]
    others = [_entry(name, one.title, here) for name, one in pages().items() if one.shown(files)]
    home = element("a", element("b", "Ridgeline"), " studio", href="/", class_="brand")
    listed = element("ul", *entries, *([element("li", class_="gap")] if others else []), *others)
    return element(
        "nav",
        home,
        element("details", element("summary", "Explorers"), listed, class_="folded"),
        element("div", listed, class_="open"),
        aria_label="Explorers",
    )


def _entry(name: str, title: str, here: str) -> Markup:
    now = {"aria_current": "page"} if name == here else {}
    return element("li", element("a", title, href=f"/{name}", **now))


def _card(name: str, title: str, text: str, number: str = "") -> Markup:
    mark = [element("span", number, class_="place", aria_hidden="true")] if number else []
    return element("a", *mark, element("h2", title), element("p", text), href=f"/{name}")


def _sentence(sentence: str, problem: str) -> Markup:
    return element(
        "div",
        element("p", sentence, id="sentence", aria_live="polite"),
        element("p", problem, id="problem", role="alert", **({} if problem else {"hidden": ""})),
        class_="said",
    )


def _takeaway(explorer: Explorer, command: str) -> Markup:
    """What a reader takes along: the command, a link, data, pictures, and why it is so."""
    buttons = [
        ("Copy command", "copy-command"),
        ("Copy link", "copy-link"),
        ("JSON", "save-json"),
        ("SVG", "save-svg"),
        ("PNG", "save-png"),
    ]
    whys = [
        element("li", element("p", one.text), element("p", one.source, class_="note"))
        for one in explorer.why
    ]
    return element(
        "div",
        element("h2", "The same in a terminal"),
        element("pre", element("code", command, id="command"), tabindex="0", aria_label="Command"),
        element(
            "p",
            *(element("button", label, type="button", id=name) for label, name in buttons),
            element("span", id="done", role="status"),
            class_="buttons",
        ),
        element("details", element("summary", "Why"), element("ul", *whys), id="why"),
        class_="takeaway",
    )
