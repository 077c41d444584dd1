"""Classes of serving engines (`engines.toml`)."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device
from ridgeline.records.input_file import read_toml

ENGINES = Path(__file__).with_name("engines.toml")
LARGE_BYTES = 70 * 2**30
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
    large_most_sequences: int = 0
    """The same on devices of `LARGE_BYTES` and more that are newer than Ampere; 0: the same."""
    small_chunk: int = 0
    """The chunk on all other devices; 0: the same."""
    balance_steps: int = 0
    """Steps that a prompt waits at most until every group of attention data parallelism has one."""
    prompts_first: bool = False
    """Whether decodes wait while any prompt does."""
    by_prompt: bool = False
    """Whether it admits a request as soon as there is room for its prompt, and sends the latest
    back to wait when completions need that room (vLLM's `Scheduler`; SGLang foresees 0.7 of them,
    `init_new_token_ratio`)."""
    like: str = ""
    """The classes whose coefficients hold where it has none of its own, parted by blanks."""
    reserved: float
    """The share of a completion's tokens that admission keeps room for."""
    why: str

    @property
    def in_python(self) -> bool:
        """Whether it is a server whose loop is in Python."""
        return "python" in (self.name, *self.like.split())

    def most_on(self, device: Device) -> float:
        """Sequences that it runs at once on a device unless told otherwise."""
        large = self.large_most_sequences and is_large(device)
        return float(self.large_most_sequences if large else self.most_sequences)

    def chunk_on(self, device: Device) -> float:
        """Prompt tokens of one step on a device unless told otherwise."""
        small = self.small_chunk and not is_large(device)
        return float(self.small_chunk if small else self.chunk)


def is_large(device: Device) -> bool:
    """Whether an engine takes it for a large one (vLLM's `EngineArgs._set_default_args`)."""
    large = device.memory.usable_bytes >= LARGE_BYTES
    return large and not device.architecture.startswith("Ampere")


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
