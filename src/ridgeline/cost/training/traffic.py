"""The bytes that one device sends in a step, by what they are for; hidden or not.

The messages are those of `communication.py`, the shares those of `collective_volume.py`: a ring
sends (n − 1)/n of the whole for a gather or a scatter, twice that for an all-reduce. Hybrid
sharding (`fsdp` below all data ranks) reduces what is left of each shard across its replicas.
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.collectives import Numbers
from ridgeline.cost.training.communication import ACTIVATION_BYTES
from ridgeline.cost.training.setting import Setting
from ridgeline.cost.training.sharding import (
    expert_copies,
    gathered_weight_bytes,
    held_parameters,
    trained_parameters,
)


def sent_bytes(setting: Setting) -> dict[str, Floats]:
    """Bytes by term of `Estimate.breakdown`; a device of the middle of the pipeline."""
    layouts, dims = setting.layouts, setting.dims
    micro = layouts.num_microbatches * 1.0
    layers = dims.layers / layouts.pp
    passes = 2.0 + setting.repeated_share
    stream = setting.tokens * dims.hidden * ACTIVATION_BYTES
    tensor = micro * layers * passes * 2.0 * dims.parts * _gathered(stream, layouts.tp)
    keys = setting.tokens * (dims.key_width + dims.value_width) / layouts.tp * ACTIVATION_BYTES
    attends = dims.attention_layers / layouts.pp
    context = micro * attends * (passes + 1.0) * (layouts.cp - 1.0) * keys
    routed = setting.routed_tokens * dims.hidden * ACTIVATION_BYTES * dims.top_k
    moe = np.where(dims.experts > 0, dims.moe_layers / layouts.pp, 0.0)
    expert = micro * moe * passes * 2.0 * _gathered(routed, layouts.ep)
    split = np.where(layouts.sp, layouts.tp, 1.0)
    pipeline = np.where(layouts.pp > 1, 2.0 * micro * layouts.vpp * stream / split, 0.0)
    shards, data = _of_weights(setting)
    return {
        "tensor": tensor,
        "context": context,
        "expert": expert,
        "pipeline": pipeline,
        "shards": shards,
        "data": data,
    }


def _gathered(whole: Numbers, num_ranks: Numbers) -> Floats:
    """What a rank sends in a ring that gathers or scatters the whole."""
    return np.asarray((num_ranks - 1.0) / num_ranks * whole, dtype=np.float64)


def _of_weights(setting: Setting) -> tuple[Floats, Floats]:
    """(gathered and scattered in each micro-batch by ZeRO-3, once a step)."""
    layouts, software = setting.layouts, setting.software
    held, trained = held_parameters(setting), trained_parameters(setting)
    copies = expert_copies(setting)
    ranks = layouts.dp * layouts.cp * 1.0
    replicas = ranks / layouts.fsdp
    weights = _gathered(held.dense + held.ends, layouts.fsdp) + _gathered(held.experts, copies)
    dense, experts = trained.dense + trained.ends, trained.experts
    gradients = _gathered(dense, layouts.fsdp) + _gathered(experts, copies)
    reduced = software.reduce_bytes
    each = 2.0 * weights * gathered_weight_bytes(setting) + gradients * reduced
    shards = np.where(layouts.zero == 3, layouts.num_microbatches * each, 0.0)
    across = 2.0 * _gathered(dense / layouts.fsdp, replicas) * reduced
    whole = 2.0 * (_gathered(dense, ranks) + _gathered(experts, copies)) * reduced
    split = gradients * (reduced + software.weight_bytes) + across
    return shards, np.where(layouts.zero == 0, whole, np.where(layouts.zero == 3, across, split))
