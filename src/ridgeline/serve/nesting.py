"""How deep a JSON text goes, before anything recurses into it.

Parsers, validators, templates and grammars all recurse, each with a limit of its own and some
without one; a text of 100,000 brackets is refused before any of them sees it.
"""

from __future__ import annotations

import re

import numpy as np

MOST_LEVELS = 128
"""Of objects and lists within each other; schemas written by people have a dozen."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

_STEPS = np.zeros(256, np.int8)
"""Levels that each byte goes up."""
_STEPS[[*b"[{"]] = 1
_STEPS[[*b"]}"]] = -1


def too_deep(text: bytes, most: int = MOST_LEVELS) -> bool:
    r"""Whether objects and lists stand in each other more than `most` deep; strings do not count.

    >>> too_deep(b"[[[1]]]", most=2), too_deep(b'["[[[", {}]', most=2), too_deep(b'["\\"[[["]', 1)
    (True, False, False)
    """
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    steps = _STEPS[np.frombuffer(_STRING.sub(b"", text), np.uint8)]
    levels = np.cumsum(steps[steps != 0], dtype=np.int32)
    return bool(len(levels)) and int(levels.max()) > most
