"""Peak memory of one device, by term and pipeline stage.

Static states follow ZeRO (Rajbhandari et al., arXiv 1910.02054, section 3): weights, gradients,
master weights, optimizer moments, divided by what the stage shards. Activations are counted
tensor by tensor as autograd keeps them for the backward pass (Korthikanti et al., arXiv
2205.05198, section 4: 34·s·b·h + 5·a·s²·b for a GPT layer with dropout; here recounted for
grouped queries, gated MLPs, experts and fused attention). Under 1F1B stage i holds
min(pp - i, micro-batches) of them (Narayanan et al., arXiv 2104.04473, section 2.2).
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.disk_state import PORTION_BYTES, WINDOWS
from ridgeline.cost.state_scan import STATE_BYTES
from ridgeline.cost.training.adapters import adapted_activation_bytes, widened_bytes
from ridgeline.cost.training.head import fused_loss, head_rows
from ridgeline.cost.training.layouts import ALL_ON_DISK, FULL, NONE, ON_DISK
from ridgeline.cost.training.setting import Setting
from ridgeline.cost.training.sharding import (
    expert_copies,
    gathered_weight_bytes,
    held_parameters,
    trained_parameters,
)

CONTEXT_BYTES = 1.5e9
"""Memory of the device's context, its libraries and their workspaces: not seen by the allocator."""
COMMUNICATOR_BYTES = 0.6e9
"""Memory of one communicator's buffers (NCCL: 16 to 32 channels)."""
UNFUSED_NORM_BYTES = 4.0
"""Per element that an RMS norm of separate kernels keeps beyond its input: an fp32 copy."""
UNFUSED_GATE_BYTES = 2.0
"""Per element of a gated MLP that separate kernels keep more: the activated gate."""
BYTES_PER_LOGIT = 6.0
"""A logit in 16 bits and its fp32 softmax, which becomes the gradient in place: a fused cross
entropy."""
BYTES_PER_EAGER_LOGIT = 14.0
"""A logit in 16 bits and, while `F.cross_entropy` goes backward, three fp32 tensors: its log
softmax, the gradient of that, and the gradient of the logit."""
WORKING_LAYERS = 2.5
"""Layers' worth of activations alive while one layer is recomputed and differentiated: its
activations, their gradients, and what kernels need in between."""
BUCKET_BYTES_PER_PARAMETER = 4.0
"""The most that packing needs: every gradient and every weight once, in 16 bits."""
SLACK = 0.07
"""Share of what comes and goes that the allocator loses between blocks."""
RAGGED_SLACK = 1.0
"""The same where each batch has another length: large blocks of the batches before stay reserved,
and the next batch's tensors do not fit into them (torch's notes on CUDA, `expandable_segments`)."""
OFFLOADED_LAYERS = 2.0
"""Layers whose activations are on the device while the others' lie in the host's memory: one on
its way there or back, one at work."""
STATE_CHUNK = 64.0
"""Tokens between two states that a scan keeps for its backward pass (flash-linear-attention)."""


def layer_activation_bytes(setting: Setting) -> Floats:
    """Kept by one mean layer without recomputation, per micro-batch and device."""
    dims, layouts, software = setting.dims, setting.layouts, setting.software
    tp, h = layouts.tp, dims.hidden
    drop = np.where(software.dropout, 1.0, 0.0)
    streams = np.where(layouts.sp, h / tp, h * 1.0)
    # Inputs of two norms, of the matmuls behind them (kept whole by every tensor rank without
    # sequence parallelism), and two dropout masks of one byte.
    whole = (8.0 + 2.0 * drop) * streams
    latent = np.where(dims.kv_rank > 0, dims.kv_rank + dims.rope_dim + dims.q_rank, 0.0)
    attends, states = dims.attention_layers / dims.layers, dims.state_layers / dims.layers
    widths = dims.query_width + dims.key_width + dims.value_width
    widths = widths + (1.0 + 2.0 * dims.output_gates) * dims.output_width
    attention = 2.0 * attends * widths
    # A state's inputs before and behind the convolution, its output before and behind the gate,
    # and the states between chunks.
    between = STATE_BYTES * dims.state_elements / STATE_CHUNK
    attention = attention + states * (2.0 * (2.0 * dims.state_inputs + 2.0 * dims.state_width))
    attention = attention + states * between
    unfused = np.where(layouts.compiled | software.fused_elementwise, 0.0, 1.0)
    whole = whole + 2.0 * UNFUSED_NORM_BYTES * unfused * dims.rms_norm * streams
    per_width = 2.0 * (dims.gates + 1.0) + UNFUSED_GATE_BYTES * unfused * (dims.gates - 1.0)
    routed = routed_activation_bytes(setting)
    moe = dims.moe_layers / dims.layers
    dense = dims.dense_layers / dims.layers
    mlp = dense * per_width * dims.ffn + moe * (routed + per_width * dims.shared_ffn)
    per_token = whole * dims.parts / 2.0 + 2.0 * attends * latent + (attention + mlp) / tp
    lse = np.where(software.fused_attention, 4.0 * attends * dims.heads / tp, 0.0)
    per_token = per_token + adapted_activation_bytes(setting)
    return setting.tokens * (per_token + lse) + score_bytes(setting)


def routed_activation_bytes(setting: Setting) -> Floats:
    """Kept of one token in a mixture's experts: what goes to them, comes back, and lies between.

    Megatron-core weighs what lies between by the router's probabilities, so that no gradient reads
    what comes back (`weighted_bias_swiglu_impl` in `core/transformer/moe/experts.py`).
    """
    dims, software = setting.dims, setting.software
    unfused = np.where(setting.layouts.compiled | software.fused_elementwise, 0.0, 1.0)
    per_width = 2.0 * (dims.gates + 1.0) + UNFUSED_GATE_BYTES * unfused * (dims.gates - 1.0)
    copies = np.where(software.modules, 2.0, 4.0)
    return dims.top_k * (copies * dims.hidden * setting.layouts.etp + per_width * dims.expert_ffn)


def score_bytes(setting: Setting) -> Floats:
    """Scores and probabilities kept by unfused attention: (2, with dropout 5)·a·s²·b."""
    dims, layouts, software = setting.dims, setting.layouts, setting.software
    kept = np.where(software.dropout, 5.0, 4.0)
    scores = setting.tokens * setting.seq * dims.heads / layouts.tp
    scores = scores * dims.attention_layers / dims.layers
    return np.where(software.fused_attention, 0.0, kept * scores)


def kept_layer_bytes(setting: Setting) -> Floats:
    """Kept by one layer until its backward pass, under each layout's recomputation."""
    layouts = setting.layouts
    everything = layer_activation_bytes(setting)
    split = np.where(layouts.sp, layouts.tp, 1)
    inputs = setting.tokens * setting.dims.hidden * 2.0 / split
    without_scores = everything - score_bytes(setting)
    moe = setting.dims.moe_layers / setting.dims.layers / layouts.tp
    experts = setting.tokens * moe * routed_activation_bytes(setting)
    redone = np.where(setting.software.repeats_experts, experts, named_module_bytes(setting))
    some = np.where(setting.selects_core, without_scores - redone, everything)
    some = np.where(setting.selects_operators, inputs + selected_bytes(setting), some)
    share = setting.recompute_share
    return np.where(layouts.recompute == FULL, share * inputs + (1.0 - share) * everything, some)


def named_module_bytes(setting: Setting) -> Floats:
    """What one mean layer no longer keeps of light modules that are named for recomputation."""
    dims, software, tp = setting.dims, setting.software, setting.layouts.tp
    gated = dims.moe_layers / dims.layers * dims.top_k * dims.expert_ffn
    widths = dims.query_width + dims.key_width + dims.value_width
    latent = dims.attention_layers / dims.layers * np.where(dims.kv_rank > 0, widths, 0.0)
    elements = np.where(software.repeats_gates, gated, 0.0)
    elements = elements + np.where(software.repeats_latent, latent, 0.0)
    return np.asarray(2.0 * setting.tokens * elements / tp)


def selected_bytes(setting: Setting) -> Floats:
    """Kept by one mean layer, beside its input, under recomputation by operator.

    Attention's output stays, and of the matmuls in their order (query, key, value, output; gate,
    up, down) every second: query, value, gate, and down, whose output no gradient reads, so that
    only eager code keeps it (torchtitan, `distributed/activation_checkpoint.py`). Matmuls that its
    list does not name are all repeated.
    """
    dims, layouts, software = setting.dims, setting.layouts, setting.software
    attends = dims.attention_layers / dims.layers
    listed = np.where(setting.lists_matmuls, 1.0, 0.0)
    kept = attends * (listed * (dims.query_width + dims.value_width) + dims.output_width)
    # Of a state, what goes into its scan and what comes out.
    states = dims.state_layers / dims.layers * (dims.state_inputs + dims.state_width)
    moe = dims.moe_layers / dims.layers
    dense = dims.dense_layers / dims.layers
    hidden = listed * (dense * dims.ffn + moe * (dims.top_k * dims.expert_ffn + dims.shared_ffn))
    eager = np.where(layouts.compiled | software.fused_elementwise, 0.0, 1.0)
    down = eager * dims.hidden / np.where(layouts.sp, layouts.tp, 1)
    lse = np.where(software.fused_attention, 4.0 * attends * dims.heads / layouts.tp, 0.0)
    return setting.tokens * (2.0 * ((kept + states + hidden) / layouts.tp + down) + lse)


def in_flight(setting: Setting, stage: Floats) -> Floats:
    """Micro-batches whose activations a stage holds at once."""
    layouts = setting.layouts
    waiting = np.minimum(layouts.pp - stage, layouts.num_microbatches)
    chunks = 1.0 + (layouts.pp - 1.0) / (layouts.pp * layouts.vpp)
    interleaved = np.minimum(
        layouts.pp * chunks - 2.0 * stage / layouts.vpp, layouts.num_microbatches
    )
    held = np.where(layouts.vpp > 1, np.maximum(interleaved, 1.0), waiting)
    return np.where(layouts.schedule == 0, layouts.num_microbatches, held)


def logits_bytes(setting: Setting) -> Floats:
    """What the loss holds of the logits at its peak, on the last stage."""
    layouts = setting.layouts
    each = np.where(fused_loss(setting), BYTES_PER_LOGIT, BYTES_PER_EAGER_LOGIT)
    whole = head_rows(setting) * setting.dims.outputs / layouts.tp * each
    return np.where(setting.software.chunked_logits, whole / 8.0, whole)


def _tensor_terms(setting: Setting, stage: Floats) -> dict[str, Floats]:
    """Tensors of pipeline stage `stage` (0 is the first)."""
    layouts, software, dims = setting.layouts, setting.software, setting.dims
    held = held_parameters(setting)
    last = stage == layouts.pp - 1
    ends = np.where(stage == 0, held.embedding, np.where(last, held.head, 0.0))
    copies = expert_copies(setting)
    zero, shards = layouts.zero, layouts.fsdp
    trained = trained_parameters(setting)
    dense = trained.dense + np.where(setting.frozen_weights, 0.0, ends)
    full = dense + trained.experts
    states = dense / shards + trained.experts / copies
    on_disk = layouts.offload == ON_DISK
    kept = np.where(zero >= 1, states, full)
    by_optimizer = kept * np.where((layouts.offload > 0) & ~on_disk, 0.0, 1.0)
    # Gradients that lie on disk pass through the layers that are gathered.
    by_device = np.where(layouts.offload == ALL_ON_DISK, 0.0, 1.0)
    moments = np.where(on_disk, _windows(setting, kept), by_optimizer * software.optimizer_bytes)
    # Fully sharded weights are the master copy themselves; the 16-bit copy lives for two layers.
    two_layers = 2.0 * (held.dense + ends + held.experts) * layouts.pp / dims.layers
    travelling = gathered_weight_bytes(setting)
    gathered = two_layers * (travelling + np.where(setting.frozen_weights, 0.0, travelling))
    copy = np.where(zero == 3, 0.0, full)
    layers = np.ceil(dims.layers / layouts.pp)
    flights = in_flight(setting, stage)
    one_layer = layer_activation_bytes(setting)
    # The loss and the first recomputed layer do not overlap in time: the larger one counts.
    working = np.where(layouts.recompute == NONE, 0.0, WORKING_LAYERS * one_layer)
    logits = np.where(last, logits_bytes(setting), 0.0)
    working = np.maximum(working - logits, 0.0)
    sums = (zero == 3) & software.sums_whole_gradients & (layouts.num_microbatches > 1)
    summed = np.where((zero >= 2) & ~sums, states, full)
    kept_here = np.where(software.offloads_activations, OFFLOADED_LAYERS, layers * flights)
    return {
        "weights": copy * software.weight_bytes
        + np.where(zero == 3, states, 0.0)
        * (np.where(software.master_bytes > 0, 0.0, software.weight_bytes))
        + _frozen_bytes(setting, ends),
        "gradients": by_device
        * (
            summed * software.gradient_bytes * _held_gradients(setting)
            + by_optimizer * software.step_gradient_bytes
        ),
        "master": by_optimizer * software.master_bytes,
        "optimizer": moments,
        "gathered": np.where(zero == 3, gathered, 0.0) + widened_bytes(setting),
        "activations": kept_layer_bytes(setting) * np.minimum(kept_here, layers * flights),
        "recompute": working,
        "logits": logits,
    }


def _held_gradients(setting: Setting) -> Floats:
    """Share of the gradients that are there at once: all, or the largest where each is freed."""
    dims, held = setting.dims, held_parameters(setting)
    whole = held.dense + held.experts + held.ends
    tables = np.maximum(dims.embedding_parameters, dims.outputs * dims.hidden) / setting.layouts.tp
    return np.where(setting.software.frees_gradients, np.minimum(tables / whole, 1.0), 1.0)


def _frozen_bytes(setting: Setting, ends: Floats) -> Floats:
    """Weights that adapters stand beside; `ends` are those of a stage's embedding or head."""
    layouts, adapters, held = setting.layouts, setting.adapters, held_parameters(setting)
    shards = np.where(layouts.zero == 3, layouts.fsdp, 1)
    copies = np.where(layouts.zero == 3, expert_copies(setting), 1.0)
    linear = adapters.weight_bytes * (held.dense / shards + held.experts / copies)
    whole = linear + adapters.table_bytes * ends / shards
    return np.where(setting.frozen_weights, whole, 0.0)


def _windows(setting: Setting, kept: Floats) -> Floats:
    """Memory through which states on disk pass: of the largest parameter, or of many small ones."""
    dims, layouts, held = setting.dims, setting.layouts, held_parameters(setting)
    table = np.maximum(dims.embedding_parameters, dims.outputs * dims.hidden) / layouts.tp
    block = dims.hidden * dims.ffn / layouts.tp
    largest = np.maximum(table, np.minimum(block, held.dense))
    largest = largest / np.where(layouts.zero >= 1, layouts.fsdp, 1)
    each = setting.software.optimizer_bytes
    return WINDOWS * np.minimum(kept * each, np.maximum(largest * each, PORTION_BYTES))


def _overhead_terms(setting: Setting, terms: dict[str, Floats]) -> dict[str, Floats]:
    """What comes on top of tensors: allocator slack, communicators, the device's context."""
    layouts = setting.layouts
    trained = trained_parameters(setting)
    local = trained.dense + trained.experts + trained.ends
    buckets = np.minimum(setting.software.bucket_bytes, BUCKET_BYTES_PER_PARAMETER * local)
    slack = np.where(setting.software.ragged, RAGGED_SLACK, SLACK)
    groups = sum(
        np.where(size > 1, 1.0, 0.0)
        for size in (layouts.tp, layouts.pp, layouts.dp, layouts.cp, layouts.ep)
    )
    return {
        "slack": slack * _moving_bytes(terms),
        "buffers": groups * COMMUNICATOR_BYTES + CONTEXT_BYTES + buckets,
    }


def update_bytes(terms: dict[str, Floats], setting: Setting) -> Floats:
    """What the optimizer's step makes for all parameters at once.

    Of torch's AdamW over lists of tensors the square roots of all second moments
    (`_multi_tensor_adamw`; its documentation: "sizeof(params) more peak memory").
    """
    return np.where(setting.software.step_copies, terms["optimizer"] / 2.0, 0.0)


def _moving_bytes(terms: dict[str, Floats]) -> Floats:
    """What comes and goes within a step."""
    return terms["activations"] + terms["recompute"] + terms["logits"] + terms["gathered"]


def stage_terms(setting: Setting, stage: Floats) -> dict[str, Floats]:
    """Bytes by term on pipeline stage `stage` (0 is the first)."""
    terms = _tensor_terms(setting, stage)
    # The step runs when activations are gone: it counts where it needs more room than they did.
    update = np.maximum(update_bytes(terms, setting) - _moving_bytes(terms), 0.0)
    return terms | {"update": update} | _overhead_terms(setting, terms)


def peak_terms(setting: Setting) -> dict[str, Floats]:
    """Bytes by term on the fuller of the first and the last stage."""
    first, last = _ends(setting)
    fuller = sum(first.values()) >= sum(last.values())
    return {name: np.where(fuller, first[name], last[name]) for name in first}


def peak_bytes(setting: Setting) -> Floats:
    """Bytes on the fuller of the first and the last stage."""
    first, last = _ends(setting)
    return np.maximum(sum(first.values()), sum(last.values()))


def _ends(setting: Setting) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The terms of the first and of the last stage."""
    first = np.zeros(len(setting.layouts))
    last = np.asarray(setting.layouts.pp - 1.0, dtype=np.float64)
    return stage_terms(setting, first), stage_terms(setting, last)
