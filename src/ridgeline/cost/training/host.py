"""The time of the host: launching operators, and what a step does beside the model.

An eager framework launches operators one by one; when a pass's kernels are shorter than their
launches, the host sets the pace. Layers of routed experts also wait for counts that the host must
know before it can launch what follows.

Counts are of operators as PyTorch dispatches them. What latent attention adds is relative to a
dense layer and read off step times of models so small that the host alone decides: the functional
tests of NVIDIA/Megatron-LM (`golden_values_*.json` under tests/functional_tests/test_cases, commit
d98e8a6 of 2026-08-22). With tp 2 and pp 2 on 8 H100, 4 layers of latent attention take 99 ms per
step (144 ms before the test's restart) and 12 ordinary ones 128 ms (191). Over the passes of a
stage, 2 x layers / pp x (micro-batches + pp - 1), and less 15 ms per step, that is 4.2 ms (6.5) and
1.9 ms (2.9): 2.2 times as much. On GB200 it is 2.2, on A100 1.9.
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.adapters import adapter_operators, num_adapters
from ridgeline.cost.training.setting import Setting

OPERATORS_PER_LAYER = 24.0
"""Operators of one pass through a dense layer: norms, projections, rotary embedding, attention,
MLP."""
OPERATORS_OF_TENSOR_PARALLELISM = 4.0
OPERATORS_OF_LATENT_ATTENTION = 1.2 * OPERATORS_PER_LAYER
"""Operators beyond those of ordinary attention: more projections and norms, and rotary embeddings
on slices that are cut, joined and expanded one by one."""
OPERATORS_OF_ATTENTION_CORE = 6.0
"""Operators that selective recomputation launches again: scores, mask, softmax, dropout, values,
and the random states around them."""
OPERATORS_PER_TENSOR = 4.0
"""Operators once per step: gradient added to its buffer, cast to fp32, weight copied back, and the
views of all three (`_copy_model_grads_to_main_grads` and `_copy_main_params_to_model_params` in
megatron/core/optimizer/distrib_optimizer.py)."""
TENSORS_PER_LAYER = 8.0
TENSORS_OF_ROUTING = 3.0
"""The router, and what experts share."""
TENSORS_PER_EXPERT = 2.0


def launch_seconds(setting: Setting, layers: Floats) -> tuple[Floats, Floats]:
    """To launch one micro-batch's forward, and its backward, on one stage."""
    layouts, rates, software, dims = setting.layouts, setting.rates, setting.software, setting.dims
    fused = layouts.compiled | software.fused_elementwise
    modern = np.where(fused, rates.host_compiled, rates.host_eager)
    modern = np.where(software.modules, rates.host_modules, modern)
    each = np.where(software.legacy, rates.host_legacy, modern)
    tensor = np.where(layouts.tp > 1, OPERATORS_OF_TENSOR_PARALLELISM, 0.0)
    latent = np.where(dims.kv_rank > 0, OPERATORS_OF_LATENT_ATTENTION, 0.0)
    routed = dims.moe_layers / dims.layers * rates.host_experts / software.expert_rate
    operators = OPERATORS_PER_LAYER * dims.parts / 2.0 + tensor + latent
    operators = operators + adapter_operators(setting)
    once = layers * (operators * each + routed + software.hook_seconds)
    core = np.where(software.repeats_core, layers * OPERATORS_OF_ATTENTION_CORE * each, 0.0)
    core = core + np.where(software.repeats_experts, layers * routed, 0.0)
    again = np.where(setting.selects_core, core, setting.repeated_share * once)
    launched = np.where(software.captured, 0.0, 1.0)
    return launched * once, launched * (once + again)


def update_seconds(setting: Setting) -> Floats:
    """To hand every parameter of a device to the optimizer, and back, once per step.

    Micro-batches share it: it shows where a step has one or two.
    """
    layouts, dims = setting.layouts, setting.dims
    routed = dims.moe_layers / dims.layers
    local = np.where(dims.experts > 0, dims.experts / layouts.ep, 0.0)
    each = TENSORS_PER_LAYER + routed * (TENSORS_OF_ROUTING + TENSORS_PER_EXPERT * local)
    tensors = dims.layers / layouts.pp * each
    beside = 2.0 * num_adapters(setting) * dims.layers / layouts.pp
    trained = np.where(setting.frozen_weights, beside, tensors)
    return trained * OPERATORS_PER_TENSOR * setting.rates.host_eager
