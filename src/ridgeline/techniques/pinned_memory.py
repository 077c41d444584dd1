"""Batches in page-locked memory, from which the GPU copies by itself.

Out of pageable memory the driver first copies into a small pinned buffer, in pieces, with the
host waiting. The pinning is done by a thread of the loader.
"""

from __future__ import annotations

from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.ledger import Options
from ridgeline.techniques import (
    Applicability,
    Card,
    Context,
    Edit,
    Gain,
    SetArgument,
    Stage,
    amdahl,
)

CARD = Card(
    name="pinned-memory",
    title="Pinned host memory",
    cures=("pageable-copies",),
    costs="Host memory of a few batches that cannot be swapped out.",
    source="PyTorch documentation, CUDA semantics, use pinned memory buffers",
    promise="bit-equal",
    stage=Stage.INPUT,
)


def applies(context: Context) -> Applicability:
    """Batches of a DataLoader go to a GPU out of pageable memory."""
    if context.device != "cuda":
        return Applicability(False, f"the model is on {context.device}: nothing is copied to it")
    loaders = context.profile.loaders
    if not loaders:
        return Applicability(False, "no DataLoader was iterated")
    if all(loader.pin_memory for loader in loaders):
        return Applicability(False, "batches are pinned")
    if context.profile.settings.copy_from_pageable == 0:
        return Applicability(False, "nothing was copied out of pageable memory")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The copy runs at the ratio of the probed rates, or twice as fast."""
    ceilings = context.ceilings
    ratio = 2.0
    if ceilings is not None:
        pinned = ceilings.host_to_device_pinned_bytes_per_second
        pageable = ceilings.host_to_device_pageable_bytes_per_second
        if pinned and pageable:
            ratio = max(pinned / pageable, 1.0)
    return amdahl(context.phase_share("copy"), 1.0, 2 * ratio)


def apply(points: Points, options: Options) -> Undo:
    """Set it on every loader as it is constructed."""
    import torch

    changed = 0

    def pin(arguments: dict[str, Any]) -> None:
        nonlocal changed
        if arguments.get("pin_memory") or not torch.accelerator.is_available():
            return
        arguments["pin_memory"] = True
        changed += 1
        points.changed(CARD.name, f"{changed} loader(s) pin their batches")

    points.on_loader.append(pin)
    return lambda: points.on_loader.remove(pin)


def edits(context: Context, options: Options) -> list[Edit]:
    """One argument of each loader's constructor."""
    return [
        SetArgument(site=loader.site, callee="DataLoader", keyword="pin_memory", value="True")
        for loader in context.profile.loaders
        if loader.site is not None and not loader.pin_memory
    ]
