"""How much longer work takes on a GPU whose power does not suffice for its peaks.

    slower = watts at the peak / watts that are left beside leakage, fans and clocks

This is the energy roofline (Choi, Bedard, Fowler and Vuduc, "A roofline model of energy", 2013):
joules per FLOP and per byte, over a limit of power. Cards of few watts (T4, L4, the 300 W variant
of an RTX PRO 6000) run below the clocks of their datasheets once they are busy; between short
kernels of one image they rest, and are not slowed. The joules are beliefs, no fit: of the order
that the authors measured, less for later processes, such that cards of 250 W and more reach their
peaks.
"""

from __future__ import annotations

from ridgeline.hardware.facts import Device

IDLE_SHARE = 0.4
"""Share of the limit of power that neither arithmetic nor memory gets."""
FLOP_JOULES = 0.85e-12
"""What one FLOP in 16 bits takes on matrix units of 2018 (12 nm)."""
FLOP_YEARLY = 0.85
"""Times as many joules a year later, until the process of 2022 (4 nm), which later cards share."""
LAST_PROCESS = 2022
BYTE_JOULES = {"HBM": 112e-12, "LPDDR": 48e-12, "": 160e-12}
"""Start of a memory's kind → joules of one byte of it and of the work on that byte, in 2018."""
BYTE_YEARLY = 0.95
GAP_SECONDS = 10e-6
"""Rest between two kernels, in which the unit recovers."""
FIRST_YEAR = 2018


def power_slowdown(
    device: Device, matrix_flops_per_second: float, busy_seconds: float, kernels: float
) -> tuple[float, float]:
    """Times as long that products and that traffic take for want of power; 1: they do not.

    Args:
        device: A GPU.
        matrix_flops_per_second: The peak, in 16 bits, of the matrix units in use; 0: of none.
        busy_seconds: What the whole work takes at the peaks.
        kernels: How many kernels share it.

    >>> from ridgeline.hardware import device
    >>> t4 = device("T4")
    >>> [round(one, 2) for one in power_slowdown(t4, t4.peaks["fp16"], 1.0, 100)]
    [1.31, 1.22]
    >>> power_slowdown(device("V100-SXM2-16GB"), 125e12, 1.0, 100)
    (1.0, 1.0)
    """
    if device.power is None:
        return 1.0, 1.0
    left = device.power.watts * (1.0 - IDLE_SHARE)
    flop = FLOP_JOULES * FLOP_YEARLY ** (min(device.year, LAST_PROCESS) - FIRST_YEAR)
    kind = next(one for one in BYTE_JOULES if (device.memory.kind or "").startswith(one))
    byte = BYTE_JOULES[kind] * BYTE_YEARLY ** (device.year - FIRST_YEAR)
    working = busy_seconds / (busy_seconds + kernels * GAP_SECONDS) / left
    return (
        max(1.0, working * flop * matrix_flops_per_second),
        max(1.0, working * byte * device.memory.bandwidth_bytes_per_second),
    )
