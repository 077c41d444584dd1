"""The operators of an attention block: projections, positions, the fused kernel, the KV cache.

Grouped queries (Ainslie et al., 2305.13245) shrink keys and values. Latent attention (DeepSeek-V2,
2405.04434, section 2.1) projects through small ranks; decoding multiplies with the latent cache
itself, the up-projections absorbed into query and output (same paper, appendix C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.cost.operator import ModelOperator, Pass, elementwise, matmul
from ridgeline.cost.state_operators import chooser_operators
from ridgeline.models.spec import LatentAttention, ModelSpec

BACKWARD_FLOPS = 2.5
"""FLOPs of the fused kernel's backward pass over those of its forward pass: five matmuls for two
(FlashAttention-2)."""
WITHOUT_ROTARY = ("bloom", "mpt", "t5", "bert", "gpt2", "opt", "ctrl", "deberta-v2", "xglm")
"""Families whose positions are biases on the scores or vectors added to the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """The widths of one device's heads, in elements per token."""

    query: int
    key: int
    value: int
    output: int


def attention_operators(
    model: ModelSpec,
    step: Pass,
    *,
    window: int,
    causal: bool,
    crossing: bool = False,
    own_keys: bool = True,
) -> list[ModelOperator]:
    """The operators of one attention block.

    With `crossing`, keys and values come from the encoder; without `own_keys`, from another layer.
    """
    if model.latent is not None:
        return _latent(model, model.latent, step, window, causal)
    heads = model.heads // step.tp
    kv_heads = max(model.kv_heads // step.tp, 1)
    d, v = model.head_dim, model.value_dim or model.head_dim
    widths = Widths(query=heads * d, key=kv_heads * d, value=kv_heads * v, output=heads * v)
    tag = "cross " if crossing else ""
    fused = widths.query + (widths.key if own_keys else 0)
    fused += widths.value if own_keys and not model.values_are_keys else 0
    fused += widths.output if model.attention_gate else 0
    found = []
    if crossing:
        found.append(matmul(f"{tag}q", step.tokens, model.hidden, widths.query, step=step))
        if step.phase != "decode":
            pair = widths.key + widths.value
            found.append(matmul(f"{tag}kv", step.tokens, model.hidden, pair, step=step))
    else:
        found.append(matmul("qkv", step.tokens, model.hidden, fused, step=step))
        found += _on_queries_and_keys(model, widths, step)
    found.append(_kernel(f"{tag}attention", widths, heads, (d, v), step, window, causal))
    if model.attention_gate:
        gate = elementwise("gate", step.tokens, widths.output, passes=(3, 5), flops=4, step=step)
        found.append(gate)
    found.append(matmul(f"{tag}out", step.tokens, widths.output, model.hidden, step=step))
    return found


def pairs(seq: int, window: int, *, causal: bool) -> int:
    """Query-key pairs of one sequence and head that the mask and the window leave.

    >>> pairs(4, 0, causal=True), pairs(4, 2, causal=True), pairs(4, 0, causal=False)
    (10, 7, 16)
    """
    if not causal:
        return seq * min(seq, 2 * window + 1) if window else seq * seq
    if not window or window >= seq:
        return seq * (seq + 1) // 2
    return window * (window + 1) // 2 + (seq - window) * window


def _on_queries_and_keys(model: ModelSpec, widths: Widths, step: Pass) -> list[ModelOperator]:
    """Norms and rotary embedding of queries and keys, each a pass of its own."""
    both = widths.query + widths.key
    found = []
    if model.qk_norm != "none":
        found.append(elementwise("qk norm", step.tokens, both, passes=(2, 3), flops=5, step=step))
    if not model.learned_positions and model.family not in WITHOUT_ROTARY:
        found.append(elementwise("rotary", step.tokens, both, passes=(2, 2), flops=3, step=step))
    return found


def _kernel(
    name: str,
    widths: Widths,
    heads: int,
    sizes: tuple[int, int],
    step: Pass,
    window: int,
    causal: bool,
) -> ModelOperator:
    """The fused kernel; `sizes` of a head's query and value."""
    if step.phase == "decode":
        seen = min(step.seq, window) if window else step.seq
        cached = seen * (widths.key + widths.value)
        own = widths.query + widths.output + widths.key + widths.value
        return ModelOperator(
            name=name,
            direction="forward",
            kind="attention",
            shape=f"{step.batch} x {heads} x 1 x {seen} x {sizes[0]}",
            dtype=_attention_dtype(step),
            flops=2.0 * step.batch * heads * seen * sum(sizes),
            moved_bytes=step.batch * step.activation_bytes * (cached + own),
        )
    return _full_kernel(name, widths, heads, sizes, step, window, causal)


def _full_kernel(
    name: str,
    widths: Widths,
    heads: int,
    sizes: tuple[int, int],
    step: Pass,
    window: int,
    causal: bool,
) -> ModelOperator:
    """The fused kernel over whole sequences; `sizes` of a head's query and value."""
    seen = pairs(step.seq, window, causal=causal)
    elements = widths.query + widths.key + widths.value + widths.output
    row_sums = 4.0 * heads * step.tokens
    whole = step.tokens * elements * step.activation_bytes
    forward = ModelOperator(
        name=name,
        direction="forward",
        kind="attention",
        shape=f"{step.batch} x {heads} x {step.seq} x {step.seq} x {sizes[0]}"
        + (f", window {window}" if window else ""),
        dtype=_attention_dtype(step),
        flops=2.0 * step.batch * heads * seen * sum(sizes),
        moved_bytes=whole + row_sums,
    )
    if not step.trains:
        return forward
    backward = replace(
        forward,
        name=f"{name}, gradient",
        direction="backward",
        flops=BACKWARD_FLOPS * forward.flops,
        moved_bytes=2.0 * whole + row_sums,
    )
    return replace(forward, backward=(backward,))


def _attention_dtype(step: Pass) -> str:
    """Attention stays in 16 bits where the matmuls go below."""
    return step.dtype if step.operand_bytes >= 2.0 else "bf16"


def _latent(
    model: ModelSpec, latent: LatentAttention, step: Pass, window: int, causal: bool
) -> list[ModelOperator]:
    """Multi-head latent attention; the down-projections are whole on every device."""
    tokens, h = step.tokens, model.hidden
    heads = model.heads // step.tp
    qk, cached = latent.nope_dim + latent.rope_dim, latent.kv_rank + latent.rope_dim
    found = []
    if latent.q_rank:
        found.append(matmul("q down", tokens, h, latent.q_rank, step=step))
    found.append(matmul("q up", tokens, latent.q_rank or h, heads * qk, step=step))
    found.append(matmul("kv down", tokens, h, cached, step=step))
    rotated = heads * latent.rope_dim + latent.rope_dim
    found.append(elementwise("rotary", tokens, rotated, passes=(2, 2), flops=3, step=step))
    output = heads * latent.value_dim
    if model.indexer is not None:
        met = step.seq if step.phase == "decode" else pairs(step.seq, 0, causal=causal)
        found += chooser_operators(model, model.indexer, step, float(step.batch * met))
        window = model.indexer.top_k
    if step.phase == "decode":
        seen = min(step.seq, window) if window else step.seq
        found += _absorbed(latent, heads, step, seen)
    else:
        up = heads * (latent.nope_dim + latent.value_dim)
        found.append(matmul("kv up", tokens, latent.kv_rank, up, step=step))
        widths = Widths(query=heads * qk, key=heads * qk, value=output, output=output)
        sizes = (qk, latent.value_dim)
        found.append(_full_kernel("attention", widths, heads, sizes, step, window, causal))
    found.append(matmul("out", tokens, output, h, step=step))
    return found


def _absorbed(latent: LatentAttention, heads: int, step: Pass, seen: int) -> list[ModelOperator]:
    """Queries into the latent space, attention over the latent cache, values out of it."""
    cached = latent.kv_rank + latent.rope_dim
    kernel = ModelOperator(
        name="attention",
        direction="forward",
        kind="attention",
        shape=f"{step.batch} x {heads} x 1 x {seen} x {cached}",
        dtype=_attention_dtype(step),
        flops=2.0 * step.batch * heads * seen * (cached + latent.kv_rank),
        moved_bytes=step.batch
        * step.activation_bytes
        * (seen * cached + heads * (cached + latent.kv_rank)),
    )
    rank, nope, value = latent.kv_rank, latent.nope_dim, latent.value_dim
    return [
        matmul("q absorb", step.batch, nope, rank, step=step, groups=heads),
        kernel,
        matmul("value absorb", step.batch, rank, value, step=step, groups=heads),
    ]
