"""Batches in page-locked memory, from which the GPU copies by itself.

Out of pageable memory the driver first copies into a small pinned buffer, in pieces, with the
host waiting. The pinning is done by a thread of the loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.argument import set_argument

CARD = Card(
    name="pinned-memory",
    title="Pinned host memory",
    cures=("pageable-copies",),
    costs="Host memory of a few batches that cannot be swapped out.",
    source="PyTorch documentation, CUDA semantics, use pinned memory buffers",
    equivalence="bit-equal",
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
    if context.profile.habit("pageable_copy").calls == 0:
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


def _fits(arguments: Mapping[str, Any]) -> bool:
    import torch

    return not arguments.get("pin_memory") and torch.accelerator.is_available()


apply, edits = set_argument(
    CARD, "DataLoader", "pin_memory", True, fits=_fits, lacks=lambda loader: not loader.pin_memory
)
