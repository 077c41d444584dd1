"""Norms, gated MLPs, rotary embeddings, attention and loss of a model, by fused kernels.

    fuse_modules(model)

A module is taken for what its parts are called, as models of transformers call them, and for what
it computes: its own forward and the fused one must agree on random numbers to a few roundings, or
it is left alone. Modules and their parameters stay as they are; only the call goes another way, and
goes the old way where a module has hooks, where dtypes are mixed, and while it is traced. The last
layer over a vocabulary waits for its loss (`logits_that_wait.py`); attention is taken where a model
of transformers writes it out (`eager_attention.py`), and left to torch where that has it in one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.kernels.eager_attention import attending, eager_attention_of
from ridgeline.kernels.gated_product import ACTIVATIONS, Activation, gated_product
from ridgeline.kernels.logits_that_wait import FEWEST_CLASSES, logits_of
from ridgeline.kernels.residual_norm import (
    LONGEST_ROW,
    residual_layer_norm,
    residual_rms_norm,
)
from ridgeline.kernels.rotary import rotary
from ridgeline.patches import Undo, in_reverse, patch

Call = Callable[[Tensor], Tensor]
ROTARY = (
    "transformers.models.gemma.modeling_gemma:apply_rotary_pos_emb",
    "transformers.models.gemma2.modeling_gemma2:apply_rotary_pos_emb",
    "transformers.models.llama.modeling_llama:apply_rotary_pos_emb",
    "transformers.models.mistral.modeling_mistral:apply_rotary_pos_emb",
    "transformers.models.mixtral.modeling_mixtral:apply_rotary_pos_emb",
    "transformers.models.qwen2.modeling_qwen2:apply_rotary_pos_emb",
    "transformers.models.qwen3.modeling_qwen3:apply_rotary_pos_emb",
)
"""Functions that turn queries and keys; each file of a model has its own."""
LAST_LAYERS = ("lm_head", "head", "output", "embed_out")
"""What models call the layer that gives their logits."""
_ROUNDINGS, _ROUNDINGS_OF_FLOAT32 = 4, 16
"""How far two ways to compute the same may lie apart, in roundings of the largest number."""


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
        for kind, fused in _candidates(module):
            if _agrees(module, fused):
                _redirect(module, fused)
                undos.append(partial(_restore, module))
                found[kind] += 1
                break
    for name in _rotary_of(model):
        undos.append(patch(name, _turning))
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


def _candidates(module: nn.Module) -> Iterator[tuple[str, Call]]:
    """Ways that might compute what the module computes, and what it would be."""
    if module._compiled_call_impl is not None or _is_watched(module):
        return
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        yield "norms", _layer_norm(module)
    elif type(module).__name__.endswith("RMSNorm"):
        for offset in (0.0, 1.0):
            yield "norms", _rms_norm(module, offset)
    elif _has_gate(module):
        activation = _activation_of(getattr(module, "act_fn", None))
        if activation is not None:
            yield "gated MLPs", _gated(module, activation)


def _has_gate(module: nn.Module) -> bool:
    names = ("gate_proj", "up_proj", "down_proj")
    return all(isinstance(getattr(module, name, None), nn.Module) for name in names)


def _activation_of(function: Any) -> Activation | None:
    """Which activation a function is, told apart in float32."""
    x = torch.linspace(-6, 6, 97)
    for activation in ACTIVATIONS:
        try:
            if _is_close(gated_product(x, torch.ones_like(x), activation), function(x)):
                return activation
        except Exception:  # no function of one tensor
            return None
    return None


def _layer_norm(module: Any) -> Call:
    return lambda x: residual_layer_norm(x, module.weight, module.bias, module.eps)[0]


def _rms_norm(module: Any, offset: float) -> Call:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    eps = torch.finfo(torch.float32).eps if eps is None else float(eps)
    return lambda x: residual_rms_norm(x, module.weight, eps, offset=offset)[0]


def _gated(module: Any, activation: Activation) -> Call:
    return lambda x: module.down_proj(
        gated_product(module.gate_proj(x), module.up_proj(x), activation)
    )


def _is_watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _agrees(module: nn.Module, fused: Call) -> bool:
    """Whether both give the same of random numbers; drawn apart from the script's own."""
    parameters = list(module.parameters())
    if not parameters or any(type(one.data) is not Tensor for one in parameters):
        return False
    first = parameters[0]
    size = first.shape[-1]
    if size > LONGEST_ROW or first.device.type == "meta" or not first.is_floating_point():
        return False
    drawn = torch.randn(4, size, generator=torch.Generator().manual_seed(0))
    x = drawn.to(first.device, first.dtype)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        try:
            wanted, found = module.forward(x), fused(x)
        except Exception:  # whatever such a module does, it is not this
            return False
    return _is_close(found, wanted)


def _is_close(found: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Tensor) or found.dtype != wanted.dtype:
        return False
    if found.shape != wanted.shape:
        return False
    share = max(
        _ROUNDINGS * torch.finfo(wanted.dtype).eps,
        _ROUNDINGS_OF_FLOAT32 * torch.finfo(torch.float32).eps,
    )
    away = (found.float() - wanted.float()).abs().max()
    return bool(away <= share * wanted.float().abs().max())


def _redirect(module: nn.Module, fused: Call) -> None:
    """Let calls of the module go to the fused way wherever it fits."""
    dtype = next(module.parameters()).dtype
    mixes = _has_gate(module) or type(module) is nn.Linear

    def call(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        fits = isinstance(x, Tensor) and x.dim() > 1 and (mixes or x.dtype == dtype)
        if not fits or _is_watched(module) or torch.jit.is_tracing():
            return module._call_impl(*args, **kwargs)
        return fused(x)

    module._compiled_call_impl = call


def _restore(module: nn.Module) -> None:
    module._compiled_call_impl = None


def _rotary_of(model: nn.Module) -> list[str]:
    """Which of the functions the files of this model's modules have, and compute as we do."""
    files = {type(module).__module__ for module in model.modules()}
    return [
        name
        for name in ROTARY
        if (file := name.partition(":")[0]) in files
        and _turns_alike(getattr(sys.modules[file], "apply_rotary_pos_emb", None))
    ]


def _turns_alike(original: Any) -> bool:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(2, heads, 3, 8, generator=generator) for heads in (4, 2))
    theta = torch.randn(1, 3, 8, generator=generator)
    given = (queries, keys, theta.cos(), theta.sin())
    try:
        wanted = original(*given)
    except Exception:  # it takes other arguments
        return False
    return all(_is_close(a, b) for a, b in zip(rotary(*given), wanted, strict=True))


def _turning(original: Any) -> Any:
    """A function of a model's file that turns queries and keys, by the kernel where that fits."""

    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        alike = q.dtype == k.dtype == cos.dtype == sin.dtype and not cos.requires_grad
        heads = q.dim() == 4 and cos.dim() == 3 and cos.shape[1:] == (q.shape[2], q.shape[3])
        plain = not args and kwargs.get("unsqueeze_dim", 1) == 1
        if not (alike and heads and plain and cos.shape[0] in (1, q.shape[0])):
            return original(q, k, cos, sin, *args, **kwargs)
        return rotary(q, k, cos, sin)

    return apply_rotary_pos_emb
