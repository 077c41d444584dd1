"""Matmuls in bfloat16, parameters and optimizer in float32.

bfloat16 keeps float32's range, so no loss scaling is needed (Kalamkar et al., "A Study of
BFLOAT16 for Deep Learning Training", 2019). Outputs are handed back in float32, so that a loss
computed outside the autocast region has the precision it would have inside it.

On a CPU the backward of fused attention issues one small matmul for each pair of blocks of
queries and keys, and each in bfloat16 costs microseconds before it begins: for short sequences
it takes several times as long as in float32. There attention can stay in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.anatomy import parameters
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import AtStart, CallUnder, Edit, FirstOf, ReplaceCall, WrapWith
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, trainer_setting

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="bf16-autocast",
    title="bfloat16 autocast",
    cures=("fp32-matmul", "fp16-on-cpu"),
    costs="Rounding to 8 bits of mantissa in matmuls; losses differ as between two seeds.",
    source="PyTorch documentation, torch.amp; Kalamkar et al. 2019, section 3",
    equivalence="reduced-precision",
    stage=Stage.PRECISION,
    slot="autocast",
    optional={"attention": str},
    breaks_with=("BFloat16", "must have the same dtype"),
)

_CPU_ATTENTION = (
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)
_LEAST_CASTS, _MOST_CASTS = 0, 4
"""Casts of each matmul: none where its neighbours are matmuls too; or an input, a weight, a
gradient and an output in float32."""
_SHORT_KEYS, _LONG_KEYS = 128, 512
"""Below so many keys fused attention in bfloat16 is the slower on a CPU; from so many, the faster.

Two cores of a Xeon with AMX, torch 2.13.0, forward and backward, time in float32 over bfloat16:
64 keys 0.17, 128 keys 0.7, 256 keys 1.0 to 1.1, 512 keys 1.3, 1,024 keys 1.5."""
_WRITTEN = (
    "def attention_in_float32(query, key, value, attn_mask=None, *args, **kwargs):\n"
    '    """Outside of autocast: short attention in bfloat16 is slow on a CPU."""\n'
    "    if attn_mask is not None and attn_mask.is_floating_point():\n"
    "        attn_mask = attn_mask.float()\n"
    '    with torch.autocast("cpu", enabled=False):\n'
    "        return fused_attention(\n"
    "            query.float(), key.float(), value.float(), attn_mask, *args, **kwargs\n"
    "        )\n"
    "\n"
    "\n"
    "fused_attention = torch.nn.functional.scaled_dot_product_attention\n"
    "torch.nn.functional.scaled_dot_product_attention = attention_in_float32"
)


def applies(context: Context) -> Applicability:
    """float32 matmuls, on hardware whose bfloat16 is faster."""
    if _is_half_on_cpu(context):
        return Applicability(True, "")
    running = context.profile.settings.autocast_dtype
    if running is not None:
        return Applicability(False, f"autocast runs in {running}")
    if context.matmul_share("float32") < 0.02:
        return context.lacks("float32 matmuls")
    if _speedup(context) < 1.1:
        return Applicability(False, "this machine's bfloat16 matmul is no faster than float32")
    return Applicability(True, "")


def options(context: Context) -> list[Options]:
    """All of it; and without attention, where a CPU computes that for short sequences."""
    everything: list[Options] = [{}]
    if _is_half_on_cpu(context) or _num_keys(context) >= _LONG_KEYS:
        return everything
    if context.operator_share(*_CPU_ATTENTION, dtype="float32") < 0.02:
        return everything
    return [{"attention": "float32"}, {}]


def _num_keys(context: Context) -> int:
    """The longest sequence that a CPU's fused attention attends to; 0: there is none."""
    attention = [op for op in context.profile.operators if op.name in _CPU_ATTENTION]
    keys = [shapes[1][-2] for op in attention if len(shapes := op.input_shapes()) > 1]
    return max(keys, default=0)


def predict(context: Context, options: Options) -> Gain:
    """Large matmuls run at up to the ratio of the two peaks; each has casts around it."""
    if _is_half_on_cpu(context):
        return amdahl(context.matmul_share("float16"), 2.0, 50.0)
    speedup = _speedup(context)
    pessimist = 1 + (speedup - 1) * 0.3
    attention = context.operator_share(*_CPU_ATTENTION, dtype="float32")
    if options.get("attention"):
        slow, fast = 0.9, 1.0
    elif _num_keys(context) < _LONG_KEYS:
        slow, fast = (0.2, 1.2) if _num_keys(context) <= _SHORT_KEYS else (0.8, 1.5)
    else:
        slow, fast = 1.0, speedup
    gain = functools.partial(context.gain_of_matmuls, "bf16", apart=_CPU_ATTENTION)
    return Gain(
        gain(pessimist, casts=_MOST_CASTS, others=attention * (1 - 1 / slow)),
        gain(speedup, casts=_LEAST_CASTS, others=attention * (1 - 1 / fast)),
    )


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

    apart = ", attention in float32" if options.get("attention") else ""

    def around(module: nn.Module) -> AbstractContextManager[Any]:
        device = parameters(module)[0].device.type
        if not torch.amp.is_autocast_available(device):
            return nullcontext()
        points.changed(CARD.name, f"forward runs under torch.autocast({device!r}, bfloat16){apart}")
        return torch.autocast(device, dtype=torch.bfloat16)

    def after(module: nn.Module, output: Any) -> Any:
        return _to_float32(output)

    points.around_forward.append(around)
    points.after_forward.append(after)
    put_back = (
        patch("torch.nn.functional:scaled_dot_product_attention", _in_float32)
        if options.get("attention")
        else None
    )

    def undo() -> None:
        if put_back is not None:
            put_back()
        points.around_forward.remove(around)
        points.after_forward.remove(after)

    return undo


def _in_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    """Fused attention that autocast leaves alone."""
    import torch

    @functools.wraps(original)
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if query.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
            return original(query, key, value, attn_mask, *args, **kwargs)
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.float()
        with torch.autocast("cpu", enabled=False):
            wide = query.float(), key.float(), value.float()
            return original(*wide, attn_mask, *args, **kwargs)

    return attention


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
    apart: list[Edit] = (
        [AtStart(files=context.files, code=_WRITTEN)] if options.get("attention") else []
    )
    under: list[Edit] = [
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
    return apart + under
