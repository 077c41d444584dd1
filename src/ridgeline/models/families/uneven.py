"""Decoders whose layers are not all of one size: windows with heads of their own, shared keys.

Llama 4 (Meta 2025), Gemma 3n (Google 2025, arXiv 2411.07501 for AltUp and LAuReL), Gemma 4 (Google
2026), MiMo-V2-Flash (2601.02780), Laguna (Poolside 2026), ERNIE 4.5 (Baidu 2025), LongCat-Flash
(2509.01322: two attentions and two dense MLPs beside each mixture).
"""

from __future__ import annotations

from typing import Any

import msgspec

from ridgeline.models.families.mixtures import (
    TOP_K,
    deepseek,
    in_layers,
    placed,
    routed_experts,
)
from ridgeline.models.families.sizes import (
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    Windows,
    decoder,
    of_each_layer,
    windows,
    windows_of,
)
from ridgeline.models.keys import Keys
from ridgeline.models.spec import Experts, ModelSpec, WindowedAttention, is_windowed


def llama4(keys: Keys) -> ModelSpec:
    """Three layers of four see chunks; of Maverick every other layer is a mixture."""
    layers, ffn = keys.size(*LAYERS), keys.size("intermediate_size")
    bias = keys.flag("attention_bias", default=False)
    step = keys.size("interleave_moe_layer_step", default=1)
    listed = keys.numbers("moe_layers")
    mixed = set(range(step - 1, layers, step) if listed is None else listed)
    experts = routed_experts(keys, ffn=ffn, num_shared=1, shared_ffn=ffn)
    rotary = keys.numbers("no_rope_layers") or []
    every = keys.size("no_rope_layer_interval", default=4)
    if rotary and not keys.has("layer_types"):
        size = keys.count("attention_chunk_size", default=8192)
        each = of_each_layer(keys, "no_rope_layers", rotary[:layers])
        seen = windows_of(size, tuple(bool(one) for one in each))
    else:
        seen = windows(keys, every=every, default=8192, key="attention_chunk_size")
    return decoder(
        keys,
        gated_mlp=True,
        head_dim=keys.size("head_dim", default=128),
        ffn=keys.size("intermediate_size_mlp", default=16384),
        attention_bias=bias,
        output_bias=bias,
        **seen,
        **in_layers(experts, [layer in mixed for layer in range(layers)]),
    )


def gemma3n(keys: Keys) -> ModelSpec:
    """Four streams (AltUp), a vector of each layer for each token, and keys that layers share."""
    layers, hidden = keys.size(*LAYERS), keys.size(*HIDDEN)
    streams = keys.size("altup_num_inputs", default=4)
    rank = keys.size("laurel_rank", default=64)
    mixing = streams**2 + streams**3 + (streams + 2) * hidden
    extra = {
        "altup": layers * mixing + 2 * (streams - 1) * hidden * hidden,
        "laurel": layers * (2 * rank * hidden + hidden),
    }
    return _gemma(
        keys,
        **windows(keys, every=5, default=512),
        **_each_layers_inputs(keys, layers, hidden, extra),
        **_mean_width(keys, _widths(keys, layers), extra),
        key_sharing_layers=min(keys.count("num_kv_shared_layers", default=15), layers),
        extra=extra,
    )


def gemma4(keys: Keys, *, inputs: bool = True) -> ModelSpec:
    """Heads of 512 in the layers that see all; the 26B has experts beside its dense MLP.

    Args:
        keys: Of the configuration.
        inputs: Whether each token has a vector for each layer, where the file does not say 0.
    """
    layers, hidden = keys.size(*LAYERS), keys.size(*HIDDEN)
    seen = _last_sees_all(windows(keys, every=6, default=512), layers)
    shared = min(keys.count("num_kv_shared_layers", default=0), layers)
    widths = [keys.size(*FFN)] * layers
    if keys.flag("use_double_wide_mlp", default=False):
        widths[layers - shared :] = [2 * width for width in widths[layers - shared :]]
    extra: dict[str, int] = {}
    traits: dict[str, Any] = _mean_width(keys, widths, extra)
    if inputs:
        traits |= _each_layers_inputs(keys, layers, hidden, extra)
    if keys.flag("enable_moe_block", default=False):
        traits["experts"] = routed_experts(
            keys,
            ffn=keys.size("moe_intermediate_size"),
            num_shared=1,
            shared_ffn=widths[0],
            router_bias=True,  # a scale of each expert
        )
        extra["mixture_norms"] = 4 * hidden * layers
    own = _of_full_layers(keys)
    one_head = keys.flag("attention_k_eq_v", default=False)
    near = WindowedAttention(
        heads=keys.size(*HEADS),
        kv_heads=keys.size(*KV_HEADS),
        head_dim=keys.size("head_dim", default=256),
    )
    return _gemma(
        keys,
        **traits,
        **seen,
        **own,
        windowed_attention=near if seen["sliding_window"] else None,
        values_are_keys=one_head,
        key_sharing_layers=shared,
        extra=extra,
    )


def _of_full_layers(keys: Keys) -> dict[str, int]:
    """Heads of the layers that see all: as published, or as transformers writes them again."""
    listed = keys.table("per_layer_config")
    again, *others = [listed.table(layer) for layer in listed.values] or [listed]
    if any(one.values != again.values for one in others):
        keys.refuse("per_layer_config", "must say the same of all the layers that it lists")
    kv_heads = keys.size(*KV_HEADS)
    if keys.flag("attention_k_eq_v", default=False):
        kv_heads = keys.size("num_global_key_value_heads", default=kv_heads)
    return {
        "kv_heads": again.size("num_key_value_heads", default=kv_heads),
        "head_dim": again.size("head_dim", default=keys.size("global_head_dim", default=512)),
    }


def _last_sees_all(seen: Windows, layers: int) -> Windows:
    """The last layer sees all, whatever the file says."""
    every, window = seen.get("full_attention_every", 1), seen["sliding_window"]
    each = seen.get("windowed") or tuple(every == 0 or n % every != 0 for n in range(1, layers + 1))
    return windows_of(window, (*each[:-1], False)) if window else seen


def _each_layers_inputs(
    keys: Keys, layers: int, hidden: int, extra: dict[str, int]
) -> dict[str, int]:
    """A table with a small vector of each token for each layer, and what leads it in."""
    width = keys.count("hidden_size_per_layer_input", default=256)
    if not width:
        return {}
    extra["per_layer_inputs"] = layers * (2 * width * hidden + hidden)
    extra["per_layer_model_projection"] = hidden * layers * width + width
    rows = keys.size("vocab_size_per_layer_input", default=262144)
    return {"layer_embeddings": rows * layers * width}


def _widths(keys: Keys, layers: int) -> list[int]:
    """The width of each layer's MLP."""
    listed = keys.values.get("intermediate_size")
    if isinstance(listed, list):
        widths = keys.numbers("intermediate_size") or []
        return list(of_each_layer(keys, "intermediate_size", widths))
    return [keys.size(*FFN)] * layers


def _mean_width(keys: Keys, widths: list[int], extra: dict[str, int]) -> dict[str, int]:
    """One width for all MLPs, with what is left over as a tensor of its own."""
    mean, rest = divmod(sum(widths), len(widths))
    if rest:
        extra["wider_mlps"] = 3 * keys.size(*HIDDEN) * rest
    return {"ffn": mean}


def _gemma(keys: Keys, **traits: Any) -> ModelSpec:
    bias = keys.flag("attention_bias", default=False)
    fixed = {
        "gated_mlp": True,
        "norms_per_layer": 4,
        "qk_norm": "head",
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
        "attention_bias": bias,
        "output_bias": bias,
    }
    if "head_dim" not in traits:
        fixed["head_dim"] = keys.size("head_dim", default=256)
    return decoder(keys, **fixed, **traits)


def mimo(keys: Keys) -> ModelSpec:
    """Five windowed layers, with twice the key heads and with sinks, to a full one."""
    layers, heads, kv_heads = keys.size(*LAYERS), keys.size(*HEADS), keys.size(*KV_HEADS)
    head, value = keys.size("head_dim", default=192), keys.size("v_head_dim", default=128)
    window = keys.size("sliding_window", default=129)
    if keys.has("sliding_window_size"):
        window = keys.size("sliding_window_size") + 1
    if keys.has("layer_types"):
        seen = windows(keys, every=None, default=window)
    else:
        full = {0, *range(5, layers, 6)}
        usual = [int(layer not in full) for layer in range(layers)]
        name = "hybrid_layer_pattern"  # 1: a window
        each = of_each_layer(keys, name, keys.numbers(name) or usual)
        seen = windows_of(window, tuple(bool(one) for one in each))
    experts = routed_experts(keys, ffn=keys.size("moe_intermediate_size"), dense_layers=1)
    return decoder(
        keys,
        gated_mlp=True,
        head_dim=head,
        value_dim=value,
        attention_bias=keys.flag("attention_bias", default=False),
        windowed_attention=WindowedAttention(
            heads=keys.size("swa_num_attention_heads", default=heads),
            kv_heads=keys.size("swa_num_key_value_heads", default=2 * kv_heads),
            head_dim=keys.size("swa_head_dim", default=head),
            value_dim=keys.size("swa_v_head_dim", default=value),
            sinks=True,
        ),
        **{**seen, "sliding_window": window},
        **placed(keys, experts),
    )


def laguna(keys: Keys) -> ModelSpec:
    """Windowed layers may have more heads; a gate scales each head or each channel."""
    layers, hidden, usual = keys.size(*LAYERS), keys.size(*HIDDEN), keys.size(*HEADS)
    seen = windows(keys, every=None, default=512)
    shared = keys.count("shared_expert_intermediate_size", default=512)
    experts = routed_experts(
        keys,
        ffn=keys.size("moe_intermediate_size"),
        num_shared=1 if shared else 0,
        shared_ffn=shared,
        dense_layers=1,
        router_bias=True,
    )
    dim = keys.size("head_dim", default=128)
    heads = keys.numbers("num_attention_heads_per_layer") or [usual] * layers
    plain = ModelSpec(
        name="", family="", layers=layers, hidden=hidden, heads=1, kv_heads=1, head_dim=1, ffn=1,
        gated_mlp=True, vocab=0, **seen,
    )  # fmt: skip
    far, near = _heads_by_window(keys, heads, plain, usual)
    of_channels = keys.values.get("gating") == "per-element"
    bias = keys.flag("attention_bias", default=False)
    return decoder(
        keys,
        gated_mlp=True,
        heads=far,
        head_dim=dim,
        qk_norm="head",
        attention_bias=bias,
        output_bias=bias,
        attention_gate=of_channels,
        gate_bias=False,
        windowed_attention=WindowedAttention(
            heads=near, kv_heads=keys.size(*KV_HEADS), head_dim=dim
        ),
        extra={} if of_channels else {"head_gates": hidden * sum(heads)},
        **seen,
        **placed(keys, experts),
    )


def _heads_by_window(keys: Keys, heads: list[int], plain: ModelSpec, usual: int) -> tuple[int, int]:
    """Heads of the layers that see all, and of the windowed ones."""
    name = "num_attention_heads_per_layer"
    of_each_layer(keys, name, heads)
    kinds: dict[bool, set[int]] = {False: set(), True: set()}
    for layer, count in enumerate(heads):
        kinds[is_windowed(plain, layer)].add(count)
    if any(len(counts) > 1 for counts in kinds.values()):
        keys.refuse(name, "must be one number for all windowed layers and one for the others")
    far, near = (next(iter(kinds[windowed]), usual) for windowed in (False, True))
    return far, near


def ernie_moe(keys: Keys) -> ModelSpec:
    """Mixtures from one layer to another, each some layers apart; biases nowhere or everywhere."""
    layers = keys.size(*LAYERS)
    first = keys.count("moe_layer_start_index", default=1)
    last = keys.values.get("moe_layer_end_index", -1)
    if not isinstance(last, int):
        keys.refuse("moe_layer_end_index", f"is {last!r}; it must be a layer, or -1 for the last")
    last = layers - 1 if last == -1 else last
    every = keys.size("moe_layer_interval", default=1)
    mixed = [(n + 1) % every == 0 and first <= n <= last for n in range(layers)]
    ffn = keys.size("moe_intermediate_size")
    shared = keys.count("moe_num_shared_experts", default=2)
    bias = keys.flag("use_bias", default=False)
    experts = routed_experts(
        keys,
        ffn=ffn,
        num_shared=shared,
        shared_ffn=shared * ffn,
        shared_bias=bias,
        router_bias=True,
    )
    return decoder(
        keys,
        gated_mlp=True,
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        head_bias=bias,
        **in_layers(experts, mixed),
    )


def longcat(keys: Keys) -> ModelSpec:
    """Each of its layers counts as two: attention with a dense MLP, attention with the experts.

    The second dense MLP, beside the experts, counts as a shared one. Experts that pass their input
    on have no weights, and of those that a token is sent to their share is taken off.
    """
    hidden, layers = keys.size(*HIDDEN), keys.size("num_layers", *LAYERS)
    idle = keys.count("zero_expert_num", default=0)
    real, ffn = keys.size("n_routed_experts"), keys.size("ffn_hidden_size", *FFN)
    top_k = keys.size(*TOP_K)
    experts = Experts(
        num_experts=real,
        top_k=max(round(top_k * real / (real + idle)), 1),
        ffn=keys.size("expert_ffn_hidden_size", "moe_intermediate_size"),
        num_shared=1,
        shared_ffn=ffn,
        every=2,
        router_bias=keys.flag("router_bias", default=False),
    )
    values = {name: one for name, one in keys.values.items() if name not in LAYERS}
    values |= {"num_hidden_layers": 2 * layers, FFN[0]: ffn, "n_routed_experts": None}
    spec = deepseek(Keys(values, keys.place))
    return msgspec.structs.replace(
        spec, experts=experts, extra={"idle_routes": layers * idle * hidden}
    )


READERS = {
    "ernie4_5_moe": ernie_moe,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": lambda keys: gemma4(keys, inputs=False),
    "laguna": laguna,
    "llama4_text": llama4,
    "longcat_flash": longcat,
    "mimo_v2_flash": mimo,
}
