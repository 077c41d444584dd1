"""The kind of matmuls that weights of a format are multiplied with on a device, and its peak."""

from __future__ import annotations

from ridgeline.cost.serving.weight_formats import MULTIPLIED_AS, WEIGHT_BITS, known_width
from ridgeline.hardware.facts import Device


def matmul_dtype(device: Device, weights: str) -> str:
    """The kind of matmuls that weights of this kind are multiplied with on a device.

    Weights that the device cannot multiply, and all that are quantised alone, are widened to 16
    bits; 4-bit floats run as such where the device can.
    """
    chosen = MULTIPLIED_AS.get(weights, "")
    return chosen if chosen in device.peaks else device.training_dtype


def most_peak(device: Device, weights: str) -> float:
    """The peak of such weights' matmuls whatever their sums are kept in.

    GeForce parts sum products of 16 bits in 32 at a quarter of the rate of int8, in 16 at half of
    it (NVIDIA's whitepapers of Ampere GA102 and Ada, appendix A).

    >>> from ridgeline.hardware import device
    >>> geforce, server = device("rtx-4090"), device("h100")
    >>> [round(most_peak(one, "int4") / one.peak("bf16"), 2) for one in (geforce, server)]
    [2.0, 1.0]
    """
    dtype = matmul_dtype(device, weights)
    peak = device.peak(dtype)
    if dtype not in ("bf16", "fp16"):
        return peak
    return max(peak, device.peaks.get("int8", 0.0) / 2.0)


def is_widened(device: Device, weights: str) -> bool:
    """Whether weights are stored in fewer bits than they are multiplied with."""
    done = {"fp8": 8.0, "int8": 8.0, "fp4": 4.5}.get(matmul_dtype(device, weights), 16.0)
    return known_width(weights, WEIGHT_BITS, "weights") < done


def widening(device: Device, weights: str) -> str:
    """What happens to such weights on a device that does not multiply them."""
    dtype = matmul_dtype(device, weights)
    return f"{weights} weights are widened to {dtype}: {device.name} has no matmuls of theirs"
