"""Some calls of a model take far longer than most: who waits for an answer minds these.

The time of the slow calls beyond the median is held against what was measured beside it: garbage
collections, compilation, emptied caches, waiting for a core, calls of other sizes, the first
calls, and else the phase in which it was spent. Each explains no more than its own seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.diagnose.reading import Evidence, Reading, duration, percent, warning
from ridgeline.records import Finding, TailFacts

CAUSES = ("latency-tail",)

_LEAST_RATIO = 1.5
"""p99 over p50 below which there is no tail to speak of."""
_LEAST_SLOW = 2
"""One slow call is an accident."""
_EXPLAINS = 0.4
"""Share of the slow calls' excess that makes something their cause."""
_EARLY = 0.7
_SAME_ORDER = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    name: str
    seconds: float
    """Seconds of the excess that it explains, at most."""
    cure: str
    effort: str = "line"
    technique: str | None = None


def find(reading: Reading) -> list[Finding]:
    """A tail in a script that only answers."""
    profile, tail = reading.profile, reading.profile.tail
    times = profile.step_seconds
    if profile.kind != "inference" or tail is None or times.p50 <= 0:
        return []
    ratio = times.p99 / times.p50
    if ratio < _LEAST_RATIO or tail.slow_steps < _LEAST_SLOW or tail.excess_seconds <= 0:
        return []
    suspects = sorted(_suspects(reading, tail), key=lambda one: -one.seconds)
    chief = suspects[0] if suspects else None
    explained = min(1.0, chief.seconds / tail.excess_seconds) if chief is not None else 0.0
    if chief is None or explained < _EXPLAINS:
        chief = _unexplained(reading, tail)
        explained = 0.0
    evidence: Evidence = {
        "p50_seconds": times.p50,
        "p99_seconds": times.p99,
        "p99_over_p50_ratio": ratio,
        "num_calls": profile.steps,
        "num_slow_calls": tail.slow_steps,
        "excess_seconds": tail.excess_seconds,
        "cause": chief.name,
    }
    for suspect in suspects:
        evidence[f"{suspect.name.replace(' ', '_').replace('-', '_')}_seconds"] = suspect.seconds
    because = f": {percent(explained)} of it is {chief.name}" if explained else ""
    return warning(
        "latency-tail",
        confidence=0.85 if explained >= 0.7 else 0.65 if explained else 0.4,
        summary=f"{tail.slow_steps} of {profile.steps} calls are slow: p99 is {duration(times.p99)}"
        f", {ratio:.1f} times the median of {duration(times.p50)}{because}.",
        evidence=evidence,
        where=[] if explained else reading.hottest("other", "forward"),
        cure=chief.cure,
        effort=chief.effort,
        technique=chief.technique,
    )


def _suspects(reading: Reading, tail: TailFacts) -> list[_Suspect]:
    """What was measured to take time, and could have taken it in the slow calls."""
    profile, settings = reading.profile, reading.profile.settings
    count = profile.steps
    recompiled = settings.recompiles > 0
    forced = profile.habit("gc_collect").calls > 0
    found = [
        _Suspect(
            name="garbage collection",
            seconds=settings.gc_seconds * count,
            cure="Take gc.collect() out of the loop."
            if forced
            else "Call `gc.freeze()` once the model is loaded, and collect between requests.",
            technique="no-forced-gc" if forced else "gc-freeze",
        ),
        _Suspect(
            name="recompilation" if recompiled else "compilation",
            seconds=settings.compile_seconds,
            cure="Compile with `dynamic=True`, or pad to a few lengths, and call each of them "
            "once before the first request."
            if recompiled
            else "Call the model once with every shape before the first request.",
        ),
        _Suspect(
            name="emptying the allocator's cache",
            seconds=profile.habit("empty_cache").seconds * count,
            cure="Take torch.cuda.empty_cache() out of the loop.",
            technique="no-empty-cache",
        ),
        _Suspect(
            name="waiting for a core",
            seconds=settings.cpu_wait_seconds * count,
            cure="Leave a core to it: fewer threads, or no other work on the machine while it "
            "answers.",
            effort="flag",
        ),
        _Suspect(
            name="waiting for input",
            seconds=tail.phase_seconds.get("data", 0.0) + tail.phase_seconds.get("copy", 0.0),
            cure="Have the next input ready before the call: a queue, or loader workers.",
        ),
    ]
    correlation = tail.size_correlation
    if correlation is not None and correlation >= _SAME_ORDER:
        found.append(
            _Suspect(
                name="larger inputs",
                seconds=correlation * tail.excess_seconds,
                cure="Bound what one call takes: split or bucket long inputs, and batch like with "
                "like.",
                effort="code",
            )
        )
    if tail.early_share >= _EARLY:
        found.append(
            _Suspect(
                name="warm-up of the first calls",
                seconds=tail.early_share * tail.excess_seconds,
                cure="Call the model a few times before the first request.",
            )
        )
    found = [one for one in found if one.seconds > 0.02 * tail.excess_seconds]
    return [
        _Suspect(
            name=one.name,
            seconds=min(one.seconds, tail.excess_seconds),
            cure=one.cure,
            effort=one.effort,
            technique=one.technique,
        )
        for one in found
    ]


def _unexplained(reading: Reading, tail: TailFacts) -> _Suspect:
    """Nothing that was measured beside the calls explains it: say where the time went."""
    phase = max(tail.phase_seconds, key=lambda name: tail.phase_seconds[name], default="forward")
    growing = reading.profile.memory_growth_bytes_per_step > 0
    return _Suspect(
        name=f"unexplained, in {phase}",
        seconds=0.0,
        cure="Memory grows from call to call, so the allocator asks the system for more: find what "
        "keeps tensors."
        if growing
        else f"The slow calls lose their time in {phase}: look at what else the host does then "
        "(logging, other threads, another process).",
        effort="code",
    )
