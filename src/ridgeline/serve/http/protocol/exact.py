"""The object that all requests are made of: exact types, and no unknown field that asks.

Three kinds of unknown fields are no error. Some say nothing: programs that were written for
llama.cpp's server, text-generation-webui or KoboldCpp send all that they know, mostly switched off;
what belongs to a sampler that is off then says nothing, either. Values are those of the servers'
own documentation (llama.cpp, `tools/server/README.md`; text-generation-webui, `docs/03 - Parameters
Tab.md`); at any other value a sampler stays an unknown field, which is refused by its name.

A message that comes back, and a tool, carry what other servers and clients wrote beside them (marks
for a cache, signatures, ids). The template is given none of it, so no token can follow from it: it
is let go, and the reply names it in `X-Without-Effect`. Elsewhere an unknown field may be a
parameter of another server that alters tokens: it is refused, unless the operator says otherwise
(`--unknown-fields ignore`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

MOST_FIELDS = 256
"""The most fields of one object; no request has a hundred."""
LARGEST_EXACT = 2.0**53
"""Up to here every whole number is a float, too."""


class Strict(BaseModel):
    """No conversion ("5" is no number), no unknown field that asks for something, no infinity.

    Clients that fill in all that they know send nulls for what they do not want, and JSON knows
    no difference between 5 and 5.0.
    """

    carried_in: ClassVar[str] = ""
    """Where this stands if what nobody reads may stand beside it; see above."""
    idle: ClassVar[frozenset[str]] = frozenset()
    """Fields of other servers that are let go whatever they hold: nothing follows here."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        given = at_most(given, MOST_FIELDS, "fields")
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unused = {
            field.alias or name
            for name, field in cls.model_fields.items()
            if field.annotation is type(None)
        }
        return {
            name: _whole(value)
            for name, value in given.items()
            if name in known - unused
            or not (
                (value is not None and cls._is_idle(name))
                or _asks_nothing(value)
                or is_off(name, given)
                or cls._lets_go(name, known)
            )
        }

    @classmethod
    def _lets_go(cls, name: Any, known: set[str]) -> bool:
        return isinstance(name, str) and name not in known and is_let_go(name, cls.carried_in)

    @classmethod
    def _is_idle(cls, name: Any) -> bool:
        return name in cls.idle and is_let_go(name, cls.carried_in, surely=True)


def few(most: int) -> BeforeValidator:
    """Count the entries of a mapping before any of them is looked at."""
    return BeforeValidator(lambda given: at_most(given, most, "entries"))


def _asks_nothing(value: Any) -> bool:
    """Whether nothing could follow from a field that is not known here."""
    return value is None or value in ([], {}, "")


def _whole(value: Any) -> Any:
    """A whole number as an int, which every field of numbers takes."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_EXACT:
        return int(value)
    return value


def at_most(given: Any, most: int, what: str) -> Any:
    """Give back what has no more entries than may be looked at. Raises ValueError."""
    if isinstance(given, dict | list) and len(given) > most:
        raise ValueError(f"more than {most} {what}")
    return given


MOST_NAMES = 32
"""So many are named; a header is no place for more."""
LONGEST_NAME = 64
_ASKING = frozenset({"prefix"})
"""Fields of messages of other servers that ask for something: never let go there."""


@dataclass(slots=True)
class LetGo:
    """What is let go of one request."""

    everything: bool = False
    """Whether unknown fields are, wherever they stand."""
    names: dict[str, None] = field(default_factory=dict)
    """Their names, in the order in which they came."""

    def takes(self, name: str, place: str, *, surely: bool = False) -> bool:
        """Whether an unknown field is let go; if so, it is noted.

        Args:
            name: The field's name.
            place: Where what nobody reads may stand, such as `messages`; empty: elsewhere.
            surely: Whether it is one that is let go wherever it stands.
        """
        plain = name.isidentifier() and name.isascii() and len(name) <= LONGEST_NAME
        if not plain or not (surely or self.everything or (place and name not in _ASKING)):
            return False
        if len(self.names) < MOST_NAMES:
            self.names[f"{place}.{name}" if place else name] = None
        return True


def told(place: str, keywords: Iterable[str]) -> list[str]:
    r"""Names for the header that says what had no effect; only those that a header can have.

    >>> told("tools", ["uniqueItems", "a\\r\\nb"])
    ['tools.uniqueItems']
    """
    plain = [one for one in keywords if one.removeprefix("$").isidentifier() and one.isascii()]
    return [f"{place}.{one[:LONGEST_NAME]}" for one in plain[:MOST_NAMES]]


_CURRENT: ContextVar[LetGo | None] = ContextVar("let_go", default=None)


@contextmanager
def letting_go(found: LetGo) -> Iterator[None]:
    """Note in `found` what is let go of the request that is read meanwhile."""
    token = _CURRENT.set(found)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def is_let_go(name: str, place: str, *, surely: bool = False) -> bool:
    """Whether an unknown field of the request that is being read is let go, which is noted."""
    return (_CURRENT.get() or LetGo()).takes(name, place, surely=surely)


_OFF: dict[str, tuple[float, ...]] = {
    "typical_p": (1,),
    "typical": (1,),
    "typ_p": (1,),
    "tfs_z": (1,),
    "tfs": (1,),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "nsigma": (-1, 0),
    "skew": (0,),
    "rep_pen": (1,),
    "repeat_penalty": (1,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "ban_eos_token": (0,),
    "add_bos_token": (1,),
    "min_tokens": (0,),
    "max_tokens_second": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "smoothing_factor": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "n_indent": (0,),
    "min_keep": (0,),
    "n_discard": (0,),
}
"""The values at which each does nothing."""
_SAME: dict[str, tuple[str, ...]] = {
    "max_new_tokens": ("max_tokens", "n_predict"),
    "max_tokens": ("n_predict",),
    "n_predict": ("max_tokens",),
    "num_predict": ("max_tokens", "n_predict"),
    "stopping_strings": ("stop",),
    "stop_sequence": ("stop",),
    "rep_pen": ("repetition_penalty", "repeat_penalty"),
    "repeat_penalty": ("repetition_penalty",),
    "repetition_penalty": ("repeat_penalty",),
    "sampler_seed": ("seed",),
}
"""Other servers' names of fields, which say nothing where the field stands beside them with the
same value: programs that serve many servers send all names at once."""
_PENALTIES = (
    "repeat_penalty", "rep_pen", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_PARTS: dict[str, tuple[str, ...]] = {
    "xtc_threshold": ("xtc_probability",),
    "repeat_last_n": _PENALTIES,
    "rep_pen_range": _PENALTIES,
    "rep_pen_slope": ("rep_pen",),
    "repetition_penalty_range": _PENALTIES,
    "dry_base": ("dry_multiplier",),
    "dry_allowed_length": ("dry_multiplier",),
    "dry_penalty_last_n": ("dry_multiplier",),
    "dry_sequence_breakers": ("dry_multiplier",),
    "dynatemp_exponent": ("dynatemp_range",),
    "smoothing_curve": ("smoothing_factor",),
    "mirostat_tau": ("mirostat", "mirostat_mode"),
    "mirostat_eta": ("mirostat", "mirostat_mode"),
}
"""What belongs to which sampler, and is nothing without it."""


def is_off(name: Any, given: dict[Any, Any]) -> bool:
    """Whether a field is a sampler at the value at which it does nothing, or a part of such a one.

    >>> is_off("typical_p", {"typical_p": 1}), is_off("typical_p", {"typical_p": 0.5})
    (True, False)
    >>> is_off("dry_base", {"dry_base": 1.75}), is_off("dry_base", {"dry_multiplier": 1})
    (True, False)
    >>> is_off("n_predict", {"n_predict": 8, "max_tokens": 8})
    True
    """
    if any(one in given and given[one] == given[name] for one in _SAME.get(name, ())):
        return True
    if name in _PARTS:
        return all(one not in given or is_off(one, given) for one in _PARTS[name])
    value = given.get(name)
    return name in _OFF and isinstance(value, int | float) and value in _OFF[name]
