"""A model whose tokens see the first and the recent ones alone, as a model with a window.

A sequence under `serve --kv-recent N --kv-first F` keeps and reads N + F tokens in every layer, as
if the model had a sliding window of so many throughout (Xiao et al., "StreamingLLM", 2309.17453,
section 3.2). So forecasts take it for such a model: keys and values, what a decode reads of them,
and the pairs of a prompt are bounded.
"""

from __future__ import annotations

import msgspec

from ridgeline.errors import InputError
from ridgeline.models.spec import ModelSpec, attends, is_windowed, num_layers


def keeping(model: ModelSpec, recent: int, first: int) -> ModelSpec:
    """The model with so many last and first tokens in every layer.

    >>> from ridgeline.models import load_model
    >>> keeping(load_model("llama-7b"), 1020, 4).sliding_window
    1024

    Raises:
        InputError: A number of tokens is none, or its layers do not see all tokens without it.
    """
    if recent < 1:
        raise InputError(f"--kv-recent {recent}: at least 1 is needed")
    if first < 0:
        raise InputError(f"--kv-first {first}: at least 0 is needed")
    why = _why_not(model)
    if why:
        raise InputError(f"--kv-recent {recent}: {model.name} {why}; leave it out")
    return msgspec.structs.replace(model, sliding_window=recent + first, full_attention_every=0)


def _why_not(model: ModelSpec) -> str:
    if model.indexer is not None:
        return "chooses the tokens that it attends to itself"
    if model.decoder_layers:
        return "attends to its encoder's tokens, all of them"
    if any(is_windowed(model, layer) for layer in range(num_layers(model))):
        return "has layers with a window of their own, and forecasts know one window"
    if not any(attends(model, layer) for layer in range(num_layers(model))):
        return "attends to no tokens"
    return ""
