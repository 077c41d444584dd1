"""The training cost model bound to one model, cluster and workload: what a search asks.

Peak memory alone is several times cheaper than the whole estimate and rules most layouts out, so
it is asked for separately; a test holds it equal to what `estimate_training` says.
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.coefficients import Coefficients
from ridgeline.cost.layouts import Floats, Layouts
from ridgeline.cost.memory import overhead_bytes, stage_terms
from ridgeline.cost.setting import Setting, setting_of
from ridgeline.cost.training import TIGHT, estimate_training
from ridgeline.cost.workload import Workload
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.search import Judge


def judge_of(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    coefficients: Coefficients,
    *,
    tight: bool = False,
) -> Judge:
    """A judge of layouts; `tight` also admits those that only fit without fragmentation."""
    capacity = float(cluster.device.memory.usable_bytes)

    def peak_bytes(layouts: Layouts) -> Floats:
        return peak_of(setting_of(model, cluster, workload, layouts, coefficients))

    def step_seconds(layouts: Layouts) -> Floats:
        found = estimate_training(model, cluster, workload, layouts, coefficients)
        return np.asarray(found.step_seconds)

    return Judge(
        peak_bytes=peak_bytes,
        step_seconds=step_seconds,
        limit_bytes=capacity if tight else TIGHT * capacity,
    )


def peak_of(setting: Setting) -> Floats:
    """Bytes on the fuller of the first and the last pipeline stage."""
    first = _stage_bytes(setting, np.zeros(len(setting.layouts)))
    last = _stage_bytes(setting, np.asarray(setting.layouts.pp - 1, dtype=np.float64))
    return np.maximum(first, last)


def _stage_bytes(setting: Setting, stage: Floats) -> Floats:
    terms = stage_terms(setting, stage)
    terms |= overhead_bytes(setting, terms)
    total: Floats = np.zeros(len(setting.layouts))
    for value in terms.values():
        total = total + value
    return total
