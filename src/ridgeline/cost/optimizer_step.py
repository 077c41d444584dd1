"""The optimizer: every local parameter's state read and written once, at memory bandwidth.

Adam in mixed precision reads gradient, master weight and two moments and writes all but the
gradient, with the 16-bit weight: about 30 bytes per parameter, and the norm for clipping reads
the gradients once more (Kingma and Ba, arXiv 1412.6980, algorithm 1; state sizes as in
Rajbhandari et al., arXiv 1910.02054, section 3.1).
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.layouts import Floats
from ridgeline.cost.parameters import expert_copies, held_parameters
from ridgeline.cost.setting import Setting

HOST_MEMORY_BYTES_PER_SECOND = 25e9
"""One device's share of its host's memory bandwidth, for an optimizer on the CPU."""


def local_parameters(setting: Setting) -> Floats:
    """Parameters whose optimizer state one device holds."""
    held, layouts = held_parameters(setting), setting.layouts
    sharded = layouts.zero >= 1
    dense = (held.dense + held.ends) / np.where(sharded, layouts.fsdp, 1)
    experts = held.experts / np.where(sharded, expert_copies(setting), 1.0)
    return np.where(setting.software.frozen_weights, 0.0, dense + experts)


def optimizer_seconds(setting: Setting) -> Floats:
    """Of one update."""
    software, site = setting.software, setting.site
    state = software.master_bytes + software.optimizer_bytes
    moved = 2.0 * state + 2.0 * software.gradient_bytes + software.weight_bytes
    count = local_parameters(setting)
    on_device = count * moved / (site.memory_bytes_per_second * setting.rates.memory)
    crossing = count * (software.gradient_bytes + software.weight_bytes)
    on_host = crossing / site.host_bytes_per_second + count * moved / HOST_MEMORY_BYTES_PER_SECOND
    return np.where(setting.layouts.offload > 0, on_host, on_device)
