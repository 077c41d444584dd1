"""Llama and its descendants: RMS norms, gated MLP, rotary positions, grouped queries.

Llama (arXiv 2302.13971, 2307.09288, 2407.21783), InternLM, Mistral (2310.06825), Qwen2 and Qwen3
(2407.10671, 2505.09388), OLMo 2 (2501.00656), Gemma 1 to 3 (2403.08295, 2408.00118, 2503.19786),
Phi-3 and Phi-4 (2404.14219, 2412.08905), Nemotron (2402.16819: LayerNorm and squared ReLU instead).
"""

from __future__ import annotations

from ridgeline.models.families.sizes import (
    LAYERS,
    NO_WINDOW,
    Windows,
    decoder,
    windows,
    windows_of,
)
from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec


def llama(keys: Keys) -> ModelSpec:
    """`attention_bias` is on all four projections."""
    bias = keys.flag("attention_bias", default=False)
    return decoder(
        keys,
        gated_mlp=True,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=keys.flag("mlp_bias", default=False),
    )


def internlm(keys: Keys) -> ModelSpec:
    """Version 1 of InternLM: Llama with a bias on all four projections (its key: `bias`)."""
    bias = keys.flag("bias", default=True)
    return decoder(keys, gated_mlp=True, attention_bias=bias, output_bias=bias)


def mistral(keys: Keys) -> ModelSpec:
    """Every layer sees a window, where there is one (version 0.1)."""
    return decoder(keys, gated_mlp=True, **windows(keys, every=0))


def qwen2(keys: Keys) -> ModelSpec:
    """Biases on queries, keys and values."""
    return decoder(keys, gated_mlp=True, attention_bias=True, **qwen_windows(keys))


def qwen3(keys: Keys) -> ModelSpec:
    """Norms on each head's query and key."""
    bias = keys.flag("attention_bias", default=False)
    return decoder(
        keys,
        gated_mlp=True,
        attention_bias=bias,
        output_bias=bias,
        qk_norm="head",
        head_dim=keys.size("head_dim", default=128),
        **qwen_windows(keys),
    )


def olmo2(keys: Keys) -> ModelSpec:
    """Norms on all channels of queries and keys; a block's norms stand behind it."""
    bias = keys.flag("attention_bias", default=False)
    return decoder(keys, gated_mlp=True, attention_bias=bias, output_bias=bias, qk_norm="full")


def qwen_windows(keys: Keys) -> Windows:
    """Windows only with `use_sliding_window`, and from layer `max_window_layers` on."""
    if not keys.flag("use_sliding_window", default=False):
        return NO_WINDOW
    first = keys.count("max_window_layers", default=28)
    if keys.has("layer_types") or first == 0:
        return windows(keys, every=0, default=4096)
    layers = keys.size(*LAYERS)
    window = keys.size("sliding_window", default=4096)
    return windows_of(window, tuple(layer >= first for layer in range(layers)))


def gemma(keys: Keys) -> ModelSpec:
    """A wide head and an MLP that is far wider than usual."""
    return _gemma(keys, norms_per_layer=2)


def gemma2(keys: Keys) -> ModelSpec:
    """Norms before and behind each block; every other layer is windowed."""
    return _gemma(keys, norms_per_layer=4, **windows(keys, every=2, default=4096))


def gemma3(keys: Keys) -> ModelSpec:
    """Norms on queries and keys too; five windowed layers to a full one."""
    every = keys.size("sliding_window_pattern", default=6)
    return _gemma(
        keys, norms_per_layer=4, qk_norm="head", **windows(keys, every=every, default=4096)
    )


def _gemma(keys: Keys, **traits: object) -> ModelSpec:
    bias = keys.flag("attention_bias", default=False)
    return decoder(
        keys,
        gated_mlp=True,
        head_dim=keys.size("head_dim", default=256),
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        attention_bias=bias,
        output_bias=bias,
        **traits,
    )


def phi3(keys: Keys) -> ModelSpec:
    """A model of Phi-3 or Phi-4: fused projections, without biases."""
    return decoder(keys, gated_mlp=True, **windows(keys, every=0))


def nemotron(keys: Keys) -> ModelSpec:
    """LayerNorm (one added to its weight) and a squared-ReLU MLP of two projections."""
    bias = keys.flag("attention_bias", default=False)
    return decoder(
        keys,
        gated_mlp=False,
        norm="layer",
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=keys.flag("mlp_bias", default=False),
    )


READERS = {
    "llama": llama,
    "internlm": internlm,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "olmo2": olmo2,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "phi3": phi3,
    "nemotron": nemotron,
}
