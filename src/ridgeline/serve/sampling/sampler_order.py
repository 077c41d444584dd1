"""The order in which a distribution is cut, where a request says another one than ours.

llama.cpp's clients name the samplers of a request in their order (`samplers`); its own default and
Ollama's differ from vLLM's, which is ours (`distribution.py`). Orders that come to the same are the
same: a share of the largest probability and a number of tokens cut alike before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ridgeline.serve.messages import Sampling

OURS = ("temperature", "min_p", "top_k", "top_p")
LLAMA_CPP = ("penalties", "top_k", "top_p", "min_p", "temperature")
"""The default of llama.cpp's server, of what is here (tools/server/README.md)."""
OLLAMA = ("penalties", "top_k", "temperature", "top_p", "min_p")
"""The order of Ollama's runner (sample/samplers.go)."""
INFILL = "infill"
MOST_SAMPLERS = 64
_LETTERS = {
    "k": "top_k", "p": "top_p", "m": "min_p", "t": "temperature", "e": "penalties", "i": INFILL,
    "d": "dry", "y": "typ_p", "s": "top_n_sigma", "x": "xtc", "a": "adaptive_p",
}  # fmt: skip
_OTHER_NAMES = {"temp": "temperature", "typical_p": "typ_p", "typical": "typ_p", "nucleus": "top_p"}
_ALIKE = ({"temperature", "top_k"}, {"min_p", "top_k"})
"""Neighbours that may change places."""


def named_samplers(given: Any) -> Any:
    """The samplers that a request names, by names or letters, in their order.

    What is neither a text nor a list of texts is given back.

    >>> named_samplers("kt"), named_samplers(["min-p", "temp"])
    (('top_k', 'temperature'), ('min_p', 'temperature'))

    Raises:
        ValueError: A name that no sampler has.
    """
    if not isinstance(given, str | list | tuple) or not all(isinstance(one, str) for one in given):
        return given
    if len(given) > MOST_SAMPLERS:
        raise ValueError(f"more than {MOST_SAMPLERS} samplers")
    known = set(_LETTERS.values())
    found = []
    for one in given:
        plain = one.replace("-", "_")
        name = _LETTERS.get(one) if isinstance(given, str) else _OTHER_NAMES.get(plain, plain)
        if name not in known:
            raise ValueError(f"{one[:40]!r} is no sampler; known are {', '.join(sorted(known))}")
        found.append(name)
    return tuple(dict.fromkeys(found))


def ordered(sampling: Sampling, names: Sequence[str]) -> Sampling:
    """The parameters with the samplers that are named, in their order; others are left out.

    Raises:
        ValueError: Penalties are to come behind another sampler: here they come first.
    """
    absent = {"temperature", "penalties", *OURS} - set(names)
    neutral = Sampling()
    fields = {
        field: getattr(neutral, field)
        for name in absent
        for field in (_PENALTIES if name == "penalties" else (name,))
    }
    sampling = replace(sampling, **fields)
    chain = [name for name in names if name in OURS and _is_on(sampling, name)]
    before = [one for one in names[: names.index("penalties")] if one in chain] if (
        "penalties" in names and any(_is_on(sampling, one) for one in _PENALTIES)
    ) else []  # fmt: skip
    if before:
        raise ValueError(f"penalties come first here, not behind {before[0]}")
    ours = [name for name in OURS if name in chain]
    return replace(sampling, chain=() if _sorted(chain) == ours else tuple(chain))


_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def _is_on(sampling: Sampling, field: str) -> bool:
    return bool(getattr(sampling, field) != getattr(Sampling(), field))


def _sorted(chain: list[str]) -> list[str]:
    """The samplers, brought as near to our order as neighbours that cut alike may be."""
    found = list(chain)
    for _ in found:
        for at in range(len(found) - 1):
            one, other = found[at : at + 2]
            if {one, other} in _ALIKE and OURS.index(one) > OURS.index(other):
                found[at : at + 2] = other, one
    return found
