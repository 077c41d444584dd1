"""float32 matmuls on faster units: TF32 on NVIDIA GPUs, bfloat16 inside oneDNN on CPUs.

Tensors stay float32; only the products inside a matmul are rounded, to 10 bits of mantissa
(`high`, TF32) or 8 (`medium`). It reaches what autocast does not, such as a loss computed
outside the model, but autocast saves memory traffic too, so the two share a slot.
"""

from __future__ import annotations

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage
from ridgeline.techniques.kinds.switch import set_by_call, set_switch

CARD = Card(
    name="matmul-precision",
    title="Lower internal precision of float32 matmuls",
    cures=("fp32-matmul", "tf32-off"),
    costs="Products are rounded to 10 (TF32) or 8 (oneDNN bfloat16) bits of mantissa.",
    source="PyTorch documentation, torch.set_float32_matmul_precision",
    equivalence="reduced-precision",
    stage=Stage.SETTINGS,
    slot="autocast",
    required={"precision": str},
)

_WORST_ON_CPU = 0.6
"""A CPU's matmuls round and reorder their inputs anew each time: seen between 0.6 and 3.7
times as fast, by their shapes and strides."""


def applies(context: Context) -> Applicability:
    """float32 matmuls at the highest precision, on hardware with a faster one."""
    if context.profile.settings.matmul_precision != "highest":
        precision = context.profile.settings.matmul_precision
        return Applicability(False, f"float32 matmul precision is {precision!r} already")
    if context.matmul_share("float32") < 0.02:
        return context.lacks("float32 matmuls")
    if _speedup(context) < 1.1:
        return Applicability(False, f"{_level(context)!r} is no faster on this machine")
    return Applicability(True, "")


def options(context: Context) -> list[Options]:
    """`high` is TF32 on CUDA; on a CPU only `medium` differs from `highest`."""
    return [{"precision": _level(context)}]


def predict(context: Context, options: Options) -> Gain:
    """The float32 matmuls run at up to the ratio of the probed peaks; small ones may not."""
    speedup = _speedup(context)
    number_format = "tf32" if context.device == "cuda" else "fp32_medium"
    pessimist = 1 + (speedup - 1) * 0.2 if context.device == "cuda" else _WORST_ON_CPU
    return Gain(
        context.gain_of_matmuls(number_format, pessimist),
        context.gain_of_matmuls(number_format, speedup),
    )


def _level(context: Context) -> str:
    return "high" if context.device == "cuda" else "medium"


def _speedup(context: Context) -> float:
    before = context.peak("fp32")
    after = context.peak("tf32" if context.device == "cuda" else "fp32_medium")
    if before and after:
        return after / before
    return 2.0 if context.device == "cuda" and context.ceilings is None else 1.0


def apply(points: Points, options: Options) -> Undo:
    """Set the precision when the first model is about to run, after the script's own setting."""
    import torch

    read, write = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    return set_switch(points, CARD, read, write, str(options["precision"]))


def edits(context: Context, options: Options) -> list[Edit]:
    """One line after the imports, or another value where the script sets it."""
    return set_by_call(context, "set_float32_matmul_precision", f'"{options["precision"]}"')
