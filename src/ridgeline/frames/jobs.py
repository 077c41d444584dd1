"""Calls of stages as drivers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ridgeline.records.realtime_run import CallMode


class SensorStamp(msgspec.Struct, frozen=True):
    """Which frame of a sensor a value came from, and when that was taken."""

    frame: int
    seconds: float


class FrameJob(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One call of a stage that is due: what goes in, and how the deadline wants it done."""

    stage: str
    number: int
    """Unique among the jobs of a flow."""
    frame: int
    """Identity of the leading sensor's frame."""
    stamps: Mapping[str, SensorStamp]
    """Sensor → the frame behind this call, for every sensor that it depends on; of several the
    oldest."""
    inputs: tuple[Any, ...]
    """The payloads, one per edge, in the order of the stage's inputs."""
    mode: CallMode
    ready: float
    """When all inputs lay at the stage."""
    deadline: float
    """When the result must be out of the sink; infinite without a deadline."""
