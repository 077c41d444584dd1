"""The object that all requests are made of: exact types, and no unknown field that asks."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from ridgeline.serve.http.protocol.let_go import is_let_go
from ridgeline.serve.http.protocol.switched_off import is_off

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
    """Where this stands if what nobody reads may stand beside it; see `let_go`."""

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
            or not (_asks_nothing(value) or is_off(name, given) or cls._lets_go(name, known))
        }

    @classmethod
    def _lets_go(cls, name: Any, known: set[str]) -> bool:
        return isinstance(name, str) and name not in known and is_let_go(name, cls.carried_in)


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
