"""A model written for other runtimes: what came out, whether it answers alike, and how fast.

One row per format, and first the eager model in float32 that all were compared with.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.calls import CallTimes
from ridgeline.records.compression import Speedup
from ridgeline.records.measurement import Environment
from ridgeline.records.tagged import TaggedRecord

ExportStatus = Literal["ok", "failed", "differs", "dropped"]
"""Whether a format was kept, and why not.

`failed`: not converted, or not loaded; `differs`: its answers are wrong, beyond any rounding;
`dropped`: it lost more than `--max-drop`."""


class Likeness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answers at one batch and one image size, beside those of the eager model in float32."""

    batch: int
    size: tuple[int, ...]
    """Height and width of the images; of other inputs, what follows the batch."""
    fixed: str = ""
    """Why the format did not take this size; empty: it did."""
    agreement: float | None = None
    """Share of answers that are equal: the class of the largest output, or of a detector the boxes
    that meet one of the same class; null where there is nothing to choose."""
    sqnr_db: float | None = None
    """Signal over the squared difference, in dB; null: no difference at all, or not run."""
    max_abs_error: float | None = None
    inputs: int = 0
    """Inputs that were compared."""
    wrong: str = ""
    """Why no rounding explains the difference; empty: it may."""


class WrongStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first layer whose output differs from the eager model's."""

    layer: str
    sqnr_db: float
    before: str = ""
    """The layer before it that still agreed."""
    compared: int
    """Layers that could be compared."""


class Fusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operators of one forward pass, by kind, and how many kernels are left of them."""

    operators: int
    kernels: int
    before: dict[str, int]
    """Kind of operator → calls in the eager model."""
    after: dict[str, int]
    """Kind of kernel or node → those of the optimised program."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Images per second at one batch."""

    batch: int
    per_second: float


class ExportSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What calls took in a process of its own, in turns with the other formats."""

    load_seconds: float
    first_call_seconds: float
    closed: CallTimes
    paced: CallTimes | None = None
    """The calls made at a period, with `--period`."""
    throughput: tuple[Throughput, ...] = ()
    peak_memory_bytes: int
    """The most that the process held, Python and torch included."""
    before_memory_bytes: int
    """What it held before the model was loaded."""


class ExportRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came of one format."""

    format: str
    precision: str
    status: ExportStatus
    reason: str = ""
    """In one line, where the status is not `ok`."""
    file: str | None = None
    """What the runtime loads, where it was kept."""
    size_bytes: int | None = None
    convert_seconds: float = 0.0
    cached: bool = False
    """It came from the cache of earlier conversions."""
    likeness: tuple[Likeness, ...] = ()
    top1: float | None = None
    """Share of the labelled images that are right, at the first size; null without labels."""
    wrong_stage: WrongStage | None = None
    fusion: Fusion | None = None
    speed: ExportSpeed | None = None
    speedup: Speedup | None = None
    """Over eager float32, from the rounds of both."""
    notes: tuple[str, ...] = ()


class RuntimeExport(TaggedRecord, frozen=True, kw_only=True, tag="runtime-export"):
    """Everything that `ridgeline export` wrote and found."""

    model: str
    check: str
    """The inputs that were compared on."""
    inputs: int
    """How many there were."""
    notes: tuple[str, ...] = ()
    """What a reader must know of them: no labels, random numbers."""
    threads: int
    max_drop: float | None
    rows: tuple[ExportRow, ...]
    """The formats, the eager model first."""
    saved: str | None
    """The directory, where anything was kept."""
    environment: Environment
