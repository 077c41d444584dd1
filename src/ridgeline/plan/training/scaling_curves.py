"""Strong and weak scaling of one layout: the same replica, more or fewer of them.

The whole training model judges every point (`cost/training/estimate.py`), so that sharding,
pipelines and the network count as they do in a plan; `cost/scaling.py` has the textbook's law. A
replica is tp · pp · cp devices. Weak scaling keeps each replica's batch, strong scaling the global
one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ridgeline.cost.scaling import Kind, ScalingCurve, ScalingPoint
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.estimate import Estimates, estimate_training
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.spec import ModelSpec
from ridgeline.records.layout import Layout

MOST_REPLICAS = 1024
EXPOSED = ("data", "shards")
"""Terms of communication between replicas."""


def training_scaling(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layout: Layout,
    coefficients: Coefficients,
) -> list[ScalingCurve]:
    """The weak curve, and the strong one where the global batch can be split further.

    Replicas double from one to eight times those of the layout. Efficiency is tokens per second
    and device over those of a single replica; whether its memory fits is another question.
    """
    curves = []
    kinds: tuple[Kind, ...] = ("weak", "strong")
    for kind in kinds:
        layouts = [_spread(layout, replicas, kind) for replicas in _replicas(layout, kind)]
        if len(layouts) < 2:
            continue
        found = estimate_training(model, cluster, workload, stack_layouts(layouts), coefficients)
        curves.append(_curve(kind, layouts, found))
    return curves


def _replicas(layout: Layout, kind: Kind) -> list[int]:
    """Powers of two; experts need their ranks, and strong scaling whole micro-batches."""
    most = min(8 * layout.dp, MOST_REPLICAS)
    doubled = [2**power for power in range(most.bit_length()) if 2**power <= most]
    counts = sorted({*doubled, layout.dp})
    return [
        count
        for count in counts
        if (count * layout.cp) % layout.ep == 0
        and (kind == "weak" or layout.global_batch % (count * layout.micro_batch) == 0)
    ]


def _spread(layout: Layout, replicas: int, kind: Kind) -> Layout:
    """The layout on this many replicas; shard groups that cannot be filled shrink, to none."""
    ranks = replicas * layout.cp
    whole = layout.fsdp == layout.dp * layout.cp
    fsdp = ranks if whole or ranks % layout.fsdp else layout.fsdp
    batch = layout.global_batch
    if kind == "weak":
        batch = batch // layout.dp * replicas
    zero = layout.zero if fsdp > 1 else 0
    return msgspec.structs.replace(layout, dp=replicas, fsdp=fsdp, zero=zero, global_batch=batch)


def _curve(kind: Kind, layouts: Sequence[Layout], found: Estimates) -> ScalingCurve:
    rates = [
        layout.global_batch / float(seconds) / layout.num_devices
        for layout, seconds in zip(layouts, found.step_seconds, strict=True)
    ]
    points = [
        ScalingPoint(
            num_devices=layout.num_devices,
            step_seconds=float(found.step_seconds[place]),
            exposed_seconds=sum(
                float(found.terms[term][place]) for term in EXPOSED if term in found.terms
            ),
            speedup=rates[place] / rates[0] * layout.num_devices,
            efficiency=rates[place] / rates[0],
        )
        for place, layout in enumerate(layouts)
    ]
    return ScalingCurve(name=f"{kind} scaling", kind=kind, points=tuple(points))
