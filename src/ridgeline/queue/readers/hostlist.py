"""Names of nodes as Slurm writes them together: `gpu[01-03,7],login1`."""

from __future__ import annotations

import re
from itertools import product

_PART = re.compile(r"([^\[\],]*)\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def host_names(text: str) -> list[str] | None:
    """Every name that a list stands for; None: it is no list.

    >>> host_names("gpu[01-03,7],login1")
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login1']
    >>> host_names("rack[1-2]n[1,2]"), host_names("gpu[3-1]")
    (['rack1n1', 'rack1n2', 'rack2n1', 'rack2n2'], None)
    """
    found: list[str] = []
    for one in _split(text):
        choices: list[list[str]] = []
        at = 0
        for part in _PART.finditer(one):
            if part.start() != at:
                return None
            at = part.end()
            if part[3] is not None:
                choices.append([part[3]])
                continue
            numbers = _numbers(part[2])
            if numbers is None:
                return None
            choices.append([part[1] + number for number in numbers])
        if at != len(one) or not choices:
            return None
        found += ["".join(names) for names in product(*choices)]
    return found


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket."""
    parts, depth = [""], 0
    for mark in text.strip():
        depth += (mark == "[") - (mark == "]")
        if mark == "," and not depth:
            parts.append("")
        else:
            parts[-1] += mark
    return [one for one in parts if one]


def _numbers(text: str) -> list[str] | None:
    found: list[str] = []
    for one in text.split(","):
        matched = _RANGE.fullmatch(one)
        if matched is None:
            return None
        first, last = matched[1], matched[2] or matched[1]
        if int(last) < int(first) or int(last) - int(first) > 10**6:
            return None
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
