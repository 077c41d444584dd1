"""Matrix products in bfloat16, parameters and optimizer in float32.

bfloat16 keeps float32's range, so no loss scaling is needed (Kalamkar et al., "A Study of
BFLOAT16 for Deep Learning Training", 2019). Outputs are handed back in float32, so that a loss
computed outside the autocast region has the precision it would have inside it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.anatomy import parameters
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.ledger import Options
from ridgeline.techniques import (
    Applicability,
    CallUnder,
    Card,
    Context,
    Edit,
    FirstOf,
    Gain,
    ReplaceCall,
    Stage,
    WrapWith,
    amdahl,
    trainer_setting,
)

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="bf16-autocast",
    title="bfloat16 autocast",
    cures=("fp32-matmul", "fp16-on-cpu"),
    costs="Rounding to 8 bits of mantissa in matmuls; losses differ as between two seeds.",
    source="PyTorch documentation, torch.amp; Kalamkar et al. 2019, section 3",
    promise="reduced-precision",
    stage=Stage.PRECISION,
    slot="autocast",
)


def applies(context: Context) -> Applicability:
    """float32 matmuls, on hardware whose bfloat16 is faster."""
    if _is_half_on_cpu(context):
        return Applicability(True, "")
    running = context.profile.settings.autocast_dtype
    if running is not None:
        return Applicability(False, f"autocast runs in {running}")
    if context.matmul_share("float32") < 0.02:
        return Applicability(False, "no float32 matmuls to speak of")
    if _speedup(context) < 1.1:
        return Applicability(False, "this machine's bfloat16 matmul is no faster than float32")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The matmuls run at the ratio of the two peaks; half of that is the pessimist's share."""
    if _is_half_on_cpu(context):
        return amdahl(context.matmul_share("float16"), 2.0, 50.0)
    speedup = _speedup(context)
    return amdahl(context.matmul_share("float32"), 1 + (speedup - 1) * 0.3, speedup)


def _is_half_on_cpu(context: Context) -> bool:
    """float16 autocast on a CPU, which has no units for it: bfloat16 takes its place."""
    return context.device == "cpu" and context.profile.settings.autocast_dtype == "float16"


def _speedup(context: Context) -> float:
    if context.ceilings is None:
        return 2.0
    single = "fp32"
    if context.device == "cuda" and context.profile.settings.matmul_precision != "highest":
        single = "tf32"
    before, after = context.peak(single), context.peak("bf16")
    return after / before if before and after else 1.0


def apply(points: Points, options: Options) -> Undo:
    """Hold autocast during each outermost forward; hand floats back in float32."""
    import torch

    def around(module: nn.Module) -> AbstractContextManager[Any]:
        device = parameters(module)[0].device.type
        if not torch.amp.is_autocast_available(device):
            return nullcontext()
        points.changed(CARD.name, f"forward runs under torch.autocast({device!r}, bfloat16)")
        return torch.autocast(device, dtype=torch.bfloat16)

    def after(module: nn.Module, output: Any) -> Any:
        return _to_float32(output)

    points.around_forward.append(around)
    points.after_forward.append(after)

    def undo() -> None:
        points.around_forward.remove(around)
        points.after_forward.remove(after)

    return undo


def _to_float32(value: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(
        torch.Tensor,
        lambda t: t.float() if t.dtype is torch.bfloat16 else t,
        value,
    )


def edits(context: Context, options: Options) -> list[Edit]:
    """`with torch.autocast(…)` around each model's call, its outputs handed back in float32."""
    if _is_half_on_cpu(context):
        return [
            ReplaceCall(
                files=context.files,
                callee="autocast",
                code='torch.autocast("cpu", dtype=torch.bfloat16)',
            )
        ]
    header = f'torch.autocast("{context.device}", dtype=torch.bfloat16)'
    setting = trainer_setting(context, "bf16", "True")
    models = {m.forward_site: m for m in context.profile.models if m.forward_site}
    return [
        FirstOf(
            edits=(
                CallUnder(site=site, header=header, converts=tuple(model.float_outputs)),
                # Where the call cannot be told from what surrounds it, the loss comes along.
                WrapWith(site=site, header=header, until=context.profile.settings.backward_site),
                *setting,
            )
        )
        for site, model in models.items()
    ]
