"""The operators of a layer with a state, and of the chooser of sparse attention.

A state stands in place of attention: projections of the layer's input, a short convolution, the
scan (`state_scan.py`), a norm with its gate, the projection back. In decoding the scan is one
update: it reads and writes the state. The chooser (DeepSeek-V3.2, arXiv 2512.02556, section 2.1)
projects the compressed query and the input, and weighs every token in 8 bits before attention reads
those of the highest weight.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.cost.operator import ModelOperator, Pass, elementwise, matmul
from ridgeline.cost.state_scan import layer_state_bytes, scan_products, vector_products
from ridgeline.models.spec import Indexer, ModelSpec, StateMixer

BACKWARD_FLOPS = 2.5
"""FLOPs of a scan's backward over its forward: as of fused attention, which it resembles."""


def state_operators(model: ModelSpec, state: StateMixer, step: Pass) -> list[ModelOperator]:
    """The operators of one layer's state."""
    tokens, width = step.tokens, state.width // step.tp
    found = [matmul("state in", tokens, model.hidden, state.inputs // step.tp, step=step)]
    if state.conv_channels:
        channels = state.conv_channels // step.tp
        flops = 2.0 * state.conv_width
        found.append(
            elementwise("convolution", tokens, channels, passes=(2, 3), flops=flops, step=step)
        )
    if state.steps_rank:
        rank, chosen = state.steps_rank, state.steps_rank + 2 * state.key_dim
        found.append(matmul("state steps", tokens, width, chosen, step=step))
        found.append(matmul("state steps back", tokens, rank, width, step=step))
    if state.key_dim:
        found.append(_scan(state, step))
        found.append(elementwise("state norm", tokens, width, passes=(3, 5), flops=8, step=step))
    found.append(matmul("state out", tokens, width, model.hidden, step=step))
    return found


def _scan(state: StateMixer, step: Pass) -> ModelOperator:
    """The scan of whole sequences, or one token's update of the state."""
    size = state.heads * state.key_dim * state.value_dim
    products = scan_products(state) or vector_products(state)
    moved = step.tokens * (state.inputs + state.width) * step.activation_bytes / step.tp
    if step.phase == "decode":
        products = 3.0 * size
        moved += 2.0 * step.batch * layer_state_bytes(state, step.tp)
    forward = ModelOperator(
        name="scan",
        direction="forward",
        kind="attention",
        shape=f"{step.tokens} x {state.heads // step.tp} x {state.key_dim} x {state.value_dim}",
        dtype=step.dtype if step.operand_bytes >= 2.0 else "bf16",
        flops=2.0 * step.tokens * products / step.tp,
        moved_bytes=moved,
    )
    if not step.trains:
        return forward
    backward = replace(
        forward,
        name="scan, gradient",
        direction="backward",
        flops=BACKWARD_FLOPS * forward.flops,
        moved_bytes=2.0 * moved,
    )
    return replace(forward, backward=(backward,))


def chooser_operators(
    model: ModelSpec, indexer: Indexer, step: Pass, pairs: float
) -> list[ModelOperator]:
    """The operators that choose the tokens which one layer's attention reads.

    Args:
        model: Its compressed query has the rank `model.latent.q_rank`.
        indexer: The chooser's heads.
        step: The pass.
        pairs: Of one head, over all sequences.
    """
    assert model.latent is not None
    width = indexer.heads * indexer.dim
    cached = step.batch * step.seq * indexer.dim
    kernel = ModelOperator(
        name="choosing",
        direction="forward",
        kind="attention",
        shape=f"{step.batch} x {indexer.heads} x {step.tokens // step.batch} x {step.seq}",
        dtype=step.dtype if step.operand_bytes >= 2.0 else "bf16",
        flops=2.0 * pairs * width,
        moved_bytes=cached + step.tokens * width * step.activation_bytes,
    )
    return [
        matmul("index q", step.tokens, model.latent.q_rank, width, step=step),
        matmul("index k", step.tokens, model.hidden, indexer.dim + indexer.heads, step=step),
        kernel,
    ]
