"""What the job asks of a side, and what it answers: one JSON document per line."""

from __future__ import annotations

import msgspec

from ridgeline.records.ledger import Options


class AppliedCure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cure with its settings."""

    name: str
    options: Options = {}


class OpenSide(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Read the pipeline, apply a stack, and run the recorded frames through it."""

    pipeline: str
    stack: list[AppliedCure]
    recording: str
    """A file; written where it is not there."""
    frames: int
    prime: int
    """Leading frames on which programs are made and caches filled; the others are compared."""
    results: str
    """A file for what came out."""


class SideOpened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """What the pipeline is, and how long a frame takes in a plain loop."""

    frame_seconds: float
    period_seconds: float
    deadline_seconds: float | None
    quality: dict[str, float]
    threads: int
    name: str


class FindCures(msgspec.Struct, frozen=True, kw_only=True, tag="find"):
    """Watch some frames, and say which cures apply."""

    frames: int
    queue_ratio: float


class CureOffer(msgspec.Struct, frozen=True, kw_only=True):
    """One cure on this pipeline as it now is."""

    name: str
    options: list[Options]
    reason: str
    """Why there are no settings."""


class CuresFound(msgspec.Struct, frozen=True, kw_only=True, tag="found"):
    """Every cure, in the order in which they are tried."""

    offers: list[CureOffer]
    stage_seconds: dict[str, float]


class TimeFrames(msgspec.Struct, frozen=True, kw_only=True, tag="time"):
    """Run so many frames at a period of the first sensor."""

    frames: int
    period_seconds: float | None
    """Seconds between frames; None: the next as soon as there is room."""


class FramesTimed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """What a block of frames took."""

    latencies: list[float]
    """Age of each result when it came out."""
    stage_seconds: dict[str, float]
    """Stage → median seconds of a call."""
    delivered: int
    sent: int
    seconds: float | None
    """From the first result to the last; null where fewer than two came out."""


class CompareResults(msgspec.Struct, frozen=True, kw_only=True, tag="compare"):
    """Compare what came out of this side with another's results."""

    other: str
    cure: str
    """Whose check it is."""
    may_fall: float


class ResultsCompared(msgspec.Struct, frozen=True, kw_only=True, tag="compared"):
    """The verdict of the check."""

    passed: bool
    summary: str


class SideFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The order could not be carried out."""

    reason: str
    """Why, in one line."""


Order = OpenSide | FindCures | TimeFrames | CompareResults
Answer = SideOpened | CuresFound | FramesTimed | ResultsCompared | SideFailed
