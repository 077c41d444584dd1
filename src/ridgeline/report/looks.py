"""How the parts of a picture look: colour on a page, colour and fill in a terminal.

Pictures must also read without colours, so every look has a fill of its own. A term that has no
look of its own takes the next free one, so that nothing is left out of a picture because it is new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Look:
    """The look of one term."""

    color: str
    """A variable of the style sheet."""
    terminal: str
    """The colour in a terminal."""
    fill: str
    """The character in a terminal: the picture must also read without colours."""


PHASES = {
    "data": Look("--data", "yellow", "d"),
    "copy": Look("--copy", "bright_yellow", "c"),
    "forward": Look("--forward", "cyan", "f"),
    "backward": Look("--backward", "blue", "b"),
    "optimizer": Look("--optimizer", "magenta", "o"),
    "communication": Look("--communication", "red", "x"),
    "other": Look("--other", "bright_black", "·"),
}
"""Phase of a step → its look: the letter is the phase's first where it is free."""
MEMORY = {
    "weights": Look("--weights", "cyan", "█"),
    "gradients": Look("--gradients", "blue", "▓"),
    "optimizer": Look("--optimizer", "magenta", "▒"),
    "activations": Look("--activations", "yellow", "░"),
    "other": Look("--other", "bright_black", "·"),
}
"""Kind of bytes at a measured peak → its look."""
LOOKS = tuple(
    Look(f"--term-{index}", terminal, fill)
    for index, (terminal, fill) in enumerate(
        (
            ("cyan", "█"),
            ("blue", "▓"),
            ("magenta", "▒"),
            ("yellow", "░"),
            ("red", "▚"),
            ("green", "▞"),
            ("bright_yellow", "╬"),
            ("bright_magenta", "◆"),
            ("bright_blue", "■"),
            ("bright_red", "▪"),
            ("bright_cyan", "◼"),
            ("bright_black", "·"),
        )
    )
)
"""The looks that terms of estimates are given."""
OWN = {
    **dict.fromkeys(("weights", "gemm"), 0),
    **dict.fromkeys(("gradients", "attention"), 1),
    "optimizer": 2,
    **dict.fromkeys(("activations", "elementwise"), 3),
    "logits": 4,
    **dict.fromkeys(("recompute", "kv_cache"), 5),
    **dict.fromkeys(("gathered", "tensor"), 6),
    "data": 7,
    **dict.fromkeys(("master", "expert"), 8),
    **dict.fromkeys(("slack", "shards"), 9),
    **dict.fromkeys(("buffers", "pipeline"), 10),
    **dict.fromkeys(("other", "bubble", "disk", "update"), 11),
}
"""Term of a step or of memory → number of its look; the two never share a picture."""


def looks(terms: Iterable[str]) -> dict[str, Look]:
    """The look of each term; free looks are given out in order, and again when all are taken.

    >>> looks(["weights", "new thing"])["new thing"].color
    '--term-1'
    """
    names = list(dict.fromkeys(terms))
    taken = {OWN[name] for name in names if name in OWN}
    free = [index for index in range(len(LOOKS)) if index not in taken] or [0]
    chosen: dict[str, Look] = {}
    given = 0
    for name in names:
        if name in OWN:
            chosen[name] = LOOKS[OWN[name]]
        else:
            chosen[name] = LOOKS[free[given % len(free)]]
            given += 1
    return chosen
