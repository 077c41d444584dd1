"""What layers with a state cost: its size, the work of a scan over a sequence, and of one token.

A state stays as large however long the sequence is: a matrix of key x value width for each head,
in 32 bits (SGLang's and vLLM's default for such models, `mamba_ssm_dtype` of their configurations),
and the last inputs of the convolution before it. A decode reads and writes all of it.

A sequence is scanned in chunks of c tokens, whose pairs are multiplied as in attention while the
state passes from chunk to chunk. Multiplications of one token and head, k and v the widths of keys
and values:

    state space         c v + 2 k v, and c k for each group of keys  (Dao and Gu, 2405.21060, 6)
    linear attention    c (k + v) + 2 k v                           (Qin et al., 2401.04658, 3)
    delta rule          c (3 k + 2 v) + 3 k v                       (Yang et al., 2406.06484, 3.2)
    selective scan      3 k, on the vector units: no matmuls        (Gu and Dao, 2312.00752, 3.3)
"""

from __future__ import annotations

from ridgeline.models.spec import ModelSpec, StateMixer, num_state_layers

STATE_BYTES = 4.0
"""Per element of a state."""
CONVOLUTION_BYTES = 2.0
CHUNK = {"delta-rule": 64.0, "state-space": 256.0, "linear-attention": 256.0}
"""Tokens of a chunk: of the kernels of flash-linear-attention; `chunk_size` of Mamba 2's
configurations; `block_size` of MiniMax-Text's."""


def layer_state_bytes(state: StateMixer, tp: int = 1) -> float:
    """Kept by one layer of one sequence on one device.

    >>> from ridgeline.models import load_model
    >>> layer_state_bytes(load_model("Qwen3-Next-80B-A3B").state) / 1e6
    2.146304
    """
    matrices = state.heads * state.key_dim * state.value_dim * STATE_BYTES
    recent = state.conv_channels * max(state.conv_width - 1, 0) * CONVOLUTION_BYTES
    return (matrices + recent) / tp


def state_bytes(model: ModelSpec, tp: int = 1) -> float:
    """Kept by all layers of one sequence on one device; 0 without states."""
    if model.state is None:
        return 0.0
    return num_state_layers(model) * layer_state_bytes(model.state, tp)


def scan_products(state: StateMixer) -> float:
    """Multiplications of one token in one layer's scan, in matmuls."""
    k, v = state.key_dim, state.value_dim
    chunk = CHUNK.get(state.rule, 0.0)
    if state.rule == "delta-rule":
        return state.heads * (chunk * (3 * k + 2 * v) + 3.0 * k * v)
    if state.rule == "state-space":
        return state.heads * (chunk * v + 2.0 * k * v) + state.key_heads * chunk * k
    if state.rule == "linear-attention":
        return state.heads * (chunk * (k + v) + 2.0 * k * v)
    return 0.0


def vector_products(state: StateMixer) -> float:
    """Multiplications of one token in one layer outside of matmuls: scan, convolution."""
    scanned = 3.0 * state.heads * state.key_dim if state.rule == "selective-scan" else 0.0
    return scanned + float(state.conv_channels * state.conv_width)
