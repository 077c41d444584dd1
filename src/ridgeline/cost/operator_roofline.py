"""Operators under one device's roof: bound, attainable rate, least time, share of the whole.

Williams et al. 2009 (see `roofline.py`). Products and attention run at the peak of the matrix
units for their arithmetic, element-wise chains at that of the vector units in fp32. The least
time assumes neither launch costs nor overlap between operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.cost.operator import Operator
from ridgeline.cost.roofline import attainable_flops_per_second, bound, least_seconds
from ridgeline.hardware.facts import Device
from ridgeline.records.roofline import DeviceRoofline, PlacedOperator


def place_operators(operators: Sequence[Operator], device: Device, dtype: str) -> DeviceRoofline:
    """Operators in `dtype` on a device; order is kept.

    >>> from ridgeline.hardware import device
    >>> from ridgeline.cost.operator import Pass, product
    >>> step = Pass(phase="prefill", seq=4096, batch=1, tp=1, dtype="bf16")
    >>> roof = place_operators([product("up", 4096, 4096, 4096, step=step)], device("h100"), "bf16")
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
    )


def _peak(one: Operator, device: Device, vector: float | None) -> float | None:
    return vector if one.kind == "elementwise" else device.peak(one.dtype)


def _least(one: Operator, device: Device, vector: float | None) -> float:
    return least_seconds(
        one.flops,
        one.moved_bytes,
        _peak(one, device, vector),
        device.memory.bandwidth_bytes_per_second,
    )
