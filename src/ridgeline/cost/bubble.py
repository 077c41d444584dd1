"""Time that a pipeline adds to the mean stage's work: bubble and imbalance.

A 1F1B or GPipe pipeline takes (m - 1) x slowest stage + one pass through all stages, whence the
bubble (pp - 1) of a balanced one; v chunks per rank divide it by v (Narayanan et al., arXiv
2104.04473, sections 2.2.1 and 2.2.2). Zero-bubble schedules fill two thirds of it with weight
gradients (Qi et al., arXiv 2401.10241, section 2, ZB-H1).
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.layouts import SCHEDULES, Floats, Layouts

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
