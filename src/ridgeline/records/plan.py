"""What a search for a training layout found: the JSON contract of `ridgeline plan training`."""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.records.estimate import Estimate
from ridgeline.records.finite import Computed
from ridgeline.records.layout import Layout

Objective = Literal["time", "cost", "memory"]


class PlanPart(Computed, frozen=True, kw_only=True):
    """What the records below have in common: immutable, fields by name."""


class Choice(PlanPart, frozen=True, kw_only=True):
    """One layout with what theory says of it."""

    layout: Layout
    estimate: Estimate


class RunnerUp(PlanPart, frozen=True, kw_only=True):
    """A layout that differs from the best in more than a detail, and why it loses."""

    layout: Layout
    estimate: Estimate
    times_slower: float
    """Its step time over that of the best."""
    why: list[str]


class ParetoPoint(PlanPart, frozen=True, kw_only=True):
    """A layout that nothing beats in both of two goals."""

    layout: Layout
    estimate: Estimate
    num_devices: int
    device_seconds_per_step: float
    usd_per_step: float | None
    """None where no price of the device is on record."""


class KnobValue(PlanPart, frozen=True, kw_only=True):
    """The best that is left when one knob is held at one value."""

    knob: str
    value: str
    times_slower: float | None
    """Its step time over that of the best, 1 for the value that the best has; None: none fits."""


class WhatIf(PlanPart, frozen=True, kw_only=True):
    """The best under a changed cluster."""

    change: str
    num_devices: int
    step_seconds: float | None
    """None where nothing fits."""
    times_faster: float | None
    layout: Layout | None


class Bill(PlanPart, frozen=True, kw_only=True):
    """What the whole run takes at the predicted step time, without failures or evaluation."""

    tokens: float
    steps: int
    days: float
    device_hours: float
    usd: float | None
    usd_per_device_hour: float | None
    kilowatt_hours: float | None
    notes: list[str]


class ClusterSize(PlanPart, frozen=True, kw_only=True):
    """A cluster that trains the model by the date that was asked for."""

    cluster: str
    """The cluster, written `COUNTxDEVICE`."""
    days: float
    usd: float | None


class Launch(PlanPart, frozen=True, kw_only=True):
    """The same layout in the words of one framework."""

    framework: str
    command: str
    files: dict[str, str] = msgspec.field(default_factory=dict)
    """File name → content, for frameworks that read a file."""
    cannot: list[str] = msgspec.field(default_factory=list)
    """What the framework has no setting for, one sentence each."""
    layout: Layout
    """The best layout that the framework can express, or the plan's best where it can none."""
    times_slower: float
    """Its step time over that of the plan's best."""


class Plan(PlanPart, frozen=True, kw_only=True, tag_field="record", tag="training-plan"):
    """The answer of one search."""

    model: str
    cluster: str
    """The cluster, written `COUNTxDEVICE`."""
    global_batch: int
    seq: int
    objective: Objective
    best: Choice
    runners_up: list[RunnerUp]
    pareto: list[ParetoPoint]
    knobs: list[KnobValue]
    what_if: list[WhatIf]
    bill: Bill | None
    clusters: list[ClusterSize] = msgspec.field(default_factory=list)
    """The clusters that meet the date, where one is given; else empty."""
    launch: list[Launch]
    searched: int
    """Layouts that were judged."""
    feasible: int
    """Judged layouts that fit in memory."""
    seconds: float
    """The time that the search itself took."""
    assumed: list[str]
