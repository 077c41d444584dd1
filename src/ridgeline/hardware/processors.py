"""What one multiprocessor (compute unit) of an architecture holds at once, from `processors.toml`.

These are limits of an architecture, whatever the part is called; `catalogue.device` knows parts.
"""

from __future__ import annotations

import difflib
import functools
import re
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import device
from ridgeline.hardware.facts import Fact, Source
from ridgeline.records.input_file import read_toml

FILE = Path(__file__).parent / "processors.toml"


class ProcessorLimits(Fact, frozen=True, kw_only=True):
    """The limits that decide how many blocks of a kernel one multiprocessor holds."""

    target: str
    """What compilers call it: `sm_90`, `gfx942`."""
    name: str
    source: str
    threads_per_warp: int
    """Threads of a warp, or of AMD's wave."""
    warps: int
    """The most warps that are resident."""
    blocks: int
    """The most blocks that are resident."""
    single_warp_blocks: int | None = None
    """The most blocks of one warp, which need no barrier; None: as many as `blocks`."""
    threads_per_block: int = 1024
    registers: int
    """32-bit registers of the whole multiprocessor."""
    register_partitions: int
    """Parts that the register file is cut into; a warp's registers lie in one of them."""
    registers_unit: int
    """Registers are given to a warp in multiples of this."""
    registers_per_thread: int
    """The most that an instruction can name."""
    shared_bytes: int
    """Shared memory (LDS) of the multiprocessor with the largest carve-out."""
    shared_bytes_per_block: int
    """The most that one block may have, opted in where it must be."""
    shared_unit_bytes: int
    """Shared memory is given to a block in multiples of this."""
    reserved_shared_bytes: int
    """What the driver takes of each block's shared memory for itself."""


class ProcessorFile(Fact, frozen=True, kw_only=True):
    """The whole of `processors.toml`."""

    sources: dict[str, Source]
    processor: list[ProcessorLimits]


@functools.cache
def processors() -> dict[str, ProcessorLimits]:
    """Every architecture that we have limits of, by its target."""
    return {one.target: one for one in read_toml(FILE, ProcessorFile).processor}


def processor(name: str) -> ProcessorLimits:
    """The limits of `sm_90`, `9.0`, `gfx942`, or of the architecture of a device's name.

    >>> processor("sm_90").warps, processor("9.0").target, processor("h100").target
    (64, 'sm_90', 'sm_90')

    Raises:
        InputError: Neither an architecture nor a device that we have limits of.
    """
    known = processors()
    target = as_target(name)
    if target in known:
        return known[target]
    try:
        part = device(name)
    except InputError:
        near = difflib.get_close_matches(target, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}; " if near else ""
        listed = ", ".join(known)
        raise InputError(
            f"--arch {name}: not a known architecture or device; {hint}known: {listed}"
        ) from None
    target = as_target(part.target)
    if target not in known:
        raise InputError(
            f"--arch {name}: {part.name} ({part.architecture}) has no limits of blocks and warps "
            f"here; known architectures: {', '.join(known)}"
        )
    return known[target]


def as_target(name: str) -> str:
    """`sm_90` of `9.0`, `sm90`, `SM_90a`; other names in lower case."""
    folded = name.strip().lower()
    version = re.fullmatch(r"(\d+)\.(\d)", folded)
    if version:
        return f"sm_{version[1]}{version[2]}"
    number = re.fullmatch(r"sm_?(\d+)[af]?", folded)
    return f"sm_{number[1]}" if number else folded
