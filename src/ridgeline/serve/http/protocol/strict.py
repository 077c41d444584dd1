"""What all requests have in common: types are exact, unknown fields are errors.

The first wrong element of a list is enough: pydantic would else describe each of a million.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

LARGEST_INT = 2**63 - 1
MOST_FIELDS = 256
"""Of one object; no request has a hundred."""
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=1 << 26)]
Name = Annotated[str, Field(min_length=1, max_length=512)]
PlainName = Annotated[Name, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
"""Without control characters."""
Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class Strict(BaseModel):
    """No conversion ("5" is no number), no unknown field, no infinity."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        return _at_most(given, MOST_FIELDS, "fields")


def few(most: int) -> BeforeValidator:
    """Of a mapping: its entries are counted before any of them is looked at."""
    return BeforeValidator(lambda given: _at_most(given, most, "entries"))


def _at_most(given: Any, most: int, what: str) -> Any:
    if isinstance(given, dict) and len(given) > most:
        raise ValueError(f"more than {most} {what}")
    return given
