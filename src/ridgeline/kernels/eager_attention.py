"""Attention that models of transformers write out (`attn_implementation="eager"`), as one kernel.

Soft caps and sinks are why models run so: `scaled_dot_product_attention` knows neither. The mask
that such a model adds is a matrix; what it means is found once per mask, by comparison with the
band that it would be: causal, or causal with a window. Any other mask (padding, say), dropout, and
weights that someone wants to see leave the call to the model. To compare is to wait for the device
once per mask, which the layers of a step share.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.kernels.attention_mask import AttentionMask, visible
from ridgeline.kernels.flash_attention import flash_attention

EAGER = "*:eager_attention_forward"
"""The function that attends step by step, of whichever model's file."""
_MASKED = -1e4
"""What is added where nothing may be seen is below this."""


def eager_attention_of(model: nn.Module) -> list[str]:
    """Names of the functions that this model goes through and that compute what the kernel does."""
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) != "eager":
        return []
    files = sorted({type(module).__module__ for module in model.modules()})
    return [
        EAGER.replace("*", file)
        for file in files
        if _attends_alike(getattr(sys.modules.get(file), "eager_attention_forward", None))
    ]


def _attends_alike(original: Any) -> bool:
    """Whether a function gives what the kernel does, of heads in groups or else of as many."""
    if not callable(original) or not hasattr(inspect.unwrap(original), "__code__"):
        return False
    return any(_attends_alike_in(original, groups) for groups in (2, 1))


def _attends_alike_in(original: Any, groups: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (
        torch.randn(2, heads, 5, 8, generator=generator) for heads in (4, 4 // groups, 4 // groups)
    )
    module = SimpleNamespace(num_key_value_groups=groups, training=False, head_dim=8)
    added = torch.full((5, 5), torch.finfo(torch.float32).min).triu(1)[None, None]
    options: dict[str, Any] = {"scaling": 0.3}
    code = inspect.unwrap(original).__code__
    if "softcap" in code.co_varnames:
        options["softcap"] = 1.5
    if "sinks" in code.co_names:
        module.sinks = torch.randn(4, generator=generator)
    try:
        wanted, _ = original(module, queries, keys, values, added, **options)
        found, _ = attending(original)(module, queries, keys, values, added, **options)
    except Exception:  # it takes other arguments
        return False
    return found.shape == wanted.shape and bool((found - wanted).abs().max() < 1e-5)


def attending(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a model's file that attends, by the kernel where that fits."""
    code = inspect.unwrap(original).__code__
    named = set(inspect.signature(original).parameters)
    of_module = "head_dim" in code.co_names

    def eager_attention_forward(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        more = {name for name, one in kwargs.items() if one is not None and name in named}
        drops = dropout and module.training
        mask = None if drops or more - {"softcap"} else _mask_of(attention_mask, query, key)
        if mask is None or not _fits(query, key, value) or _shows_weights(module, kwargs):
            return original(  # type: ignore[no-any-return]
                module, query, key, value, attention_mask, scaling=scaling, dropout=dropout,
                **kwargs,
            )  # fmt: skip
        size = module.head_dim if of_module else query.shape[-1]
        attended = flash_attention(
            query,
            key,
            value,
            mask=mask,
            scale=size**-0.5 if scaling is None else scaling,
            softcap=kwargs.get("softcap") if "softcap" in named else None,
            sinks=module.sinks if "sinks" in code.co_names else None,
        )
        return attended.out.transpose(1, 2).contiguous(), None

    return eager_attention_forward


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return query.dim() == 4 and query.dtype == key.dtype == value.dtype and key.shape == value.shape


def _shows_weights(module: Any, kwargs: dict[str, Any]) -> bool:
    config = getattr(module, "config", None)
    return bool(kwargs.get("output_attentions") or getattr(config, "output_attentions", False))


_seen: list[tuple[weakref.ref[Tensor], AttentionMask | None]] = []
"""The last masks and what they mean."""


def _mask_of(added: Tensor | None, queries: Tensor, keys: Tensor) -> AttentionMask | None:
    """What a matrix that is added to scores means; None: something else."""
    if added is None:
        return AttentionMask()
    for known, meaning in _seen:
        if known() is added:
            return meaning
    meaning = _meaning(added, queries.shape[2], keys.shape[2])
    _seen.append((weakref.ref(added), meaning))
    del _seen[:-4]
    return meaning


def _meaning(added: Tensor, num_queries: int, num_keys: int) -> AttentionMask | None:
    if added.dim() != 4 or added.shape[2:] != (num_queries, num_keys) or not num_queries:
        return None
    if added.dtype == torch.bool:
        seen = added
    elif added.requires_grad:
        return None
    else:
        seen = added > _MASKED
        if bool((added.masked_fill(~seen, 0.0) != 0).any()):
            return None  # it does more than hide
    if bool(seen.all()):
        return AttentionMask()
    width = int(seen[0, 0, -1].sum())
    mask = AttentionMask(causal=True, window=None if width in (0, num_keys) else width)
    rows, places = (torch.arange(n, device=added.device) for n in (num_queries, num_keys))
    band = visible(mask.band, rows, places, num_keys - num_queries)
    return mask if bool((seen == band).all()) else None
