"""Norms, gated MLPs, rotary embeddings, attention and loss of a model, by fused kernels.

    fuse_modules(model)

A module is taken for what it computes: its own forward and the fused one must agree on random
numbers to a few roundings (`recognised_norms.py`, `recognised_gates.py`), or it is left alone. So
are the functions of a model's file that turn queries and keys (`turned_heads.py`) and that write
attention out (`eager_attention.py`); where torch has attention in one, that is left to it. Modules
and their parameters stay as they are; only the call goes another way, and goes the old way where a
module has hooks, where dtypes are mixed, and while it is traced. The last layer over a vocabulary
waits for its loss (`logits_that_wait.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.kernels.agreement import Call
from ridgeline.kernels.eager_attention import attending, eager_attention_of
from ridgeline.kernels.logits_that_wait import FEWEST_CLASSES, logits_of
from ridgeline.kernels.recognised_gates import gate_of, has_a_gate
from ridgeline.kernels.recognised_norms import named_as_a_norm, norm_of
from ridgeline.kernels.residual_norm import LONGEST_ROW
from ridgeline.kernels.turned_heads import turning_files
from ridgeline.patches import Undo, in_reverse, patch

LAST_LAYERS = ("lm_head", "head", "output", "embed_out")
"""What models call the layer that gives their logits."""
_ANY_DIMS = frozenset(range(2, 8))


def fuse_modules(model: nn.Module, *, losses: bool = True) -> tuple[Counter[str], Undo]:
    """Let fused kernels compute what they can of a model.

    Args:
        model: Whose weights are there.
        losses: Whether the last layer may wait for its loss.

    Returns:
        How many modules of each kind ("norms", "gated MLPs", "rotary embeddings", "attentions",
        "losses"), and what takes it back.
    """
    found: Counter[str] = Counter()
    undos: list[Undo] = []
    for module in model.modules():
        if module is model:  # whoever calls it may look at the call
            continue
        kind = _kind_of(module)
        call = None if kind is None or _is_taken(module) else _RECOGNISED[kind](module)
        if kind is not None and call is not None:
            _redirect(module, *call)
            undos.append(partial(_restore, module))
            found[kind] += 1
    for name, turning in turning_files(model):
        undos.append(patch(name, turning))
        found["rotary embeddings"] += 1
    for name in eager_attention_of(model):
        undos.append(patch(name, attending))
        found["attentions"] += 1
    last = _last_layer(model) if losses else None
    if last is not None:
        _redirect(last, logits_of(last))
        undos.append(partial(_restore, last))
        found["losses"] += 1
    return found, in_reverse(undos)


def _last_layer(model: nn.Module) -> nn.Linear | None:
    """The layer that gives logits over many classes, if it is a plain one."""
    for name, module in model.named_modules():
        plain = type(module) is nn.Linear and type(module.weight.data) is Tensor
        named = name.rpartition(".")[2] in LAST_LAYERS
        if plain and named and module.out_features >= FEWEST_CLASSES:  # type: ignore[operator]
            return None if _is_watched(module) else module  # type: ignore[return-value]
    return None


def left_alone(model: nn.Module) -> Counter[str]:
    """What looks like a norm or a gated MLP and was not taken, each with the reason."""
    return Counter(
        f"{type(module).__name__} ({_why(module)})"
        for module in model.modules()
        if module is not model and _is_named(module) and module._compiled_call_impl is None
    )


def _is_named(module: nn.Module) -> bool:
    """Whether its own name, not only the shapes of its parts, says norm or MLP."""
    kind = _kind_of(module)
    return kind == "norms" or (kind is not None and "mlp" in type(module).__name__.lower())


def _why(module: nn.Module) -> str:
    if _is_watched(module):
        return "has hooks"
    if any(one.shape[-1:] > (LONGEST_ROW,) for one in module.parameters(recurse=False)):
        return f"rows longer than {LONGEST_ROW}"
    return "computes something else"


_RECOGNISED: dict[str, Callable[[nn.Module], tuple[Call, frozenset[int]] | None]] = {
    "norms": norm_of,
    "gated MLPs": gate_of,
}


def _kind_of(module: nn.Module) -> str | None:
    """Which of the kinds a module might be, by its name and its parts."""
    if named_as_a_norm(module):
        return "norms"
    return "gated MLPs" if has_a_gate(module) else None


def _is_taken(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or _is_watched(module)


def _is_watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _redirect(module: nn.Module, fused: Call, dims: frozenset[int] = _ANY_DIMS) -> None:
    """Let calls of the module go to the fused way wherever it fits."""
    dtype = next((one.dtype for one in module.parameters(recurse=False)), None)
    mixes = dtype is None or type(module) is nn.Linear

    def call(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        fits = isinstance(x, Tensor) and x.dim() in dims and x.is_floating_point()
        if not fits or not (mixes or x.dtype == dtype):  # type: ignore[union-attr]
            return module._call_impl(*args, **kwargs)
        if _is_watched(module) or torch.jit.is_tracing():
            return module._call_impl(*args, **kwargs)
        return fused(x)  # type: ignore[arg-type]

    module._compiled_call_impl = call


def _restore(module: nn.Module) -> None:
    module._compiled_call_impl = None
