"""Workers that live on from one epoch to the next.

Without it every new iterator starts its workers again, each importing and unpickling what it
needs. The first epoch is the same to the bit; in later ones the shuffle is another one, because
a new iterator draws a seed from the global generator and a kept one does not.
"""

from __future__ import annotations

from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records import LoaderFacts
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
    name="persistent-workers",
    title="Persistent loader workers",
    cures=("worker-restarts", "input-starved"),
    costs="The workers' memory is held between epochs.",
    source="PyTorch documentation, torch.utils.data.DataLoader, persistent_workers",
    promise="statistical",
    stage=Stage.INPUT,
)


def applies(context: Context) -> Applicability:
    """A loader with workers was started more than once."""
    loaders = context.profile.loaders
    if not any(loader.num_workers for loader in loaders):
        return Applicability(False, "no loader has workers")
    if all(loader.persistent_workers for loader in loaders if loader.num_workers):
        return Applicability(False, "workers are persistent")
    if not _restarting(context):
        return Applicability(False, "no loader with workers was started twice while watching")
    return Applicability(True, "")


def _restarting(context: Context) -> list[LoaderFacts]:
    return [
        loader
        for loader in context.profile.loaders
        if loader.num_workers and not loader.persistent_workers and loader.restarts > 0
    ]


def predict(context: Context, options: Options) -> Gain:
    """The time to the first batch of an epoch, spread over its steps, mostly goes."""
    seconds = sum(loader.restarts * loader.start_seconds for loader in _restarting(context))
    total = context.profile.step_seconds.mean * max(context.profile.steps, 1)
    return amdahl(min(seconds / total, context.phase_share("data")), 1.5, 20.0)


def apply(points: Points, options: Options) -> Undo:
    """Set it on every loader that has workers as it is constructed."""
    changed = 0

    def keep(arguments: dict[str, Any]) -> None:
        nonlocal changed
        if not arguments.get("num_workers") or arguments.get("persistent_workers"):
            return
        arguments["persistent_workers"] = True
        changed += 1
        points.changed(CARD.name, f"{changed} loader(s) keep their workers")

    points.on_loader.append(keep)
    return lambda: points.on_loader.remove(keep)


def edits(context: Context, options: Options) -> list[Edit]:
    """One argument of the loader's constructor."""
    return [
        SetArgument(
            site=loader.site, callee="DataLoader", keyword="persistent_workers", value="True"
        )
        for loader in _restarting(context)
        if loader.site is not None
    ]
