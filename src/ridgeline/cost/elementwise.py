"""Traffic of norms, residuals, activations, rotary embeddings and dropout: bytes over bandwidth.

Elements read and written per token of one layer, each kernel reading its inputs and writing its
outputs once, as fused chains do; `eager_traffic` says how much more separate kernels move.

    norms        2 x (read, write)         backward 2 x (read input and gradient, write)
    residuals    2 x (read 2, write 1)     backward 2 x (read 2, write 1)
    rotary       read, write q and k       the same
    activation   gated read 2f write f, else read f write f;   backward reads one f more each
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.layouts import Floats
from ridgeline.cost.setting import Setting


def forward_elements(setting: Setting) -> tuple[Floats, Floats]:
    """Elements moved per token: (of hidden width, whole without sequence parallelism; split)."""
    dims, layouts = setting.dims, setting.layouts
    drop = np.where(setting.software.dropout, 2.0, 0.0)
    hidden = dims.hidden * (4.0 + 6.0 + drop)
    rotary = 2.0 * (dims.query_width + dims.key_width)
    dense = (dims.layers - dims.moe_layers) / dims.layers
    width = dense * dims.ffn / layouts.tp
    moe = dims.moe_layers / dims.layers
    unfused = np.where(dims.expert_bias > 0, setting.rates.eager_traffic, 1.0)
    routed = dims.top_k * dims.expert_ffn * unfused
    width = width + moe * (dims.shared_ffn + routed) / layouts.tp
    split = rotary / layouts.tp + (dims.gates + 1.0) * width
    return hidden, split


def layer_seconds(setting: Setting) -> tuple[Floats, Floats]:
    """Forward and backward time of one mean layer's element-wise work on one micro-batch."""
    layouts, dims, rates = setting.layouts, setting.dims, setting.rates
    hidden, split = forward_elements(setting)
    shared = np.where(layouts.sp, hidden / layouts.tp, hidden)
    eager = np.where(
        layouts.compiled | setting.software.fused_elementwise, 1.0, rates.eager_traffic
    )
    byte_seconds = 2.0 * eager / (setting.site.memory_bytes_per_second * rates.memory)
    routed = (
        dims.moe_layers
        / dims.layers
        * rates.routing
        * dims.top_k
        * dims.hidden
        * layouts.etp
        / layouts.tp
        / setting.software.expert_rate
    )
    forward = setting.tokens * (shared + split + routed) * byte_seconds
    backward = setting.tokens * (1.3 * shared + 1.6 * split + routed) * byte_seconds
    return forward, backward
