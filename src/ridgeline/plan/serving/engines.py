"""Classes of serving engines (`engines.toml`)."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_toml

ENGINES = Path(__file__).with_name("engines.toml")
USUAL = "python"
"""The class of an engine that no cue names."""


class EngineClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a class of engines works."""

    name: str
    cues: list[str]
    """Regular expressions, looked for in a row's words without regard to case."""
    most_sequences: int
    chunk: int
    """Prompt tokens of one step at most."""
    reserved: float
    """The share of a completion's tokens that admission keeps room for."""
    why: str


class EngineFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `engines.toml`."""

    engine: list[EngineClass]


@functools.cache
def engines() -> dict[str, EngineClass]:
    """Every class by name, in the order in which cues are looked for."""
    found = read_toml(ENGINES, EngineFile).engine
    return {one.name: one for one in found}


def engine(name: str) -> EngineClass:
    """The class called `name`."""
    known = engines()
    if name not in known:
        raise InputError(f"unknown engine class {name!r}; use one of {', '.join(known)}")
    return known[name]


def engine_of(words: str) -> EngineClass:
    """The class that words point at.

    >>> engine_of("TensorRT-LLM docs (v1.0)").name
    'native'
    """
    folded = words.lower()
    for one in engines().values():
        if any(re.search(cue, folded) for cue in one.cues):
            return one
    return engine(USUAL)
