"""Size of the KV cache: what generation keeps of every token, in every layer.

    multi-head, grouped-query    2 · key-value heads · head size     elements per token and layer
    latent attention             rank + rotary size                  (DeepSeek-V2, 2405.04434, 2.1)

Grouped queries: Ainslie et al., 2305.13245. A layer with a sliding window keeps its window only;
one that attends to another's keys and values keeps none (Gemma 3n); one with a state keeps that
alone, whatever the length (`state_scan.py`); sparse attention keeps a key of its chooser of tokens
in 8 bits beside all tokens (DeepSeek-V3.2, 2512.02556, 2.1).
Under tensor parallelism key-value heads are split until each device has one, then copied; a latent
cache belongs to all heads and is copied to each device.
"""

from __future__ import annotations

from ridgeline.cost.state_scan import layer_state_bytes
from ridgeline.models.spec import (
    ModelSpec,
    as_windowed,
    attends,
    has_state,
    is_windowed,
    keeps_keys,
    num_attention_layers,
    num_layers,
)


def layer_bytes_per_token(model: ModelSpec, element_bytes: float = 2.0, tp: int = 1) -> float:
    """Kept per token by one layer on one device; of a windowed one, see `as_windowed`.

    >>> from ridgeline.models import load_model
    >>> layer_bytes_per_token(load_model("llama-3-8b"))
    4096.0
    """
    if model.latent is not None:
        return (model.latent.kv_rank + model.latent.rope_dim) * element_bytes
    heads = max(model.kv_heads / tp, 1.0)
    return heads * (model.head_dim + (model.value_dim or model.head_dim)) * element_bytes


INDEX_BYTES = 1.0 + 4.0 / 128.0
"""Per element of a chooser's key: 8 bits, and a scale of 32 for 128 of them."""


def index_bytes_per_token(model: ModelSpec) -> float:
    """Kept per token by one layer's chooser of tokens; 0 where attention reads all."""
    return model.indexer.dim * INDEX_BYTES if model.indexer else 0.0


def bytes_per_token(model: ModelSpec, element_bytes: float = 2.0, tp: int = 1) -> float:
    """Kept per token by all layers that generate, windows and states aside.

    >>> from ridgeline.models import load_model
    >>> bytes_per_token(load_model("llama-7b"))
    524288.0
    """
    full, windowed = num_keeping_layers(model)
    kept = full * layer_bytes_per_token(model, element_bytes, tp)
    kept += windowed * layer_bytes_per_token(as_windowed(model), element_bytes, tp)
    return kept + num_choosers(model) * index_bytes_per_token(model)


def num_keeping_layers(model: ModelSpec) -> tuple[int, int]:
    """Generating layers with keys and values of their own: without a window, and with one."""
    layers = range(num_layers(model) - _num_generating(model), num_layers(model))
    keeping = [layer for layer in layers if keeps_keys(model, layer)]
    windowed = sum(is_windowed(model, layer) for layer in keeping)
    return len(keeping) - windowed, windowed


def num_choosers(model: ModelSpec) -> int:
    """Layers that choose the tokens that attention reads."""
    if model.indexer is None:
        return 0
    return num_attention_layers(model) - model.indexer.skipped_layers


def kv_cache_bytes(
    model: ModelSpec,
    seq: int,
    batch: int = 1,
    element_bytes: float = 2.0,
    tp: int = 1,
    recent: int | None = None,
    first: int = 0,
) -> float:
    """Cache of `batch` sequences of `seq` tokens on one device.

    With `recent`, layers without a window of their own keep so many last tokens and the `first`
    ones (Xiao et al., "StreamingLLM", 2309.17453): the cache stops growing, and answers change.
    An encoder-decoder keeps its keys and values of the encoder's `seq` tokens beside its own.

    >>> from ridgeline.models import load_model
    >>> kv_cache_bytes(load_model("llama-7b"), 2048) / 1e9
    1.073741824
    >>> kv_cache_bytes(load_model("llama-7b"), 100_000, recent=1020, first=4) / 1e9
    0.536870912
    """
    if recent is not None and (recent < 1 or first < 0):
        raise ValueError(f"recent {recent}, first {first}: at least 1 and 0 tokens")
    if min(seq, batch, tp) < 1:
        raise ValueError(f"seq {seq}, batch {batch}, tp {tp}: each must be 1 or more")
    layers = num_layers(model)
    full = layer_bytes_per_token(model, element_bytes, tp)
    windowed = layer_bytes_per_token(as_windowed(model), element_bytes, tp)
    kept_bytes, states = 0.0, 0.0
    for layer in range(layers - _num_generating(model), layers):
        if model.state is not None and has_state(model, layer):
            states += layer_state_bytes(model.state, tp)
        if not attends(model, layer):
            continue
        if keeps_keys(model, layer):
            if is_windowed(model, layer):
                kept_bytes += min(seq, model.sliding_window) * windowed
            else:
                kept_bytes += (seq if recent is None else min(seq, recent + first)) * full
        if model.decoder_layers:
            kept_bytes += seq * full
    chosen = num_choosers(model) * seq * index_bytes_per_token(model)
    return batch * (kept_bytes + states + chosen)


def _num_generating(model: ModelSpec) -> int:
    return model.decoder_layers or model.layers
