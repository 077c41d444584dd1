"""`gc.collect()` in the loop walks every object in every step: leave it to Python's own pace.

Where the script has switched Python's automatic collection off, every hundredth call still
collects, so that reference cycles do not pile up.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import Edit, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="no-forced-gc",
    title="No gc.collect() in the loop",
    cures=("forced-gc", "latency-tail"),
    costs="Reference cycles live until Python's own collection.",
    source="Python documentation, gc.collect",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
)

_EVERY = 100


def applies(context: Context) -> Applicability:
    """The script calls `gc.collect()` about once a step or more."""
    calls = context.profile.habit("gc_collect").calls
    if calls < 0.02:
        return Applicability(False, "the script does not call gc.collect() in its loop")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The time in the collector goes, apart from what collects by itself."""
    share = context.profile.settings.gc_seconds / context.profile.step_seconds.mean
    return amdahl(share, 2.0, 50.0)


def apply(points: Points, options: Options) -> Undo:
    """Replace `gc.collect` for callers outside of torch and of Python itself."""
    skipped = 0

    def passing_over(original: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(original)
        def collect(*args: Any, **kwargs: Any) -> int:
            nonlocal skipped
            caller = str(sys._getframe(1).f_globals.get("__name__", ""))
            if caller.startswith("torch."):  # graph capture and resets rely on it
                return original(*args, **kwargs)
            skipped += 1
            points.changed(CARD.name, f"{skipped} call(s) of gc.collect() passed over")
            if not gc.isenabled() and skipped % _EVERY == 0:
                return original(*args, **kwargs)
            return 0

        return collect

    return patch("gc:collect", passing_over)


def edits(context: Context, options: Options) -> list[Edit]:
    """Take the call away."""
    site = context.profile.habit("gc_collect").site
    return [] if site is None else [ReplaceCall(site=site, callee="collect", code="")]
