"""Names as people type them: case, blanks, `_` and `-`, and the hub's owner do not matter.

`meta-llama/Meta-Llama-3-8B-Instruct`, `llama3-8b` and `Llama 3 8B` are one model: tuning does not
change its shape, so words such as `-Instruct` are dropped when the whole name is unknown.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

from ridgeline.errors import InputError

TUNED = re.compile(
    r"[\s_-]+(instruct|chat|it|base|hf|pt|thinking|deduped|2[0-9](?:0[1-9]|1[0-2]))(?=[\s_-]|$)",
    re.IGNORECASE,
)
"""Words, and months such as 2507, that publishers put into the names of one shape."""
ROUNDED = re.compile(
    r"[\s_-]+(fp8|fp4|nvfp4|mxfp4|int[48]|[48]-?bit|w\d+a\d+|gptq|awq|autoround|kv|dynamic|block"
    r"|quark|quantized)(?=[\s_-]|$)",
    re.IGNORECASE,
)
"""Words of the format that a checkpoint's weights were rounded to: its shape is that of the model
without them, but what it takes in time and memory is not."""


@dataclass(frozen=True, slots=True)
class Names:
    """All spellings that lead to a canonical name."""

    what: str
    """What is named, for messages: `model`."""
    owners: dict[str, str] = field(default_factory=dict)
    """Folded spelling → canonical name."""

    def claim(self, alias: str, owner: str, *, place: str) -> None:
        """Give a name to its owner; two owners of one name are an error."""
        holder = self.owners.setdefault(fold(alias), owner)
        if holder != owner:
            raise InputError(f"{place}: {alias!r} names both {holder} and {owner}")

    def get(self, name: str) -> str | None:
        """The canonical name behind `name`; None when it is unknown."""
        own = name.rpartition("/")[2] if name.count("/") == 1 else name
        for spelling in (name, own, TUNED.sub("", own)):
            if fold(spelling) in self.owners:
                return self.owners[fold(spelling)]
        return None

    def shape_of(self, name: str) -> str | None:
        """The canonical name behind `name`, whatever its weights were rounded to."""
        return self.get(name) or self.get(ROUNDED.sub("", name))

    def find(self, name: str) -> str:
        """The canonical name behind `name`; an unknown one is refused with the nearest."""
        found = self.get(name)
        if found is None:
            raise InputError(f"unknown {self.what} {name!r}; {self.hint(name)}")
        return found

    def hint(self, name: str) -> str:
        """The nearest names, as the second half of a message."""
        if shape := self.shape_of(name):
            return f"that is {shape} with rounded weights: give {shape} and their format apart"
        near = difflib.get_close_matches(fold(name), self.owners, n=12, cutoff=0.4)
        nearest = list(dict.fromkeys(self.owners[one] for one in near))[:5]
        if nearest:
            return f"did you mean {', '.join(nearest)}? Or give the path of a config.json"
        return "give the path of a Hugging Face config.json, or sizes as layers=…,hidden=…,heads=…"


def fold(name: str) -> str:
    """One spelling for all.

    >>> fold("Llama 3.1_8B") == fold("llama-3.1-8b")
    True
    """
    return re.sub(r"[\s_/()-]+", "", name.casefold())
