"""Computed answers hold finite numbers, or there is no answer.

JSON has no NaN and no infinity, and what writes it would make them `null`: a reader of the answer
could not tell a failure of ours from a field that is empty on purpose.
"""

from __future__ import annotations

import math

import msgspec

from ridgeline.errors import RidgelineError


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is predicted, planned or simulated: an answer that is not finite is none."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not _finite(getattr(self, name)):
                raise RidgelineError(
                    f"the {name} that was computed is not finite: a failure of Ridgeline, not of"
                    " what was asked; please report the command"
                )


def _finite(value: object) -> bool:
    """Whether all numbers of a value are; records inside it have checked their own."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_finite(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_finite(item) for item in value)
    return True
