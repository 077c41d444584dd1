"""Where one training step's time goes, term by term, and the FLOPs that it does.

micro-batch  = products + attention + element-wise + recomputation + exposed waits, or the
launches where those take longer: in each pass by itself where experts are routed
pipeline     = micro-batches x slowest stage + (pp - 1)/vpp x mean stage
step         = pipeline + exposed gradient traffic + optimizer + work beside the model
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost import attention_kernel
from ridgeline.cost.bubble import bubble_seconds
from ridgeline.cost.host import launch_seconds, update_seconds
from ridgeline.cost.layer_pass import in_sixteen_bits, layer_pass, layer_products, total
from ridgeline.cost.layouts import Bools, Floats
from ridgeline.cost.logits import head_product, head_seconds
from ridgeline.cost.memory import FULL, SELECTIVE
from ridgeline.cost.optimizer_step import optimizer_seconds
from ridgeline.cost.overlap import exposed_data_seconds, exposed_waits
from ridgeline.cost.setting import Setting


def step_terms(setting: Setting) -> dict[str, Floats]:
    """Exposed seconds of a step by term; they add up to the step."""
    layouts, rates, dims = setting.layouts, setting.rates, setting.dims
    layer = layer_pass(setting)
    layers = dims.layers / layouts.pp
    full = layouts.recompute == FULL
    work = {name: layers * (layer.forward[name] + layer.backward[name]) for name in layer.forward}
    again = np.where(full, setting.software.recompute_share * total(layer.forward), 0.0)
    core = layouts.recompute == SELECTIVE
    work["recompute"] = layers * np.where(core, layer.forward["attention"], again)
    waits = exposed_waits(setting, layer, layers, full)
    work |= waits
    busy = total(work)
    passes = 2.0 + np.where(full, setting.software.recompute_share, 0.0)
    forward = layers * total(layer.forward) + total(waits) / passes
    stalled = stalled_seconds(setting, layers, (forward, busy - forward), full)
    stage = busy + stalled
    head = total(head_seconds(setting, in_sixteen_bits(setting)))
    micro = layouts.num_microbatches
    terms = {name: micro * value for name, value in work.items()}
    terms["host"] = micro * stalled + update_seconds(setting) + rates.step_overhead
    terms["logits"] = micro * head / layouts.pp
    terms["bubble"] = bubble_seconds(layouts, dims.layers, stage, head)
    terms["data"] = exposed_data_seconds(setting, stage, full)
    terms["optimizer"] = optimizer_seconds(setting)
    terms["straggle"] = _straggling(setting) * total(terms)
    return terms


def stalled_seconds(
    setting: Setting, layers: Floats, busy: tuple[Floats, Floats], full: Bools
) -> Floats:
    """How long the device of a mean stage waits for its host during one micro-batch.

    Launches are queued a thousand kernels ahead, about a pass: what a forward pass is late, the
    backward pass makes up, whose kernels take longer. Not so where experts are routed: in each such
    layer the host waits for the counts of tokens, so that its queue is empty again.
    """
    forward, backward = launch_seconds(setting, layers, full)
    whole = np.maximum(forward + backward - busy[0] - busy[1], 0.0)
    apart = np.maximum(forward - busy[0], 0.0) + np.maximum(backward - busy[1], 0.0)
    return np.where(setting.dims.moe_layers > 0, apart, whole)


def _straggling(setting: Setting) -> Floats:
    """Share of a step lost to the slowest device: it grows with every doubling of the domains."""
    domains = setting.num_devices / setting.site.domain_size
    return setting.rates.straggle * np.log2(np.maximum(domains, 1.0))


def step_flops(setting: Setting) -> tuple[Floats, Floats]:
    """(model, executed) FLOPs of one step over all devices; causal attention counted as half."""
    layouts, dims = setting.layouts, setting.dims
    devices = setting.num_devices
    per_layer: Floats = np.zeros(1)
    for product, share in layer_products(setting):
        per_layer = per_layer + share * product.flops
    pairs = attention_kernel.forward_flops(setting)
    layers = dims.layers / layouts.pp
    micro = layouts.num_microbatches
    forward = layers * (per_layer + pairs)
    head = head_product(setting).flops / layouts.pp
    model = devices * micro * 3.0 * (forward + head)
    again = np.where(layouts.recompute == FULL, setting.software.recompute_share * forward, 0.0)
    again = np.where(layouts.recompute == SELECTIVE, layers * pairs, again)
    return model, model + devices * micro * again
