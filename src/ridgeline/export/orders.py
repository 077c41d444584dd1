"""What a worker is asked to do, and what it answers: one JSON line each."""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.calls import CallTimes
from ridgeline.records.runtime_export import Likeness, Throughput, WrongStage
from ridgeline.runtimes import Free, Precision

Fix = Literal["nothing", "size", "all"]
REFERENCE = "reference.pt"
"""In the job's folder: inputs, and what eager PyTorch answers in float32."""
EAGER = "eager"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every order and every answer."""


class ModelOrder(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="model"):
    """Load the model, run the check's inputs, and write both to `reference.pt`."""

    source: str
    weights: str | None
    check: str
    image_size: int | None
    calibrate: bool
    folder: str
    threads: int


class ReferenceAnswer(
    _Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="reference"
):
    """What the eager model was run on."""

    inputs: int
    notes: list[str]
    digest: str
    """The hash of weights, operators and calibration."""
    operators: dict[str, int]
    """Kind → calls of one forward pass."""
    top1: float | None
    likeness: list[Likeness]
    """Cases that eager PyTorch took; `fixed` says why it did not take the others."""


class ConvertOrder(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="convert"):
    """Load the model and convert it into `folder`/`runtime`."""

    source: str
    weights: str | None
    folder: str
    runtime: str
    precision: Precision
    fix: Fix


class ConvertAnswer(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="converted"):
    """What a conversion has written."""

    free: list[Free]
    notes: list[str]
    seconds: float


class LoadOrder(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="load"):
    """Load one format, or the model itself, and call it once."""

    folder: str
    runtime: str
    threads: int
    source: str = ""
    weights: str | None = None


class LoadAnswer(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="loaded"):
    """The first call is of the first case."""

    load_seconds: float
    first_call_seconds: float
    before_memory_bytes: int


class CompareOrder(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="compare"):
    """Compare the answers of all cases."""


class CompareAnswer(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="compared"):
    """What was found, case by case."""

    likeness: list[Likeness]
    top1: float | None
    fusion: dict[str, int] | None
    """Kind of kernel → how many; None where the format does not say."""


class RoundOrder(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="round"):
    """Call at batch 1 for so long."""

    seconds: float
    period_seconds: float | None


class RoundAnswer(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="round-done"):
    """The round's median; the worker keeps the samples."""

    median_seconds: float


class SpeedOrder(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="speed"):
    """Throughput over batches, and what all rounds come to."""

    seconds: float


class SpeedAnswer(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="speed-done"):
    """What all rounds come to, together."""

    closed: CallTimes
    paced: CallTimes | None
    throughput: list[Throughput]
    peak_memory_bytes: int


class StagesOrder(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="stages"):
    """Name the first layer of a format that differs at one case."""

    source: str
    weights: str | None
    folder: str
    runtime: str
    case: int


class StagesAnswer(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="staged"):
    """None where the format does not let its layers be seen."""

    stage: WrongStage | None


class FailureAnswer(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="failed"):
    """One line, and the exit code of its kind."""

    message: str
    code: int
    kind: str = ""


Order = ModelOrder | ConvertOrder | LoadOrder | CompareOrder | RoundOrder | SpeedOrder | StagesOrder
Answer = (
    ReferenceAnswer | ConvertAnswer | LoadAnswer | CompareAnswer | RoundAnswer | SpeedAnswer
    | StagesAnswer | FailureAnswer
)  # fmt: skip
