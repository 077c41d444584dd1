"""The same kernels take longer at times than they do at others.

What the program asks of the GPU is the same in every round, so the cause is outside of it: clocks
that fall when the GPU grows hot or reaches its limit of power, or another process that has the GPU
in between. A trace cannot tell data that differ from round to round, so the finding is not sure.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.kernel_names import short_name

CAUSES = ("uneven-kernels",)
LEADS_FROM = 0.09
LEADS_BY = "worth"
_LEAST_SHARE = 0.03
_CLOCKS = (
    "Watch the clocks beside the run (nvidia-smi --query-gpu=clocks.sm,clocks_event_reasons.active,"
    "temperature.gpu,power.draw -l 1; rocm-smi): raise the limit of power, cool the GPU, or lock "
    "the clocks at what it can hold."
)
_OTHERS = (
    "See who else has the GPU (nvidia-smi pmon, rocm-smi --showpids) and give each process its own "
    "(CUDA_VISIBLE_DEVICES, MIG); if nobody has, watch clocks and temperature."
)


def _excess_us(fact: RankFacts) -> float:
    return fact.uneven.excess_us if fact.uneven else 0.0


def find(reading: TraceReading) -> list[TraceFinding]:
    """Time of kernels beyond what the same kernels usually take."""
    share = reading.share(_excess_us)
    # Of ranks that work together each has its share of the data, which is another each time.
    if share < _LEAST_SHARE or reading.together is not None:
        return []
    uneven = reading.worst(_excess_us).uneven
    assert uneven is not None
    most = max(uneven.slower)
    when = (
        f"in the last {sum(one > 0.5 * (1 + most) for one in uneven.slower)} of "
        f"{uneven.rounds} rounds, by {percent(most - 1)}: clocks fall, or another process began"
        if uneven.at_the_end
        else f"now and then, most of them by about {time_text(uneven.longest_us)}: another process "
        "on the GPU, or clocks that change"
    )
    return [
        reading.finding(
            "uneven-kernels",
            of=_excess_us,
            worth_us=reading.saved("uneven"),
            confidence=0.65 if uneven.at_the_end else 0.55,
            summary=f"The same kernels take longer {when}. That is {percent(share)} of the window.",
            evidence={
                "beyond_the_usual_us": reading.mean(_excess_us),
                "rounds": uneven.rounds,
                "slowest_round_over_usual": most,
                "excess_of_a_kernel_us": uneven.longest_us,
            },
            where=[short_name(name) for name in uneven.names],
            cure=_CLOCKS if uneven.at_the_end else _OTHERS,
        )
    ]
