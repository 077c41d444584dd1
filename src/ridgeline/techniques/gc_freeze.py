"""Python's cyclic garbage collector walks every live object; take the long-lived ones out.

After the first steps everything that the script has built is moved to the permanent generation
(`gc.freeze`), and collections become rarer. Reference counting, which frees tensors, goes on as
before; only reference cycles wait longer.
"""

from __future__ import annotations

import gc

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import AtStart, Edit, InsertAfter
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="gc-freeze",
    title="Garbage collector frozen and made rarer",
    cures=("gc-pauses", "latency-tail"),
    costs="Reference cycles live longer, and with them any tensors that they hold.",
    source="Python documentation, gc.freeze and gc.set_threshold",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
)

_AFTER_STEPS = 2
_THRESHOLDS = (50_000, 20, 50)


def applies(context: Context) -> Applicability:
    """The collector takes a share of the step, and not because the script calls it."""
    if context.profile.habit("gc_collect").calls >= 0.5:
        return Applicability(False, "the script collects by itself, in every step")
    if _share(context) < 0.005:
        return Applicability(False, f"garbage collection takes {_share(context):.1%} of a step")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Most of the pauses go."""
    return amdahl(_share(context), 2.0, 50.0)


def _share(context: Context) -> float:
    return context.profile.settings.gc_seconds / context.profile.step_seconds.mean


def apply(points: Points, options: Options) -> Undo:
    """Freeze after the first steps, when models, optimizers and data are there."""
    before = gc.get_threshold()
    steps = 0

    def freeze() -> None:
        nonlocal steps
        steps += 1
        if steps != _AFTER_STEPS:
            return
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        points.changed(
            CARD.name,
            f"{gc.get_freeze_count()} objects frozen, thresholds {before} → {_THRESHOLDS}",
        )

    points.after_step.append(freeze)

    def undo() -> None:
        points.after_step.remove(freeze)
        if steps >= _AFTER_STEPS:
            gc.unfreeze()
            gc.set_threshold(*before)

    return undo


def edits(context: Context, options: Options) -> list[Edit]:
    """Rarer collections from the start; freeze once the optimizer is made."""
    written: list[Edit] = [
        AtStart(files=context.files, code=f"gc.set_threshold({', '.join(map(str, _THRESHOLDS))})")
    ]
    made = next((o.site for o in context.profile.optimizers if o.site is not None), None)
    if made is not None:
        written.append(InsertAfter(site=made, code="gc.freeze()"))
    return written
