"""`torch.cuda.empty_cache()` in the loop hands memory back only to ask for it again.

Each call frees every cached block (a device synchronisation), and the next step pays for
`cudaMalloc` anew. It gives no memory to the script that it could not have used anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import Edit, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage

CARD = Card(
    name="no-empty-cache",
    title="No empty_cache() in the loop",
    cures=("empty-cache", "latency-tail"),
    costs="The process holds its peak memory, which another process on the GPU cannot use.",
    source="PyTorch documentation, CUDA semantics, memory management",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
)


def applies(context: Context) -> Applicability:
    """The script empties the cache in its loop, on a device that has one."""
    if context.profile.habit("empty_cache").calls < 0.02:
        return Applicability(False, "the script does not call empty_cache() in its loop")
    if context.device != "cuda":
        return Applicability(False, "without CUDA empty_cache() does nothing")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Allocations come from the cache again: milliseconds per call."""
    calls = context.profile.habit("empty_cache").calls
    step = context.profile.step_seconds.mean
    least, most = min(0.1, 0.0005 * calls / step), min(0.6, 0.02 * calls / step)
    return Gain(1 / (1 - least), 1 / (1 - most))


def apply(points: Points, options: Options) -> Undo:
    """Make it do nothing for callers outside of torch."""
    skipped = 0

    def passing_over(original: Callable[[], None]) -> Callable[[], None]:
        def empty_cache() -> None:
            nonlocal skipped
            caller = str(sys._getframe(1).f_globals.get("__name__", ""))
            if caller.startswith("torch."):  # graph capture relies on it
                original()
                return
            skipped += 1
            points.changed(CARD.name, f"{skipped} call(s) of empty_cache() passed over")

        return empty_cache

    return patch("torch.cuda:empty_cache", passing_over)


def edits(context: Context, options: Options) -> list[Edit]:
    """Take the call away."""
    site = context.profile.habit("empty_cache").site
    return [] if site is None else [ReplaceCall(site=site, callee="empty_cache", code="")]
