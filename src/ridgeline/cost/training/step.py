"""Where one training step's time goes, term by term, and the FLOPs that it does.

micro-batch  = matmuls + attention + element-wise + recomputation + exposed waits, or the
launches where those take longer: in each pass by itself where experts are routed
pipeline     = micro-batches x slowest stage + (pp - 1)/vpp x mean stage
step         = pipeline + exposed gradient traffic + optimizer + work beside the model

A 1F1B or GPipe pipeline takes (m - 1) x slowest stage + one pass through all stages, whence the
bubble (pp - 1) of a balanced one; v chunks per rank divide it by v (Narayanan et al., arXiv
2104.04473, sections 2.2.1 and 2.2.2). Zero-bubble schedules fill two thirds of it with weight
gradients (Qi et al., arXiv 2401.10241, section 2, ZB-H1).

The optimizer reads and writes every local parameter's state once, at memory bandwidth. Adam in
mixed precision reads gradient, master weight and two moments and writes all but the gradient, with
the 16-bit weight: about 30 bytes per parameter, and the norm for clipping reads the gradients once
more (Kingma and Ba, arXiv 1412.6980, algorithm 1; state sizes as in Rajbhandari et al., arXiv
1910.02054, section 3.1).
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.disk_state import disk_state_seconds
from ridgeline.cost.training.adapters import adapter_flops
from ridgeline.cost.training.attention import attention_flops
from ridgeline.cost.training.communication import exposed_data_seconds, exposed_waits
from ridgeline.cost.training.everything_on_disk import exposed_disk_seconds, update_disk_seconds
from ridgeline.cost.training.head import head_matmul, head_seconds
from ridgeline.cost.training.host import launch_seconds, update_seconds
from ridgeline.cost.training.layer import (
    in_sixteen_bits,
    layer_matmuls,
    layer_pass,
    repeated_seconds,
    total,
)
from ridgeline.cost.training.layouts import ALL_ON_DISK, ON_DISK, SCHEDULES, Layouts
from ridgeline.cost.training.setting import Setting
from ridgeline.cost.training.sharding import expert_copies, trained_parameters


def step_terms(setting: Setting) -> dict[str, Floats]:
    """Exposed seconds of a step by term; they add up to the step."""
    layouts, rates, dims = setting.layouts, setting.rates, setting.dims
    layer = layer_pass(setting)
    layers = dims.layers / layouts.pp
    work = {name: layers * (layer.forward[name] + layer.backward[name]) for name in layer.forward}
    again = setting.repeated_share * total(layer.forward)
    by_module = repeated_seconds(setting, layer.forward)
    work["recompute"] = layers * np.where(setting.selects_core, by_module, again)
    waits = exposed_waits(setting, layer, layers)
    work |= waits
    busy = total(work)
    passes = 2.0 + setting.repeated_share
    forward = layers * total(layer.forward) + total(waits) / passes
    stalled = stalled_seconds(setting, layers, (forward, busy - forward))
    stage = busy + stalled
    head = total(head_seconds(setting, in_sixteen_bits(setting)))
    micro = layouts.num_microbatches
    terms = {name: micro * value for name, value in work.items()}
    terms["host"] = micro * stalled + update_seconds(setting) + rates.step_overhead
    terms["logits"] = micro * head / layouts.pp
    terms["bubble"] = bubble_seconds(layouts, dims.layers, stage, head)
    terms["data"] = exposed_data_seconds(setting, stage)
    terms["disk"] = _waits_for_disk(setting, stage + head / layouts.pp)
    terms["optimizer"] = optimizer_seconds(setting)
    terms["straggle"] = _straggling(setting) * total(terms)
    return {name: rates.pace * value for name, value in terms.items()}


def stalled_seconds(setting: Setting, layers: Floats, busy: tuple[Floats, Floats]) -> Floats:
    """How long the device of a mean stage waits for its host during one micro-batch.

    Launches are queued a thousand kernels ahead, about a pass: what a forward pass is late, the
    backward pass makes up, whose kernels take longer. Not so where experts are routed: in each such
    layer the host waits for the counts of tokens, so that its queue is empty again.
    """
    forward, backward = launch_seconds(setting, layers)
    whole = np.maximum(forward + backward - busy[0] - busy[1], 0.0)
    apart = np.maximum(forward - busy[0], 0.0) + np.maximum(backward - busy[1], 0.0)
    return np.where(setting.dims.moe_layers > 0, apart, whole)


def _waits_for_disk(setting: Setting, busy: Floats) -> Floats:
    """Waits for parameters and gradients that lie on disk, beside micro-batches that long."""
    everything = setting.layouts.offload == ALL_ON_DISK
    return np.where(everything, exposed_disk_seconds(setting, local_parameters(setting), busy), 0.0)


def _straggling(setting: Setting) -> Floats:
    """Share of a step lost to the slowest device: it grows with every doubling of the domains."""
    domains = setting.num_devices / setting.site.domain_size
    return setting.rates.straggle * np.log2(np.maximum(domains, 1.0))


def step_flops(setting: Setting) -> tuple[Floats, Floats]:
    """(model, executed) FLOPs of one step over all devices; causal attention counted as half.

    A frozen weight has no gradient: its matmul runs twice, those of its adapter three times.
    """
    layouts, dims = setting.layouts, setting.dims
    devices = setting.num_devices
    per_layer: Floats = np.zeros(1)
    for matmul, share in layer_matmuls(setting):
        per_layer = per_layer + share * matmul.flops
    pairs = attention_flops(setting)
    layers = dims.layers / layouts.pp
    micro = layouts.num_microbatches
    adapted = adapter_flops(setting)
    forward = layers * (per_layer + pairs + adapted)
    head = head_matmul(setting).flops / layouts.pp
    frozen = np.where(setting.frozen_weights, layers * per_layer + head, 0.0)
    model = devices * micro * (3.0 * (forward + head) - frozen)
    core = np.where(setting.software.repeats_core, layers * pairs, 0.0)
    again = np.where(setting.selects_core, core, setting.repeated_share * forward)
    return model, model + devices * micro * again


ZERO_BUBBLE = SCHEDULES.index("zero-bubble")


def bubble_seconds(
    layouts: Layouts, num_layers: Floats, mean_stage: Floats, head: Floats
) -> Floats:
    """Seconds of a step beyond micro-batches x (mean stage with its share of the head).

    `mean_stage` has num_layers / pp layers; the last stage also has the `head`.
    """
    pp, chunks = layouts.pp, layouts.vpp
    layer = mean_stage * pp / num_layers
    most = np.ceil(num_layers / pp)
    rest = np.maximum(num_layers - (pp - 1.0) * most, 0.0)
    slowest = np.maximum(most * layer, rest * layer + head)
    mean = mean_stage + head / pp
    fill = (pp - 1.0) / chunks * mean_stage
    fill = np.where(layouts.schedule == ZERO_BUBBLE, fill / 3.0, fill)
    waiting = layouts.num_microbatches * (slowest - mean) + fill
    return np.where(pp > 1, waiting, 0.0)


HOST_MEMORY_BYTES_PER_SECOND = 25e9
"""One device's share of its host's memory bandwidth, for an optimizer on the CPU."""


def local_parameters(setting: Setting) -> Floats:
    """Parameters whose optimizer state one device holds."""
    trained, layouts = trained_parameters(setting), setting.layouts
    sharded = layouts.zero >= 1
    dense = (trained.dense + trained.ends) / np.where(sharded, layouts.fsdp, 1)
    return dense + trained.experts / np.where(sharded, expert_copies(setting), 1.0)


def optimizer_seconds(setting: Setting) -> Floats:
    """Time of one update of the weights."""
    software, site = setting.software, setting.site
    state = software.master_bytes + software.optimizer_bytes
    moved = 2.0 * state + 2.0 * software.gradient_bytes + software.weight_bytes
    count = local_parameters(setting)
    on_device = count * moved / (site.memory_bytes_per_second * setting.rates.memory)
    crossing = count * (software.gradient_bytes + software.weight_bytes)
    by_host = count * moved / HOST_MEMORY_BYTES_PER_SECOND
    on_host = crossing / site.host_bytes_per_second + by_host
    moments = count * software.optimizer_bytes
    from_disk = disk_state_seconds(
        moments, site.disk_read_bytes_per_second, site.disk_write_bytes_per_second
    )
    # One portion is updated while others are read and written.
    beside_disk = np.maximum(from_disk, 2.0 * moments / site.host_bytes_per_second + on_device)
    offload = setting.layouts.offload
    away = np.where(offload == ON_DISK, beside_disk, on_host)
    everything = np.maximum(update_disk_seconds(setting, count), by_host)
    away = np.where(offload == ALL_ON_DISK, everything, away)
    return np.where(offload > 0, away, on_device)
