"""Fused attention where the script could have it at once: a switch is set against it.

Two switches are known: the backends of `scaled_dot_product_attention`, when all but the math
one are forbidden, and the `attn_implementation` of a Hugging Face model, when it is `eager`.
Attention that the script computes by hand, softmax between two matmuls, is for `fused_attention`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.anatomy import parts
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import Edit, FirstOf, InsertBefore, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="attention-backend",
    title="Fused attention switched on",
    cures=("unfused-attention",),
    costs="Attention weights are no longer formed, so they cannot be looked at.",
    source="PyTorch documentation, torch.nn.attention.sdpa_kernel; Dao et al. 2022",
    equivalence="rounding",
    stage=Stage.SETTINGS,
)

_MATH = "aten::_safe_softmax"
"""Only the unfused form of `scaled_dot_product_attention` calls it."""
_DROPOUTS = ("aten::bernoulli_", "aten::bernoulli", "aten::native_dropout")
_PARTS = (
    "aten::bmm", "aten::_softmax", "aten::_softmax_backward_data", "aten::masked_fill", _MATH,
)  # fmt: skip


def applies(context: Context) -> Applicability:
    """Attention ran unfused, and not by the hand of the script."""
    unfused = context.profile.habit("math_attention")
    if unfused.calls == 0:
        return Applicability(False, "no unfused attention was seen")
    if context.device == "cpu" and _drops_weights(context):
        return Applicability(False, "attention with dropout has no fused kernel on a CPU")
    if context.operator_share(_MATH) > 0:
        return Applicability(True, "")
    site = unfused.site
    if site is not None and site not in _model_calls(context):
        return Applicability(
            False, f"attention at {site} is written out step by step: that is for fused-attention"
        )
    return Applicability(True, "")


def _drops_weights(context: Context) -> bool:
    """Is dropout drawn for tensors of the very shape of the attention weights?"""
    operators = context.profile.operators
    weights = {op.shapes for op in operators if op.name == _MATH}
    return any(op.shapes in weights for op in operators if op.name in _DROPOUTS)


def _model_calls(context: Context) -> list[Any]:
    """Lines that call a model: attention located there is inside a library."""
    return [model.forward_site for model in context.profile.models]


def predict(context: Context, options: Options) -> Gain:
    """Scores and weights no longer travel to memory and back."""
    return amdahl(context.operator_share(*_PARTS), 1.1, 4.0)


def apply(points: Points, options: Options) -> Undo:
    """Allow the fused backends again; switch eager Hugging Face models over."""
    import torch
    from torch.nn import attention

    undone: list[Any] = []

    def allowing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def set_backends(backends: Any, *args: Any, **kwargs: Any) -> Any:
            if list(backends) == [attention.SDPBackend.MATH]:
                points.changed(CARD.name, "fused backends allowed beside the math one")
                backends = [
                    attention.SDPBackend.FLASH_ATTENTION,
                    attention.SDPBackend.EFFICIENT_ATTENTION,
                    attention.SDPBackend.MATH,
                ]
            return original(backends, *args, **kwargs)

        return set_backends

    def allow(module: nn.Module) -> None:
        cuda = torch.backends.cuda
        if not cuda.flash_sdp_enabled() and not cuda.mem_efficient_sdp_enabled():
            for enable in (cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp):
                enable(True)
                undone.append(functools.partial(enable, False))
            points.changed(CARD.name, "fused backends allowed")
        for part in parts(module):
            if _is_eager(part):
                part.set_attn_implementation("sdpa")  # type: ignore[operator]
                undone.append(functools.partial(part.set_attn_implementation, "eager"))  # type: ignore[arg-type]
                points.changed(CARD.name, f"{type(part).__name__} uses sdpa attention")

    # Not `sdpa_kernel` itself, which scripts import by name and Dynamo knows by identity.
    take_off = patch("torch.nn.attention:_sdpa_kernel", allowing)
    points.on_model.append(allow)

    def undo() -> None:
        take_off()
        points.on_model.remove(allow)
        for take_back in undone:
            take_back()

    return undo


def _is_eager(module: nn.Module) -> bool:
    config = getattr(module, "config", None)
    return (
        hasattr(module, "set_attn_implementation")
        and getattr(config, "_attn_implementation", None) == "eager"
        and bool(getattr(module, "_supports_sdpa", False))
    )


def edits(context: Context, options: Options) -> list[Edit]:
    """Take the switch away; or switch the model over where its optimizer is made."""
    made = next((o.site for o in context.profile.optimizers if o.site is not None), None)
    switches: list[Edit] = [
        ReplaceCall(files=context.files, callee="enable_flash_sdp", code="{func}(True)"),
        ReplaceCall(files=context.files, callee="sdpa_kernel", code="contextlib.nullcontext()"),
    ]
    if made is not None and context.operator_share(_MATH) == 0:
        switches = [InsertBefore(site=made, code='{model}.set_attn_implementation("sdpa")')]
    return [FirstOf(edits=tuple(switches))]
