"""Communication that computation leaves exposed, and what it costs the computation beside it.

Tensor-parallel traffic stands between two products: only a share of it can hide. A ring of context
parallelism hides behind the attention of the block at hand, fully sharded weights behind the layer
before, gradients behind the backward pass that is still under way. Whatever hides takes compute
units and memory bandwidth from what hides it (`contention`).
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost import communication
from ridgeline.cost.layer_pass import LayerPass, total
from ridgeline.cost.layouts import Bools, Floats
from ridgeline.cost.setting import Setting

LEAST_RING = 0.1
"""Of a context ring's forward traffic: the first block cannot hide."""
LEAST_BUCKET = 0.05
"""Of a step's gradient traffic: the last bucket cannot hide."""


def exposed_waits(
    setting: Setting, layer: LayerPass, layers: Floats, full: Bools
) -> dict[str, Floats]:
    """Exposed communication of one micro-batch on a mean stage."""
    rates, software, dims = setting.rates, setting.software, setting.dims
    passes = np.where(full, 2.0 + software.recompute_share, 2.0)
    hidden = np.where(software.overlap_tensor, rates.tensor_overlap, 0.0)
    tensor = layers * passes * communication.tensor_seconds(setting) * (1.0 - hidden)
    ring = communication.context_seconds(setting)
    forward_ring = np.maximum(ring - layer.forward["attention"], LEAST_RING * ring)
    backward_ring = np.maximum(2.0 * ring - layer.backward["attention"], 2.0 * LEAST_RING * ring)
    context = layers * (backward_ring + forward_ring * (passes - 1.0))
    moe = dims.moe_layers / dims.layers
    beside = layers * (total(layer.forward) * (passes - 1.0) + total(layer.backward))
    expert = layers * moe * passes * communication.expert_seconds(setting)
    exposed_shards = _shard_waits(setting, layer, layers, full)
    pipeline = communication.pipeline_seconds(setting)
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


def _shard_waits(setting: Setting, layer: LayerPass, layers: Floats, full: Bools) -> Floats:
    """ZeRO-3 traffic that the passes do not hide, and how much it slows them."""
    traffic = communication.gathering(setting)
    rates = setting.rates
    hides = np.where(setting.software.overlap_data, 1.0, 0.0)
    forward = layers * total(layer.forward)
    backward = layers * total(layer.backward)
    backward = backward + np.where(full, forward, 0.0)
    exposed = np.maximum(traffic.forward - hides * forward, 0.0)
    exposed = exposed + np.maximum(traffic.backward - hides * backward, 0.0)
    both = np.minimum(traffic.forward, forward) + np.minimum(traffic.backward, backward)
    bandwidth = setting.site.memory_bytes_per_second * rates.memory
    copies = np.where(setting.layouts.zero == 3, traffic.parameters, 0.0)
    copied = copies * rates.shard_copies / bandwidth
    slowed = hides * rates.contention * both
    return np.asarray(exposed + traffic.first_layer + slowed + copied)


def exposed_data_seconds(setting: Setting, stage: Floats, full: Bools) -> Floats:
    """Gradient and weight traffic of a step that one stage's micro-batch (`stage`) cannot hide."""
    reduced, gathered = communication.step_reduction(setting)
    share = setting.rates.data_overlap * np.where(setting.software.overlap_data, 1.0, 0.0)
    forward = stage * np.where(full, 0.25, 1.0 / 3.0)
    backward = stage - forward
    exposed = np.maximum(reduced - share * backward, LEAST_BUCKET * reduced)
    return exposed + np.maximum(gathered - share * forward, LEAST_BUCKET * gathered)
