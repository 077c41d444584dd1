"""Update times of networks for images by one to three of the user's own (`--measured`).

All calls on one device, under one runtime, share how fast its clocks, memory and host really are:
the pace of the system, a factor of every predicted time. What a measured time is off by is divided
between that pace and what is this one time's alone, by how far each is known to go: with n times
the mean of log(measured / predicted) counts for n P² / (n P² + O²). A factor for each of
arithmetic, traffic and launches does no better on published tables.

A file holds one measurement or a list of up to three:

    {"latency_seconds": 0.0042}
    {"images_per_second": 1830, "batch": 64, "model": "resnet50", "image": 224}

What it leaves out (`batch`, `model`, `image`) is as in the question; all else is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.plan.plausible import check_near
from ridgeline.plan.vision.question import network_of
from ridgeline.records.estimate import CoefficientChange
from ridgeline.records.input_file import read_json

PACE_SPREAD = 0.3
"""Standard deviation of a system's pace, in log: how far devices fall that no fit has seen."""
OWN_SPREAD = {"latency": 0.2, "throughput": 0.15, "training": 0.1}
"""The same of what is one time's alone, by the last word of its kind."""
WIDTHS = {
    "cpu latency": 0.38,
    "cpu throughput": 0.38,
    "gpu latency": 0.48,
    "gpu throughput": 0.21,
    "training": 0.18,
}
"""Kind of time → log of what an interval multiplies and divides by once one is measured: the 80 %
quantile of published systems' other times, over rows or over systems, whichever is more
(docs/results/accuracy_measured.md); never wider than without a measurement."""
MOST = 3
CURE = 'give {"latency_seconds": 0.0042} or {"images_per_second": 1830}, or a list of up to three'


class MeasuredImages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement as a file has it."""

    latency_seconds: float | None = None
    """One call's, or one training step's."""
    images_per_second: float | None = None
    batch: int | None = None
    model: str | None = None
    image: int | None = None

    def seconds(self, batch: int) -> float:
        """The time of one call of so many images.

        Raises:
            InputError: Not exactly one of both figures is given, above 0.
        """
        given = self.latency_seconds or self.images_per_second
        both = self.latency_seconds is not None and self.images_per_second is not None
        if both or given is None or not 0.0 < given < np.inf:
            raise InputError("give latency_seconds or images_per_second, above 0")
        return given if self.latency_seconds is not None else batch / given


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPace:
    """How long calls on a measured system take, over what the shipped fit says."""

    factor: float = 1.0
    widths: Mapping[str, float] | None = None
    """The interval's width by kind of time, like `WIDTHS`; None stands for the shipped fit's."""

    @property
    def changes(self) -> list[CoefficientChange]:
        """What a measurement moved; nothing without one."""
        if self.widths is None:
            return []
        return [CoefficientChange(name="pace", before=1.0, after=self.factor)]


AS_SHIPPED = SystemPace()
"""The pace of a system of which nothing was measured."""


def read_measured(paths: Sequence[Path]) -> list[MeasuredImages]:
    """The measurements of all these files.

    Raises:
        InputError: With the file, what is wrong in it, and the cure.
    """
    found = [one for path in paths for one in _read(path)]
    if len(found) > MOST:
        raise InputError(f"--measured: {len(found)} measurements; give one to {MOST}")
    return found


def _read(path: Path) -> list[MeasuredImages]:
    content = read_json(path, object, option="--measured", cure=CURE)
    entries = content if isinstance(content, list) else [content]
    if not 1 <= len(entries) <= MOST:
        raise InputError(f"--measured {path}: {len(entries)} measurements; give one to {MOST}")
    try:
        found = [msgspec.convert(entry, MeasuredImages) for entry in entries]
        for one in found:
            one.seconds(1)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"--measured {path}: {error}; {CURE}") from None
    return found


def measured_network(one: MeasuredImages, asked: VisionNetwork) -> VisionNetwork:
    """The network that a measurement is of: the one in question, unless it names another."""
    if not (one.model or one.image):
        return asked
    return network_of(one.model or asked.name, one.image)


def pace_of(
    measured: Sequence[MeasuredImages],
    kind: Callable[[MeasuredImages], str],
    predict: Callable[[MeasuredImages], tuple[float, int]],
) -> SystemPace:
    """The pace that these measurements suggest.

    Args:
        measured: None or more.
        kind: The kind of time of each.
        predict: The shipped fit's time of each, and the images of one call.
    """
    if not measured:
        return AS_SHIPPED
    logs, trust = [], []
    for one in measured:
        seconds, batch = predict(one)
        took = one.seconds(batch)
        if one.latency_seconds is not None:
            check_near("latency_seconds", took, seconds)
        else:
            check_near("images_per_second", batch / took, batch / seconds, "images per second")
        logs.append(np.log(took / seconds))
        trust.append((PACE_SPREAD / OWN_SPREAD[kind(one).rpartition(" ")[2]]) ** 2)
    moved = float(np.dot(logs, trust) / (1.0 + np.sum(trust)))
    return SystemPace(factor=float(np.exp(moved)), widths=WIDTHS)
