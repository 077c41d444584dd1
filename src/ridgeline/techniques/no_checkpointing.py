"""Keep activations instead of computing them again, where memory is not the limit.

Checkpointing saves memory by running each segment's forward a second time inside the backward.
Without it the numbers are the same to the bit: the second forward repeated the first, random
numbers included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import Edit, FirstOf, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, trainer_setting

CARD = Card(
    name="no-checkpointing",
    title="No activation checkpointing",
    cures=("needless-checkpointing",),
    costs="The memory that checkpointing saved.",
    source="PyTorch documentation, torch.utils.checkpoint; Chen et al. 2016",
    equivalence="bit-equal",
    stage=Stage.MEMORY,
    slot="checkpointing",
)

_OWN_KEYWORDS = (
    "use_reentrant", "context_fn", "determinism_check", "debug", "early_stop",
    "preserve_rng_state",
)  # fmt: skip
_ROOM = 0.5
"""Share of the device's memory that a checkpointed step may take at most: what checkpointing
saved is not known, and may be as much again."""


def applies(context: Context) -> Applicability:
    """Activations are computed twice, and there is memory to keep them."""
    if context.profile.habit("recompute").seconds == 0:
        return Applicability(False, "no activation checkpointing was seen")
    capacity = context.profile.device_memory_bytes
    if context.has_finding("memory-limit"):
        return Applicability(False, "memory is the limit")
    if capacity and context.profile.peak_memory_bytes > _ROOM * capacity:
        used = context.profile.peak_memory_bytes / capacity
        return Applicability(False, f"{used:.0%} of the device's memory is in use as it is")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The second forward goes."""
    share = context.profile.habit("recompute").seconds / context.profile.step_seconds.mean
    return amdahl(share, 2.0, 50.0)


def apply(points: Points, options: Options) -> Undo:
    """Call the segment directly. Frameworks import the function later, and get this one."""

    def straight(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
            points.changed(CARD.name, "checkpointed segments keep their activations")
            passed = {key: value for key, value in kwargs.items() if key not in _OWN_KEYWORDS}
            return function(*args, **passed)

        return checkpoint

    return patch("torch.utils.checkpoint:checkpoint", straight)


def edits(context: Context, options: Options) -> list[Edit]:
    """Call the segment itself."""
    site = context.profile.habit("recompute").site
    if site is None:
        return []
    call = ReplaceCall(site=site, callee="checkpoint", code="{0}({rest})", drop=_OWN_KEYWORDS)
    setting = trainer_setting(context, "gradient_checkpointing", "False")
    return [FirstOf(edits=(call, *setting))]
