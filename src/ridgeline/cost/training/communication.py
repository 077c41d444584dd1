"""Communication of one training step, and how much of it the computation leaves exposed.

tensor    2 all-reduces (or reduce-scatter and all-gather) of tokens x hidden per layer and
          pass (Shoeybi et al., arXiv 1909.08053, section 3; Korthikanti et al., arXiv
          2205.05198, section 4.2.2: sequence parallelism moves the same bytes)
context   keys and values travel the ring once forward, with their gradients back (Liu et
          al., "Ring attention", arXiv 2310.01889), beside the attention of each block
expert    2 all-to-alls of tokens x top_k x hidden per layer and pass (Lepikhin et al.,
          arXiv 2006.16668, section 3)
shards    ZeRO-3 gathers each layer's weights in both passes and scatters its gradients, in
          every micro-batch (Rajbhandari et al., arXiv 1910.02054, section 7.2.2)
data      gradients reduced, and with ZeRO-1 and 2 weights gathered, once per step

Tensor-parallel traffic stands between two matmuls: only a share of it can hide. A ring of context
parallelism hides behind the attention of the block at hand, fully sharded weights behind the layer
before, gradients behind the backward pass that is still under way. Whatever hides takes compute
units and memory bandwidth from what hides it (`contention`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.collectives import (
    all_reduce_seconds,
    dispatch_seconds,
    gather_seconds,
    group_of,
    send_seconds,
)
from ridgeline.cost.training.layer import LayerPass, total
from ridgeline.cost.training.layouts import Layouts
from ridgeline.cost.training.matmuls import busiest_rank
from ridgeline.cost.training.setting import Setting
from ridgeline.cost.training.sharding import (
    data_group,
    expert_group,
    gathered_weight_bytes,
    held_parameters,
    replica_group,
    shard_group,
    trained_parameters,
)

ACTIVATION_BYTES = 2.0


def tensor_seconds(setting: Setting) -> Floats:
    """Communication of one layer and pass over one micro-batch, none of it hidden."""
    layouts = setting.layouts
    group = group_of(setting, layouts.tp, np.ones(1))
    message = setting.tokens * setting.dims.hidden * ACTIVATION_BYTES
    reduced = all_reduce_seconds(setting, message, group, serial=True)
    scattered = 2.0 * gather_seconds(setting, message, group, serial=True)
    return setting.dims.parts * np.where(layouts.sp, scattered, reduced)


def context_seconds(setting: Setting) -> Floats:
    """Communication of one layer's forward pass: cp - 1 sends of a block of keys and values."""
    layouts, dims = setting.layouts, setting.dims
    width = (dims.key_width + dims.value_width) / layouts.tp * dims.attention_layers / dims.layers
    message = setting.tokens * width * ACTIVATION_BYTES
    crosses = np.where(layouts.cp * layouts.tp > setting.site.domain_size, 1.0, 0.0)
    return (layouts.cp - 1.0) * send_seconds(setting, message, crosses)


def expert_seconds(setting: Setting) -> Floats:
    """Communication of one mixture-of-experts layer and pass: dispatch and combine."""
    layouts, dims = setting.layouts, setting.dims
    group = group_of(setting, layouts.ep, np.ones(1))
    message = setting.routed_tokens * dims.hidden * ACTIVATION_BYTES
    moved = 2.0 * dispatch_seconds(setting, message, dims.top_k, group) * busiest_rank(setting)
    return np.where(dims.experts > 0, moved, 0.0)


def pipeline_seconds(setting: Setting) -> Floats:
    """Communication of one micro-batch through a stage: activations forward, gradients back."""
    layouts = setting.layouts
    split = np.where(layouts.sp, layouts.tp, 1.0)
    message = setting.tokens * setting.dims.hidden * ACTIVATION_BYTES / split
    ranks = layouts.tp * layouts.cp * layouts.dp
    crosses = np.where(ranks >= setting.site.domain_size, 1.0, 0.0)
    sent = 2.0 * layouts.vpp * send_seconds(setting, message, crosses)
    return np.where(layouts.pp > 1, sent, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """ZeRO-3 traffic of one micro-batch over all layers of a stage."""

    forward: Floats
    backward: Floats
    first_layer: Floats
    """The gather that nothing can hide."""
    parameters: Floats
    """Gathered in one pass."""


def gathering(setting: Setting) -> Gathering:
    """Weights gathered in both passes, gradients scattered."""
    held, group = held_parameters(setting), shard_group(setting)
    layers = setting.dims.layers / setting.layouts.pp
    software = setting.software
    routed = expert_group(setting)
    on = np.where(setting.layouts.zero == 3, 1.0, 0.0)
    dense = held.dense + held.embedding
    each = gathered_weight_bytes(setting)
    weights = gather_seconds(setting, dense * each, group, layers)
    weights = weights + gather_seconds(setting, held.experts * each, routed, layers)
    trained = trained_parameters(setting)
    bytes_ = (trained.dense + trained.embedding) * software.reduce_bytes
    grads = gather_seconds(setting, bytes_, group, layers)
    grads = grads + gather_seconds(setting, trained.experts * software.reduce_bytes, routed, layers)
    return Gathering(
        forward=on * weights,
        backward=on * (weights + grads),
        first_layer=on * weights / layers,
        parameters=dense + held.experts,
    )


BUCKET_PARAMETERS = 40e6
BUCKET_PARAMETERS_PER_RANK = 1e6
"""Least parameters of a growing bucket, so that no ring of many ranks waits for latency alone
(Megatron-core, `DistributedDataParallelConfig.bucket_size`: max(40e6, 1e6 x ranks))."""


def num_buckets(setting: Setting, parameters: Floats, ranks: Floats) -> Floats:
    """Messages in which so many parameters travel once a step."""
    layers = setting.dims.layers / setting.layouts.pp
    most = np.maximum(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * ranks)
    buckets = np.maximum(parameters / most, 1.0)
    return np.where(setting.software.growing_buckets, buckets, layers)


def step_reduction(setting: Setting) -> tuple[Floats, Floats]:
    """(gradients reduced, weights gathered) once per step, none of it hidden."""
    layouts, software = setting.layouts, setting.software
    trained = trained_parameters(setting)
    dense = trained.dense + trained.ends
    gradients = dense * software.reduce_bytes
    group, shards, copies = data_group(setting), shard_group(setting), replica_group(setting)
    routed = expert_group(setting)
    messages = num_buckets(setting, dense, group.size)
    expert_messages = num_buckets(setting, trained.experts, routed.size)
    expert_bytes = trained.experts * software.reduce_bytes
    whole = all_reduce_seconds(setting, gradients, group, messages)
    split = gather_seconds(setting, gradients, shards, messages) + all_reduce_seconds(
        setting, gradients / layouts.fsdp, copies, messages
    )
    across = all_reduce_seconds(setting, gradients / layouts.fsdp, copies, messages)
    experts = all_reduce_seconds(setting, expert_bytes, routed, expert_messages)
    scattered = gather_seconds(setting, expert_bytes, routed, expert_messages)
    zero = layouts.zero
    reduced = np.where(zero == 0, whole + experts, np.where(zero == 3, across, split + scattered))
    weights = gather_seconds(setting, dense * software.weight_bytes, shards, messages)
    weights = weights + gather_seconds(
        setting, trained.experts * software.weight_bytes, routed, expert_messages
    )
    return reduced, np.where((zero == 1) | (zero == 2), weights, 0.0)


LEAST_RING = 0.1
"""The share of a context ring's forward traffic that is never hidden: the first block."""
LEAST_BUCKET = 0.05
"""The share of a step's gradient traffic that is never hidden: the last bucket."""


def exposed_waits(setting: Setting, layer: LayerPass, layers: Floats) -> dict[str, Floats]:
    """Exposed communication of one micro-batch on a mean stage."""
    rates, software, dims = setting.rates, setting.software, setting.dims
    passes = 2.0 + setting.repeated_share
    hidden = np.where(software.overlap_tensor, rates.tensor_overlap, 0.0)
    tensor = layers * passes * tensor_seconds(setting) * (1.0 - hidden)
    ring = context_seconds(setting)
    forward_ring = np.maximum(ring - layer.forward["attention"], LEAST_RING * ring)
    backward_ring = np.maximum(2.0 * ring - layer.backward["attention"], 2.0 * LEAST_RING * ring)
    context = layers * (backward_ring + forward_ring * (passes - 1.0))
    moe = dims.moe_layers / dims.layers
    beside = layers * (total(layer.forward) * (passes - 1.0) + total(layer.backward))
    redone = np.where(setting.selects_core & software.repeats_experts, 1.0, 0.0)
    expert = layers * moe * (passes + redone) * expert_seconds(setting)
    exposed_shards = _shard_waits(setting, layer, layers)
    pipeline = pipeline_seconds(setting)
    return {
        "tensor": tensor,
        "context": context,
        "expert": _dispatch_waits(setting, expert, beside),
        "shards": exposed_shards,
        "pipeline": pipeline,
    }


def _dispatch_waits(setting: Setting, dispatch: Floats, beside: Floats) -> Floats:
    """All-to-alls of experts that another micro-batch's computation does not hide."""
    layouts, software = setting.layouts, setting.software
    spans = (layouts.ep > setting.site.domain_size) & (layouts.vpp > 1)
    overlaps = software.overlap_experts | (software.interleave_experts & spans)
    late = np.maximum(dispatch - beside, LEAST_RING * dispatch)
    slowed = setting.rates.contention * np.minimum(dispatch, beside)
    return np.where(overlaps, late + slowed, dispatch)


def _shard_waits(setting: Setting, layer: LayerPass, layers: Floats) -> Floats:
    """ZeRO-3 traffic that the passes do not hide, and how much it slows them."""
    traffic = gathering(setting)
    rates = setting.rates
    hides = np.where(setting.software.overlap_data, 1.0, 0.0)
    forward = layers * total(layer.forward)
    backward = layers * total(layer.backward)
    backward = backward + setting.repeated_share * forward
    exposed = np.maximum(traffic.forward - hides * forward, 0.0)
    exposed = exposed + np.maximum(traffic.backward - hides * backward, 0.0)
    both = np.minimum(traffic.forward, forward) + np.minimum(traffic.backward, backward)
    bandwidth = setting.site.memory_bytes_per_second * rates.memory
    copies = np.where(setting.layouts.zero == 3, traffic.parameters, 0.0)
    copied = copies * rates.shard_copies / bandwidth
    slowed = hides * rates.contention * both
    return np.asarray(exposed + traffic.first_layer + slowed + copied)


def passes_beside(layouts: Layouts) -> Floats:
    """Micro-batches in whose passes a step's gradients and weights travel.

    Of one chunk a rank, all gradients are there in the last micro-batch's backward pass. Chunks of
    an interleaved pipeline take turns, each with `pp` micro-batches: the gradients of the first are
    there when the others have all of theirs before them (Narayanan et al., arXiv 2104.04473,
    section 2.2.2).
    """
    turns = np.minimum(layouts.num_microbatches, layouts.pp)
    others = (layouts.vpp - 1.0) / layouts.vpp
    return np.where(layouts.vpp > 1, np.maximum(turns * others, 1.0), 1.0)


def exposed_data_seconds(setting: Setting, stage: Floats) -> Floats:
    """Gradient and weight traffic of a step that one stage's micro-batch (`stage`) cannot hide."""
    reduced, gathered = step_reduction(setting)
    share = setting.rates.data_overlap * np.where(setting.software.overlap_data, 1.0, 0.0)
    window = passes_beside(setting.layouts)
    forward = window * stage / (3.0 + setting.repeated_share)
    backward = window * stage - forward
    exposed = np.maximum(reduced - share * backward, LEAST_BUCKET * reduced)
    return exposed + np.maximum(gathered - share * forward, LEAST_BUCKET * gathered)
