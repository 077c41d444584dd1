"""Algorithms that give the same bits in every run are slower ones.

Scatters and convolutions lose their best kernels, and fresh memory is filled. Fine while
debugging; left on, every run pays. Without them results vary as between two seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="determinism-off",
    title="Deterministic algorithms off",
    cures=("deterministic-algorithms",),
    costs="Two runs with the same seed no longer agree to the last bit.",
    source="PyTorch documentation, Reproducibility",
    equivalence="rounding",
    stage=Stage.SETTINGS,
)


def applies(context: Context) -> Applicability:
    """They were on while the steps were timed."""
    if not context.profile.settings.deterministic:
        return Applicability(False, "deterministic algorithms are off")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """A CPU fills fresh memory and sorts its scatters; a GPU also loses convolutions."""
    best = 1.5 if context.device == "cuda" else 1.25
    return amdahl(context.phase_share("forward", "backward"), 1.0, best)


def apply(points: Points, options: Options) -> Undo:
    """Off when a model is about to run for the first time, however it was switched on."""
    import torch

    before: list[tuple[bool, bool, bool]] = []

    def switch_off(module: nn.Module) -> None:
        cudnn: Any = torch.backends.cudnn
        enabled = torch.are_deterministic_algorithms_enabled()
        if not enabled and not cudnn.deterministic:
            return
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        before.append((enabled, warn_only, bool(cudnn.deterministic)))
        torch.use_deterministic_algorithms(False)
        cudnn.deterministic = False
        points.changed(CARD.name, "deterministic algorithms switched off")

    points.on_model.append(switch_off)

    def undo() -> None:
        points.on_model.remove(switch_off)
        if before:
            enabled, warn_only, cudnn = before[0]
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            torch.backends.cudnn.deterministic = cudnn

    return undo


def edits(context: Context, options: Options) -> list[Edit]:
    """Switch them off where they are switched on."""
    return [
        ReplaceCall(
            files=context.files, callee="use_deterministic_algorithms", code="{func}(False)"
        )
    ]
