"""The roofline of one launch of a kernel, from what was counted while it was interpreted.

FLOPs of matmuls run at the peak of the matrix units for their dtype, the others at that of fp32;
bytes are those that must be moved at least. The part is the fastest known one of an architecture.
"""

from __future__ import annotations

from ridgeline.cost.roofline import bound, least_seconds, ridge_point
from ridgeline.hardware.catalogue import devices
from ridgeline.hardware.facts import Device
from ridgeline.hardware.processors import as_target
from ridgeline.records.kernel_check import LaunchRoofline

_OF_TRITON = {
    "bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "tf32": "tf32", "int8": "int8", "uint8": "int8",
    "fp8e4nv": "fp8", "fp8e5": "fp8", "fp8e4b8": "fp8", "fp8e5b16": "fp8",
}  # fmt: skip


def fastest_part(target: str) -> Device | None:
    """The device of an architecture with the highest 16-bit rate, then the fastest memory.

    >>> fastest_part("sm_80").name
    'A100-SXM-80GB'
    """
    parts = [one for one in devices() if one.target and as_target(one.target) == target]
    return max(
        parts,
        key=lambda one: (one.peak(one.training_dtype), one.memory.bandwidth_bytes_per_second),
        default=None,
    )


def launch_roofline(
    target: str,
    *,
    matrix_flops: int,
    matrix_dtype: str,
    vector_flops: int,
    least_bytes: int,
) -> LaunchRoofline | None:
    """What bounds a launch on an architecture; None where no part of it is known.

    Args:
        target: The architecture, `sm_90`.
        matrix_flops: Of `tl.dot`.
        matrix_dtype: What it multiplied, as Triton names it, or `tf32`; empty without one.
        vector_flops: Of everything else.
        least_bytes: Bytes read or written at least once.
    """
    part = fastest_part(target)
    if part is None or not least_bytes:
        return None
    bandwidth = part.memory.bandwidth_bytes_per_second
    vector = part.peaks.get("fp32")
    matrix = part.peaks.get(_OF_TRITON.get(matrix_dtype, "fp32"), vector)
    # Both units work at once: the slower one decides.
    seconds = [
        (flops / peak, flops, peak)
        for flops, peak in ((matrix_flops, matrix), (vector_flops, vector))
        if peak and flops
    ]
    _, flops, peak = max(seconds, default=(0.0, 0, vector or bandwidth))
    return LaunchRoofline(
        device=part.name,
        intensity_flops_per_byte=round(flops / least_bytes, 4),
        ridge_flops_per_byte=round(ridge_point(peak, bandwidth), 4),
        bound=bound(flops, least_bytes, peak, bandwidth),
        least_seconds=least_seconds(flops, least_bytes, peak, bandwidth),
    )
