"""Where one training step's time goes, term by term, and the FLOPs that it does.

micro-batch  = products + attention + element-wise + recomputation + exposed waits, or the
launches where those take longer
pipeline     = micro-batches x slowest stage + (pp - 1)/vpp x mean stage
step         = pipeline + exposed gradient traffic + optimizer + work beside the model
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost import attention_kernel
from ridgeline.cost.bubble import bubble_seconds
from ridgeline.cost.host import launch_seconds
from ridgeline.cost.layer_pass import in_sixteen_bits, layer_pass, layer_products, total
from ridgeline.cost.layouts import Floats
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
    work |= exposed_waits(setting, layer, layers, full)
    busy = total(work)
    stalled = np.maximum(launch_seconds(setting, layers, full) - busy, 0.0)
    stage = busy + stalled
    head = total(head_seconds(setting, in_sixteen_bits(setting)))
    micro = layouts.num_microbatches
    terms = {name: micro * value for name, value in work.items()}
    terms["host"] = micro * stalled + rates.step_overhead
    terms["logits"] = micro * head / layouts.pp
    terms["bubble"] = bubble_seconds(layouts, dims.layers, stage, head)
    terms["data"] = exposed_data_seconds(setting, stage, full)
    terms["optimizer"] = optimizer_seconds(setting)
    terms["straggle"] = _straggling(setting) * total(terms)
    return terms


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
