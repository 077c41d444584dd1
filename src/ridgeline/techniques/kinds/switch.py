"""Techniques that are one global switch of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import AtStart, Edit, FirstOf, ReplaceCall
from ridgeline.techniques import Card, Context

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")


def set_switch(
    points: Points, card: Card, read: Callable[[], T], write: Callable[[T], object], wanted: T
) -> Undo:
    """Set a global switch when the first model is about to run, after the script's own setting.

    Args:
        points: Where the technique is applied.
        card: What the technique says of itself.
        read: Tells how the switch stands.
        write: Sets it.
        wanted: What it is set to.
    """
    before: list[T] = []

    def switch(module: nn.Module) -> None:
        now = read()
        if now == wanted:
            return
        before.append(now)
        write(wanted)
        points.changed(card.name, f"{card.title}: {now} → {wanted}")

    switch.__module__ = card.module
    points.on_model.append(switch)

    def undo() -> None:
        points.on_model.remove(switch)
        if before:
            write(before[0])

    return undo


def set_by_call(context: Context, setter: str, value: str) -> list[Edit]:
    """Another value where the script calls this function of torch, or else a call of it."""
    there = ReplaceCall(files=context.files, callee=setter, code=f"{{func}}({value})")
    new = AtStart(files=context.files, code=f"torch.{setter}({value})")
    return [FirstOf(edits=(there, new))]
