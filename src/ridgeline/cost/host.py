"""Host time: launching operators, and what a step does beside the model.

An eager framework launches operators one by one; when a micro-batch's kernels are shorter than
their launches, the host sets the pace. Layers of routed experts also wait for counts that the
host must know before it can launch what follows.
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.layouts import Bools, Floats
from ridgeline.cost.setting import Setting

OPERATORS_PER_LAYER = 24.0
"""Of one pass through a dense layer: norms, projections, rotary embedding, attention, MLP."""
OPERATORS_OF_TENSOR_PARALLELISM = 4.0
OPERATORS_OF_LATENT_ATTENTION = 80.0
"""Four more projections, two norms, and rotary embeddings on slices that are cut, joined and
expanded one by one."""


def launch_seconds(setting: Setting, layers: Floats, full: Bools) -> Floats:
    """To launch one micro-batch's forward and backward on one stage."""
    layouts, rates, software, dims = setting.layouts, setting.rates, setting.software, setting.dims
    fused = layouts.compiled | software.fused_elementwise
    modern = np.where(fused, rates.host_compiled, rates.host_eager)
    each = np.where(software.legacy, rates.host_legacy, modern)
    tensor = np.where(layouts.tp > 1, OPERATORS_OF_TENSOR_PARALLELISM, 0.0)
    latent = np.where(dims.kv_rank > 0, OPERATORS_OF_LATENT_ATTENTION, 0.0)
    routed = dims.moe_layers / dims.layers * rates.host_experts / software.expert_rate
    layer = (OPERATORS_PER_LAYER + tensor + latent) * each + routed
    passes = np.where(full, 3.0, 2.0)
    return layers * layer * passes
