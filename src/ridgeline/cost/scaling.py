"""Strong and weak scaling of data parallelism, with the all-reduce hidden under the backward.

    step(n) = compute + max(0, all-reduce(n) - overlap · backward) + what does not shrink

Strong: the global batch stays, so compute falls as 1/n. Weak: each device keeps its batch.
Gradients are reduced in buckets while the backward pass still runs, all but the last bucket (Li
et al., "PyTorch Distributed", 2006.15704, section 3.2.3), hence `overlap` below 1. The laws of
Amdahl (AFIPS 1967) and Gustafson (CACM 31(5), 1988) are the limits without communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ridgeline.cost import amdahl
from ridgeline.cost.collective_volume import Fabric, all_reduce_seconds

Kind = Literal["strong", "weak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelStep:
    """One step on one device: the whole global batch (strong) or a device's own (weak)."""

    forward_seconds: float
    backward_seconds: float
    fixed_seconds: float = 0.0
    """What no number of replicas makes shorter: optimizer, launches, logging."""
    gradient_bytes: float
    overlap: float = 0.8
    """Share of the backward pass under which gradients can travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """A step on `num_devices`."""

    num_devices: int
    step_seconds: float
    exposed_seconds: float
    """Communication that nothing hides."""
    speedup: float
    """Samples per second over those of one device."""
    efficiency: float
    """Speed-up over number of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """One job on growing clusters."""

    name: str
    kind: Kind
    points: tuple[ScalingPoint, ...]


def scaling_curve(
    name: str, kind: Kind, step: DataParallelStep, fabric: Fabric, device_counts: Sequence[int]
) -> ScalingCurve:
    """The step on each number of devices.

    >>> step = DataParallelStep(forward_seconds=0.1, backward_seconds=0.2, gradient_bytes=2e9)
    >>> fabric = Fabric(
    ...     domain_size=8, domain_bytes_per_second=300e9, network_bytes_per_second=10e9
    ... )
    >>> weak = scaling_curve("job", "weak", step, fabric, [1, 8, 64])
    >>> [round(point.efficiency, 3) for point in weak.points]
    [1.0, 1.0, 1.0]
    >>> strong = scaling_curve("job", "strong", step, fabric, [1, 8, 64])
    >>> [round(point.efficiency, 3) for point in strong.points]
    [1.0, 1.0, 0.081]
    """
    alone = step.forward_seconds + step.backward_seconds + step.fixed_seconds
    points = []
    for count in device_counts:
        share = 1.0 / count if kind == "strong" else 1.0
        backward = step.backward_seconds * share
        reduce = all_reduce_seconds(count, step.gradient_bytes, fabric)
        exposed = max(0.0, reduce - step.overlap * backward)
        seconds = step.forward_seconds * share + backward + exposed + step.fixed_seconds
        speedup = alone / seconds * (1 if kind == "strong" else count)
        points.append(
            ScalingPoint(
                num_devices=count,
                step_seconds=seconds,
                exposed_seconds=exposed,
                speedup=speedup,
                efficiency=speedup / count,
            )
        )
    return ScalingCurve(name=name, kind=kind, points=tuple(points))


def amdahl_speedup(serial_share: float, num_devices: int) -> float:
    """Speed-up of a fixed problem, `serial_share` of whose time on one device cannot be split.

    >>> round(amdahl_speedup(0.05, 64), 2)
    15.42
    """
    return amdahl.speedup(1.0 - serial_share, num_devices)


def gustafson_speedup(serial_share: float, num_devices: int) -> float:
    """Speed-up of a problem that grows with the devices; the share is that of the parallel run.

    >>> gustafson_speedup(0.05, 64)
    60.85
    """
    if not 0.0 <= serial_share <= 1.0:
        raise ValueError(f"a share lies between 0 and 1, not at {serial_share}")
    return num_devices - serial_share * (num_devices - 1)
