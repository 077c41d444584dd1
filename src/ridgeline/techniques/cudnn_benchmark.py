"""Let cuDNN time its convolution algorithms on the first call of each shape and keep the best.

Every new input shape is timed anew, so it pays only where shapes repeat.
"""

from __future__ import annotations

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.switch import set_switch

CARD = Card(
    name="cudnn-benchmark",
    title="cuDNN autotuning",
    cures=("cudnn-autotuning",),
    costs="The first step of every input shape is slow; workspaces take memory.",
    source="PyTorch documentation, torch.backends.cudnn.benchmark",
    equivalence="rounding",
    stage=Stage.SETTINGS,
)

_CONVOLUTIONS = (
    "aten::convolution", "aten::convolution_backward", "aten::cudnn_convolution",
    "aten::_convolution",
)  # fmt: skip


def applies(context: Context) -> Applicability:
    """Convolutions of repeating shapes on CUDA, with autotuning off."""
    if context.device != "cuda":
        return Applicability(False, f"cuDNN is for CUDA; the model is on {context.device}")
    if context.profile.settings.cudnn_benchmark:
        return Applicability(False, "autotuning is on")
    if context.profile.settings.deterministic:
        return Applicability(False, "deterministic algorithms are asked for")
    if context.operator_share(*_CONVOLUTIONS) < 0.02:
        return context.lacks("convolutions")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The heuristics of cuDNN are good but not always best."""
    return amdahl(context.operator_share(*_CONVOLUTIONS), 1.0, 1.4)


def apply(points: Points, options: Options) -> Undo:
    """On when the first model is about to run, after the script's own setting."""
    import torch

    cudnn = torch.backends.cudnn

    def write(on: bool) -> None:
        cudnn.benchmark = on

    return set_switch(points, CARD, lambda: bool(cudnn.benchmark), write, True)


def edits(context: Context, options: Options) -> list[Edit]:
    """One line after the imports."""
    return [AtStart(files=context.files, code="torch.backends.cudnn.benchmark = True")]
