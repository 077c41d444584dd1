"""Sizes of what keeps a state, under the keys of each lineage: one function for each kind of mixer.

Gated delta rule (arXiv 2412.06464): Qwen3-Next, Qwen3.5, OLMo hybrid; with a decay for each channel
(Kimi Delta Attention, 2510.26692): Kimi Linear. State spaces (Mamba 2, 2405.21060): Granite 4,
Bamba, Falcon H1, Nemotron H (2504.03624). Selective scans (Mamba, 2312.00752): Mamba, Jamba
(2403.19887), Falcon Mamba. Linear attention with decay: MiniMax-Text (2501.08313). Short
convolutions: LFM2 (2511.23404). Recurrences of channels: RecurrentGemma (2404.07839), RWKV 4
(2305.13048).
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.models.families.sizes import HEADS, HIDDEN
from ridgeline.models.keys import Keys
from ridgeline.models.spec import StateMixer

STATE = ("mamba_d_state", "state_size", "ssm_state_size")
CONVOLUTION = ("mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim", "conv_L_cache")
EXPANSION = ("mamba_expand", "expand")


def gated_delta(keys: Keys) -> StateMixer:
    """Keys, values, a gate, and two numbers for each head."""
    hidden, heads = keys.size(*HIDDEN), keys.size(*HEADS)
    key_heads = keys.size("linear_num_key_heads", default=heads)
    value_heads = keys.size("linear_num_value_heads", default=heads)
    key_dim = keys.size("linear_key_head_dim", default=max(3 * hidden // (4 * key_heads), 1))
    value_dim = keys.size("linear_value_head_dim", default=2 * key_dim)
    mixed = 2 * key_heads * key_dim + value_heads * value_dim
    return StateMixer(
        rule="delta-rule",
        heads=value_heads,
        key_heads=key_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        inputs=mixed + value_heads * value_dim + 2 * value_heads,
        conv_width=keys.size(*CONVOLUTION, default=4),
        conv_channels=mixed,
        other=2 * value_heads + value_dim,  # decays and their offsets, one norm
    )


def kimi_delta(keys: Keys) -> StateMixer:
    """The delta rule with a decay for each channel; decays and gates pass through a small rank."""
    nested = keys.table("linear_attn_config")
    dim = nested.size("head_dim", default=keys.size("linear_head_dim", default=128))
    heads = nested.size("num_heads", default=keys.size("linear_num_heads", default=32))
    usual = keys.size("linear_conv_kernel_dim", default=4)
    width = heads * dim
    return StateMixer(
        rule="delta-rule",
        heads=heads,
        key_heads=heads,
        key_dim=dim,
        value_dim=dim,
        inputs=3 * width + 2 * dim + heads,
        conv_width=nested.size("short_conv_kernel_size", default=usual),
        conv_channels=3 * width,
        other=2 * dim * width + width + heads + dim,
    )


def kimi_delta_wide(keys: Keys) -> StateMixer:
    """The delta rule of `kimi_delta`, decays and gates projected at once (Ling 2.5)."""
    heads = keys.size("linear_num_heads", *HEADS)
    dim = keys.size("linear_head_dim", "head_dim", default=128)
    width = heads * dim
    return StateMixer(
        rule="delta-rule",
        heads=heads,
        key_heads=heads,
        key_dim=dim,
        value_dim=dim,
        inputs=5 * width + heads,
        conv_width=keys.size("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
        conv_channels=3 * width,
        other=width + heads + dim,  # offsets and bases of decays, one norm
    )


def gated_recurrence(keys: Keys) -> StateMixer:
    """A recurrence of single channels behind two gates that are block-diagonal matrices."""
    hidden, heads = keys.size(*HIDDEN), keys.size(*HEADS)
    width = keys.size("lru_width", default=hidden)
    if width % heads:
        keys.refuse("lru_width", f"is {width}; the {heads} heads must divide it")
    gates = 2 * (width * (width // heads) + width)
    return StateMixer(
        rule="selective-scan",
        heads=width,
        key_heads=1,
        key_dim=1,
        value_dim=1,
        inputs=2 * width,
        conv_width=keys.size("conv1d_width", default=4),
        conv_channels=width,
        other=gates + width + 3 * width + hidden,  # decays; biases of inputs, convolution, output
    )


def rwkv(keys: Keys) -> StateMixer:
    """A decaying average of values for each channel; the MLP's own gate counts as an input."""
    hidden = keys.size(*HIDDEN)
    width = keys.size("attention_hidden_size", default=hidden)
    return StateMixer(
        rule="selective-scan",
        heads=width,
        key_heads=1,
        key_dim=5,  # two sums and their scale, and the inputs of the token before, of either block
        value_dim=1,
        inputs=3 * width + hidden,
        other=2 * width + 3 * hidden,
    )


def state_space(keys: Keys) -> StateMixer:
    """The state space of Mamba 2: heads of one decay each, groups of which share B and C."""
    hidden = keys.size(*HIDDEN)
    heads = keys.size("mamba_n_heads", "mamba_num_heads", "num_heads", default=128)
    inner = keys.count("mamba_d_ssm", default=0) or keys.size(*EXPANSION, default=2) * hidden
    if keys.has("mamba_head_dim"):
        inner = heads * keys.size("mamba_head_dim")
    if inner % heads:
        keys.refuse("mamba_n_heads", f"is {heads}; it must divide the inner width {inner}")
    groups = keys.size("mamba_n_groups", "n_groups", default=1)
    state = keys.size(*STATE, default=128)
    channels = inner + 2 * groups * state
    inputs = inner + channels + heads
    other = 3 * heads  # A, D and the offsets of steps
    if keys.flag("mamba_rms_norm", default=keys.text("model_type", default="") != "falcon_h1"):
        other += inner
    if keys.flag("mamba_conv_bias", "use_conv_bias", default=True):
        other += channels
    other += inputs if keys.flag("use_bias", "mamba_proj_bias", default=False) else 0
    out_bias = keys.flag("projectors_bias", "use_bias", "mamba_proj_bias", default=False)
    other += hidden if out_bias else 0
    return StateMixer(
        rule="state-space",
        heads=heads,
        key_heads=groups,
        key_dim=state,
        value_dim=inner // heads,
        inputs=inputs,
        conv_width=keys.size(*CONVOLUTION, default=4),
        conv_channels=channels,
        other=other,
    )


def selective_scan(keys: Keys) -> StateMixer:
    """The scan of Mamba: every channel is a head, its steps chosen through a small rank."""
    hidden = keys.size(*HIDDEN)
    inner = keys.size(*EXPANSION, default=2) * hidden
    if keys.text("model_type", default="") in ("mamba", "falcon_mamba"):
        inner = keys.size("intermediate_size", default=inner)
    state = keys.size(*STATE, default=16)
    rank = -(-hidden // 16)
    for name in ("mamba_dt_rank", "time_step_rank"):
        if keys.has(name) and keys.values[name] != "auto":
            rank = keys.size(name)
    other = inner * state + 2 * inner  # A and D, and the offsets of steps
    if keys.text("model_type", default="") == "jamba":
        other += rank + 2 * state  # norms of steps, B and C
    if keys.flag("mamba_conv_bias", "use_conv_bias", default=True):
        other += inner
    if keys.flag("use_bias", "mamba_proj_bias", default=False):
        other += 2 * inner + hidden
    return StateMixer(
        rule="selective-scan",
        heads=inner,
        key_heads=1,
        key_dim=state,
        value_dim=1,
        inputs=2 * inner,
        conv_width=keys.size(*CONVOLUTION, default=4),
        conv_channels=inner,
        steps_rank=rank,
        other=other,
    )


def lightning(keys: Keys) -> StateMixer:
    """Linear attention with a fixed decay for each head: queries, keys, values, a gate, a norm."""
    heads, hidden = keys.size(*HEADS), keys.size(*HIDDEN)
    dim = keys.size("head_dim", default=hidden // heads)
    return StateMixer(
        rule="linear-attention",
        heads=heads,
        key_heads=heads,
        key_dim=dim,
        value_dim=dim,
        inputs=4 * heads * dim,
        other=heads * dim,
    )


def short_convolution(keys: Keys) -> StateMixer:
    """A convolution over a few tokens between two gates."""
    hidden = keys.size(*HIDDEN)
    bias = keys.flag("conv_bias", default=False)
    return StateMixer(
        rule="convolution",
        heads=hidden,
        key_heads=0,
        key_dim=0,
        value_dim=1,
        inputs=3 * hidden,
        conv_width=keys.size("conv_L_cache", default=3),
        conv_channels=hidden,
        other=5 * hidden if bias else 0,
    )


MIXERS: dict[str, Callable[[Keys], StateMixer]] = {
    "gated-delta": gated_delta,
    "kimi-delta": kimi_delta,
    "kimi-delta-wide": kimi_delta_wide,
    "gated-recurrence": gated_recurrence,
    "rwkv": rwkv,
    "state-space": state_space,
    "selective-scan": selective_scan,
    "lightning": lightning,
    "short-convolution": short_convolution,
}
"""Mixers by the name that `hybrids.toml` uses."""
