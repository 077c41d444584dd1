"""What of a step passes a disk where parameters, gradients and optimizer state lie on it.

ZeRO-Infinity (Rajbhandari et al., arXiv 2104.07857, section 4.1) counts, of each device's shard:

    micro-batch   16-bit parameters in for forward and for backward, once more where the
                  forward pass is repeated; gradients out, and in again to be added to
    update        gradients, master weights and moments in; master weights, moments and 16-bit
                  parameters out

What a micro-batch moves is read ahead and written behind its computation, so that a step waits for
what that does not hide (section 6.2); the update computes on the host, one portion beside the
traffic of the next.
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.setting import Setting


def micro_batch_disk_seconds(setting: Setting, local_parameters: Floats) -> Floats:
    """Traffic of one micro-batch of a device that holds so many parameters, hidden or not."""
    software, site, micro = setting.software, setting.site, setting.layouts.num_microbatches
    loads = 2.0 + setting.repeated_share
    added_to = (micro - 1.0) / micro
    read = loads * software.weight_bytes + added_to * software.gradient_bytes
    return local_parameters * (
        read / site.disk_read_bytes_per_second
        + software.gradient_bytes / site.disk_write_bytes_per_second
    )


def exposed_disk_seconds(setting: Setting, local_parameters: Floats, busy: Floats) -> Floats:
    """What a step waits for beside micro-batches that take `busy` seconds each."""
    traffic = micro_batch_disk_seconds(setting, local_parameters)
    waits: Floats = np.maximum(traffic - busy, 0.0)
    return setting.layouts.num_microbatches * waits


def update_disk_seconds(setting: Setting, local_parameters: Floats) -> Floats:
    """Traffic of the update of the weights."""
    software, site = setting.software, setting.site
    state = software.master_bytes + software.optimizer_bytes
    return local_parameters * (
        (software.gradient_bytes + state) / site.disk_read_bytes_per_second
        + (state + software.weight_bytes) / site.disk_write_bytes_per_second
    )
