"""Anomaly detection is for finding a NaN: left on, it slows forward and backward.

It records a traceback per operator and checks every gradient. The numbers are the same without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import Edit, FirstOf, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="no-anomaly",
    title="Anomaly detection off",
    cures=("anomaly-mode",),
    costs="A NaN in the backward no longer raises an error where it arises.",
    source="PyTorch documentation, torch.autograd.set_detect_anomaly",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
)


def applies(context: Context) -> Applicability:
    """It was on while the steps were timed."""
    if not context.profile.settings.anomaly_detection:
        return Applicability(False, "anomaly detection is off")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Forward and backward lose a fixed cost per operator."""
    return amdahl(context.phase_share("forward", "backward"), 1.05, 2.5)


def apply(points: Points, options: Options) -> Undo:
    """Every public switch ends in `torch.set_anomaly_enabled`: keep that one at off."""
    import torch

    wanted: list[tuple[bool, bool]] = []

    def kept_off(original: Callable[[bool, bool], Any]) -> Callable[..., Any]:
        def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> Any:
            wanted[:] = [(mode, check_nan)]
            if mode:
                points.changed(CARD.name, "anomaly detection kept off")
            return original(False, check_nan)

        return set_anomaly_enabled

    take_off = patch("torch:set_anomaly_enabled", kept_off)

    def undo() -> None:
        take_off()
        if wanted:
            torch.set_anomaly_enabled(*wanted[0])

    return undo


def edits(context: Context, options: Options) -> list[Edit]:
    """Switch it off where it is switched on."""
    return [
        FirstOf(
            edits=(
                ReplaceCall(files=context.files, callee="set_detect_anomaly", code="{func}(False)"),
                ReplaceCall(
                    files=context.files,
                    callee="detect_anomaly",
                    code="contextlib.nullcontext()",
                ),
            )
        )
    ]
