"""Operators too small to pay for their start: the step is bound by Python and dispatch.

Every operator costs the host some microseconds before it computes anything, and on a GPU a
launch. Thousands of them on a few kilobytes each spend the step on starting.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, percent, total_calls, total_seconds
from ridgeline.records import Finding

CAUSES = ("tiny-operators",)

_PHASES = ("forward", "backward", "other")
_LEAST_SHARE = 0.15
"""Below this they are not what the step is spent on."""
_MANY = 200
"""Fewer small operators than this are what every model has around its large ones."""


def find(reading: Reading) -> list[Finding]:
    """Time in small operators and around them."""
    small = reading.small_operators(*_PHASES)
    calls = total_calls(small)
    seconds = total_seconds(small) + reading.around_seconds(small, "forward", "backward")
    if calls < _MANY or reading.share(seconds) < _LEAST_SHARE or reading.compiled:
        return []
    return reading.finding(
        "tiny-operators",
        touched_seconds=seconds,
        saves_seconds=(0.35 * seconds, 0.85 * seconds),
        confidence=0.8,
        summary=f"{calls:,.0f} of {reading.profile.operator_calls:,.0f} operators per step "
        f"are too small to pay for their start: {percent(reading.share(seconds))} of the step.",
        evidence={
            "small_operators_per_step": calls,
            "operators_per_step": reading.profile.operator_calls,
            "small_operator_seconds": seconds,
            "dispatch_seconds": reading.dispatch_seconds,
        },
        where=reading.hottest("forward"),
        cure="Compute on whole tensors instead of slices in a Python loop, use the library's "
        "own layer, or let torch.compile fuse the operators"
        + (" or a CUDA graph replay them." if reading.on_gpu else "."),
        effort="code",
        technique="cuda-graphs" if reading.on_gpu else "compile",
    )
