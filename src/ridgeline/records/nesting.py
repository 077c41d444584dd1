"""How deep a JSON text goes, before anything recurses into it.

Parsers, validators, templates and grammars all recurse, each with a limit of its own and some
without one; a text of 100,000 brackets is refused before any of them sees it, closed or not.
"""

from __future__ import annotations

import re

DEEPEST = 100
"""Levels of nesting; nothing that is written by hand or by us has a quarter of them, and what
walks over a value calls itself for each."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def too_deep(text: bytes, most: int = DEEPEST) -> bool:
    r"""Whether objects and lists stand in each other more than `most` deep; strings do not count.

    >>> too_deep(b"[[[1]]]", most=2), too_deep(b'["[[[", {}]', most=2), too_deep(b'["\\"[[["]', 1)
    (True, False, False)
    """
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    import numpy as np  # few texts have so many brackets, and commands must start at once

    steps = np.zeros(256, np.int8)
    steps[[*b"[{"]] = 1
    steps[[*b"]}"]] = -1
    ways = steps[np.frombuffer(_STRING.sub(b"", text), np.uint8)]
    levels = np.cumsum(ways[ways != 0], dtype=np.int32)
    return bool(len(levels)) and int(levels.max()) > most
