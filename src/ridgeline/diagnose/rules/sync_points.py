"""The host asks for values of tensors: one by one in a loop, or all of them as text.

On a CPU each question costs a walk through Python and the dispatcher; on a GPU the host also
waits for all work that was queued, and then the GPU waits for the host. A tensor that is printed
is waited for, copied and formatted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.diagnose.reading import Reading, duration, percent, total_seconds
from ridgeline.records import Finding, SyncPoint

CAUSES = ("sync-points",)

_PER_QUESTION = 30.0
"""A question to a tensor and the indexing that leads to it, in bare dispatches."""
_AROUND_A_QUESTION = 8.0
"""Times what a question itself took: the indexing before it, and Python around both."""
_IN_A_LOOP = 32
"""Questions at one line per step that only a loop asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What one kind of asking takes of a typical step."""

    points: list[SyncPoint]
    seconds: float
    low: float
    high: float
    confidence: float


def find(reading: Reading) -> list[Finding]:
    """Sync points of the script's own code that take a part of the step."""
    points = reading.profile.sync_points
    asked = [p for p in points if p.kind != "print" and p.calls > 0]
    if _backward_asks(reading):
        backward = reading.profile.settings.backward_site
        asked = [p for p in asked if str(p.site) != str(backward)]
    printed = _printed(reading, [p for p in points if p.kind == "print"])
    asking = _on_gpu(reading, asked) if reading.on_gpu else _on_cpu(reading, asked)
    costs = [cost for cost in (printed, asking) if cost is not None]
    if not costs:
        return []
    largest = max(costs, key=lambda cost: cost.seconds)
    places = sorted((p for cost in costs for p in cost.points), key=lambda p: -p.seconds)
    calls = sum(p.calls for p in places)
    seconds = sum(cost.seconds for cost in costs)
    what = "turned into text" if largest is printed else "asked for by the host"
    return reading.finding(
        "sync-points",
        touched_seconds=seconds,
        saves_seconds=(sum(cost.low for cost in costs), sum(cost.high for cost in costs)),
        confidence=largest.confidence,
        summary=f"{calls:,.3g} values of tensors per step are {what}: {duration(seconds)}, "
        f"{percent(reading.share(seconds))} of the step.",
        evidence={
            "sync_seconds": seconds,
            "syncs_per_step": calls,
            "kinds": ", ".join(sorted({p.kind for p in places})),
        },
        where=[p.site for p in places[:3]],
        cure="Compute on whole tensors and ask once, for the result; print numbers, and only every "
        "so many steps.",
        effort="line" if largest is printed or calls < _IN_A_LOOP else "code",
    )


def _backward_asks(reading: Reading) -> bool:
    """Do anomaly checks or a search for unused parameters ask? They are causes of their own."""
    searches = any(model.ddp_find_unused for model in reading.profile.models)
    return searches or reading.profile.settings.anomaly_detection


def _printed(reading: Reading, points: list[SyncPoint]) -> _Cost | None:
    formatting = reading.of_mean(sum(p.seconds for p in points))
    if formatting <= 0:
        return None
    # Writing the text out is on the same lines.
    lines = reading.hot_share({p.site for p in points}) * reading.step_seconds
    seconds = max(formatting, min(lines, 2.0 * formatting))
    return _Cost(points=points, seconds=seconds, low=0.8 * formatting, high=seconds, confidence=0.9)


def _on_cpu(reading: Reading, points: list[SyncPoint]) -> _Cost | None:
    loops = [p for p in points if p.calls >= _IN_A_LOOP]
    if not loops:
        return None
    # The lines may compute as well: only what asking can take is blamed on asking.
    seconds = sum(min(_at_line(reading, p), _asking(reading, p)) for p in loops)
    return _Cost(
        points=loops, seconds=seconds, low=0.6 * seconds, high=0.95 * seconds, confidence=0.85
    )


def _at_line(reading: Reading, point: SyncPoint) -> float:
    return reading.hot_share({point.site}) * reading.step_seconds


def _asking(reading: Reading, point: SyncPoint) -> float:
    """The most that questions at a line take, and the indexing that leads to them."""
    usual = point.calls * _PER_QUESTION * reading.dispatch_seconds
    return min(usual, _AROUND_A_QUESTION * reading.of_mean(point.seconds))


def _on_gpu(reading: Reading, points: list[SyncPoint]) -> _Cost | None:
    if not points:
        return None
    # What synchronising can cost is time in which the GPU had nothing to do.
    idle = reading.step_seconds - total_seconds(reading.operators())
    idle = max(0.0, idle - reading.phase_seconds("data", "copy", "communication"))
    in_a_loop = sum(p.calls for p in points) >= _IN_A_LOOP
    return _Cost(
        points=points,
        seconds=idle,
        low=0.2 * idle,
        high=0.8 * idle,
        confidence=0.8 if in_a_loop else 0.6,
    )
