"""The classes of training software: `stacks.toml` beside this file, read once."""

from __future__ import annotations

import difflib
import functools
import re
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.cost.training.workload import Stack
from ridgeline.errors import InputError
from ridgeline.records.input_file import read_toml
from ridgeline.records.layout import TRAINED, UNTRAINED

STACKS = Path(__file__).with_name("stacks.toml")


class StackFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stacks.toml`, in the order in which cues are looked for."""

    stack: list[dict[str, Any]]
    """The fields of `Stack`, one table for each class."""


@functools.cache
def stacks() -> tuple[Stack, ...]:
    """Every class of training software."""
    tables = read_toml(STACKS, StackFile).stack
    try:
        return tuple(Stack(**table) for table in tables)
    except TypeError as error:
        raise InputError(f"{STACKS}: {error}") from None


def require_precision(software: str, precision: str) -> None:
    """Refuse what the software cannot multiply in.

    Raises:
        InputError: It is of the class that `ridgeline train` is of, and computes in no such format.
    """
    if software == "torch" and precision in UNTRAINED:
        raise InputError(
            f"--precision {precision}: software of the class torch, as `ridgeline train` is,"
            f" computes in {', '.join(TRAINED)}; choose one of them, or name software that has it,"
            " as --software megatron-2026"
        )


def stack_of(words: str) -> Stack | None:
    """The class that words (in lower case) point at; None: none is named.

    >>> stack_of("maxtext on tpu").name
    'jax'
    """
    return next((one for one in stacks() if any(re.search(cue, words) for cue in one.cues)), None)


def stack(name: str) -> Stack:
    """The software class called `name`.

    >>> stack("megatron").fused_attention
    True
    """
    known = {one.name: one for one in stacks()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise InputError(f"unknown software stack {name!r}; {hint}")
    return known[name]
