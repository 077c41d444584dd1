"""One state of an explorer as the page's script needs it: words, blocks, figures, the command."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlencode

import msgspec

from ridgeline.report.page import draw_blocks
from ridgeline.studio.explorer import Explorer, Picture
from ridgeline.studio.inputs import State, address_of
from ridgeline.visible import visible_text


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
