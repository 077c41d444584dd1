"""The roofline model of a kernel: the rate that it can reach, from its arithmetic intensity.

    attainable = min(peak, intensity × bandwidth)          intensity = FLOPs / bytes moved

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009. Left of the ridge point memory decides,
right of it arithmetic does.

`place_operators` puts the operators of a model under one device's roof: matmuls and attention run
at the peak of the matrix units for their dtype, element-wise chains at that of the vector units in
fp32. The least time assumes neither launch costs nor overlap between operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ridgeline.cost.operator import ModelOperator
from ridgeline.cost.operators import Phase, model_operators
from ridgeline.hardware.facts import Device
from ridgeline.models.spec import ModelSpec
from ridgeline.records.roofline import DeviceRoofline, PlacedOperator

Bound = Literal["compute", "memory"]


def ridge_point(peak_flops_per_second: float, bandwidth_bytes_per_second: float) -> float:
    """FLOPs per byte from which on arithmetic is the limit.

    >>> ridge_point(989e12, 3.35e12)
    295.2238805970149
    """
    return peak_flops_per_second / bandwidth_bytes_per_second


def matmul_intensity(rows: int, inner: int, outer: int, element_bytes: float = 2.0) -> float:
    """FLOPs per byte of a product (rows x inner) · (inner x outer), each matrix moved once.

    >>> matmul_intensity(4096, 4096, 4096), round(matmul_intensity(1, 4096, 4096), 2)
    (1365.3333333333333, 1.0)
    """
    if min(rows, inner, outer) < 1 or element_bytes <= 0.0:
        raise ValueError(f"{rows} x {inner} x {outer} of {element_bytes} bytes: each is above 0")
    moved = element_bytes * (rows * inner + inner * outer + rows * outer)
    return 2.0 * rows * inner * outer / moved


def attainable_flops_per_second(
    intensity: float, peak_flops_per_second: float, bandwidth_bytes_per_second: float
) -> float:
    """The most FLOP/s at `intensity` FLOPs per byte.

    >>> attainable_flops_per_second(10.0, 100e9, 20e9)
    100000000000.0
    >>> attainable_flops_per_second(1.0, 100e9, 20e9)
    20000000000.0
    """
    return min(peak_flops_per_second, intensity * bandwidth_bytes_per_second)


def least_seconds(
    flops: float,
    moved_bytes: float,
    peak_flops_per_second: float | None,
    bandwidth_bytes_per_second: float,
) -> float:
    """The least time for this much arithmetic and traffic; without a peak, for the traffic.

    >>> least_seconds(200e9, 1e9, 100e9, 20e9)
    2.0
    """
    compute = flops / peak_flops_per_second if peak_flops_per_second else 0.0
    return max(compute, moved_bytes / bandwidth_bytes_per_second)


def bound(
    flops: float,
    moved_bytes: float,
    peak_flops_per_second: float | None,
    bandwidth_bytes_per_second: float,
) -> Bound:
    """Which of the two limits is the higher.

    >>> bound(1e9, 1e9, 100e9, 20e9)
    'memory'
    """
    if not flops or not peak_flops_per_second:
        return "memory"
    intensity = flops / moved_bytes if moved_bytes else math.inf
    ridge = ridge_point(peak_flops_per_second, bandwidth_bytes_per_second)
    return "compute" if intensity >= ridge else "memory"


def place_operators(
    operators: Sequence[ModelOperator], device: Device, dtype: str
) -> DeviceRoofline:
    """Operators in `dtype` on a device; order is kept.

    >>> from ridgeline.hardware import device
    >>> from ridgeline.cost.operator import Pass, matmul
    >>> step = Pass(phase="prefill", seq=4096, batch=1, tp=1, dtype="bf16")
    >>> roof = place_operators([matmul("up", 4096, 4096, 4096, step=step)], device("h100"), "bf16")
    >>> roof.operators[0].bound, round(roof.operators[0].intensity_flops_per_byte)
    ('compute', 1365)
    """
    bandwidth = device.memory.bandwidth_bytes_per_second
    vector = device.peaks.get("fp32")
    times = [_least(one, device, vector) for one in operators]
    total = sum(one.count * seconds for one, seconds in zip(operators, times, strict=True))
    placed = []
    for one, seconds in zip(operators, times, strict=True):
        peak = _peak(one, device, vector)
        reachable = attainable_flops_per_second(
            one.intensity, peak or one.intensity * bandwidth, bandwidth
        )
        placed.append(
            PlacedOperator(
                name=one.name,
                direction=one.direction,
                kind=one.kind,
                shape=one.shape,
                dtype=one.dtype,
                count=one.count,
                flops=one.flops,
                moved_bytes=one.moved_bytes,
                intensity_flops_per_byte=one.intensity,
                bound=bound(one.flops, one.moved_bytes, peak, bandwidth),
                attainable_flops_per_second=reachable,
                seconds=seconds,
                share=one.count * seconds / total,
            )
        )
    return DeviceRoofline(
        device=device.name,
        dtype=dtype,
        peak_flops_per_second=device.peak(dtype),
        vector_flops_per_second=vector,
        bandwidth_bytes_per_second=bandwidth,
        ridge_flops_per_byte=device.peak(dtype) / bandwidth,
        seconds=total,
        compute_bound_share=sum(one.share for one in placed if one.bound == "compute"),
        operators=placed,
        assumed=list(device.assumed),
    )


def _peak(one: ModelOperator, device: Device, vector: float | None) -> float | None:
    return vector if one.kind == "elementwise" else device.peak(one.dtype)


def _least(one: ModelOperator, device: Device, vector: float | None) -> float:
    return least_seconds(
        one.flops,
        one.moved_bytes,
        _peak(one, device, vector),
        device.memory.bandwidth_bytes_per_second,
    )


def precision_speedup(
    model: ModelSpec,
    device: Device,
    *,
    before: str,
    after: str,
    seq: int,
    batch: int,
    phase: Phase = "train",
) -> float:
    """At the roofline, without launch costs.

    >>> from ridgeline.hardware import device
    >>> from ridgeline.models import load_model
    >>> llama, h100 = load_model("llama-3-8b"), device("h100")
    >>> gain = precision_speedup(llama, h100, before="bf16", after="fp8", seq=4096, batch=1)
    >>> round(gain, 2)
    1.73
    """
    seconds = [
        place_operators(model_operators(model, seq, batch, 1, phase, dtype), device, dtype).seconds
        for dtype in (before, after)
    ]
    return seconds[0] / seconds[1]
