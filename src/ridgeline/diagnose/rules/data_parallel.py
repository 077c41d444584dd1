"""Gradients are exchanged more often, or with more ado, than training needs."""

from __future__ import annotations

import statistics

from ridgeline.diagnose.reading import EVERY_STEP, Reading, duration, percent, total_calls
from ridgeline.records import Finding, ModelFacts, StepProfile

CAUSES = ("missing-no-sync", "find-unused-parameters", "exposed-communication", "straggler")

_PER_NODE_SECONDS = 4e-6
"""Walking the autograd graph from the outputs costs about this much per node."""
_USUAL_SHARE = 0.1
_DISTURBED = 0.1
"""Share of the step without a core from which ranks cannot be compared."""
_LATE = 1.15
"""A rank that computes this much longer than the median holds the others up."""
_DDP = "DistributedDataParallel"
_OF_GRADIENTS = (
    "Exchange less often (accumulate), in fewer and larger buckets that overlap with backward, or "
    "in bfloat16; call no collective of your own in every step."
)
_OF_ITS_OWN = (
    "Start it with `async_op=True` and wait as late as possible, so that computing goes on "
    "meanwhile; exchange fewer and larger tensors, or in bfloat16; let fewer ranks share a layer, "
    "and over their fastest link."
)


def find(reading: Reading) -> list[Finding]:
    """Rules that need more than one rank, or a wrapper that speaks for one."""
    model = reading.model
    if model is None or reading.profile.world_size <= 1:
        return []
    found = [*_no_sync(reading, model), *_unused(reading, model), *_straggler(reading)]
    if not any(finding.cause == "missing-no-sync" for finding in found):
        found += _exposed(reading, model)
    return found


def _no_sync(reading: Reading, model: ModelFacts) -> list[Finding]:
    settings = reading.profile.settings
    collective = reading.profile.habit("collective")
    gradients = model.parameter_bytes * model.num_trainable / max(model.num_parameters, 1)
    exchanges = collective.bytes / gradients if gradients else 0.0
    micro = settings.backwards_per_step
    if model.wrapper != _DDP or micro < 1.9 or exchanges < 1.5:
        return []
    spent = reading.phase_seconds("communication")
    needless = 1 - 1 / min(micro, max(exchanges, 1.0))
    # Starting and copying buckets costs backward time also where the exchange itself is hidden.
    return reading.finding(
        "missing-no-sync",
        touched_seconds=spent,
        saves_seconds=(0.6 * needless * spent, needless * spent),
        confidence=0.9,
        summary=f"Gradients are averaged over ranks {exchanges:.1f} times per step, after each "
        f"of {micro:.0f} micro-batches; once is enough.",
        evidence={
            "communication_seconds": spent,
            "communication_bytes": collective.bytes,
            "gradient_bytes": int(gradients),
            "backwards_per_step": micro,
        },
        where=[settings.backward_site],
        cure="Run all micro-batches but the last under `model.no_sync()`.",
        effort="line",
        technique="ddp-no-sync",
    )


def _unused(reading: Reading, model: ModelFacts) -> list[Finding]:
    if not model.ddp_find_unused:
        return []
    profile = reading.profile
    nodes = total_calls(reading.operators(phases=("forward",)))
    # Backward asks for every parameter whether it was used.
    backward = str(profile.settings.backward_site)
    asked = sum(p.calls for p in profile.sync_points if str(p.site) == backward)
    walking = nodes * _PER_NODE_SECONDS + asked * 5 * reading.dispatch_seconds
    gap = reading.gap_seconds("forward")
    waiting = 0.2 * reading.phase_seconds("communication")  # one more exchange, of flags
    high = walking + min(gap, 2 * walking) + waiting
    return reading.finding(
        "find-unused-parameters",
        touched_seconds=high,
        saves_seconds=(walking, high),
        confidence=0.8,
        summary="DistributedDataParallel searches the graph for unused parameters in every "
        f"step: about {duration(walking)} for {model.num_parameter_tensors} tensors, and one "
        "more exchange.",
        evidence={
            "num_parameter_tensors": model.num_parameter_tensors,
            "searching_seconds": walking,
            "asked_per_step": asked,
            "forward_gap_seconds": gap,
        },
        where=[model.forward_site],
        cure="Leave out `find_unused_parameters=True` if every parameter is used in every step; "
        "`static_graph=True` if always the same ones are not.",
        effort="flag",
        technique="ddp-no-unused",
    )


def _exposed(reading: Reading, model: ModelFacts) -> list[Finding]:
    # A rank that comes early waits for the last one; what the exchange takes, all ranks spend.
    # Peers without a core answer late, by no more than they were without one.
    late = max(profile.settings.cpu_wait_seconds for profile in reading.ranks)
    spent = min(profile.phases["communication"].p50 for profile in reading.ranks) - late
    if reading.share(spent) <= _USUAL_SHARE:
        return []
    collective = reading.profile.habit("collective")
    rate = collective.bytes / spent
    return reading.finding(
        "exposed-communication",
        touched_seconds=spent,
        saves_seconds=(0.1 * spent, 0.7 * spent),
        confidence=0.6,
        summary=f"{duration(spent)} of the step, {percent(reading.share(spent))}, is "
        "communication that nothing hides.",
        evidence={
            "communication_seconds": spent,
            "communication_bytes": collective.bytes,
            "communication_bytes_per_second": rate,
            "collectives_per_step": collective.calls,
        },
        where=reading.hottest("communication"),
        cure=_OF_GRADIENTS if model.wrapper == _DDP else _OF_ITS_OWN,
        effort="code",
        technique="ddp-buckets" if model.wrapper == _DDP else None,
    )


def _straggler(reading: Reading) -> list[Finding]:
    """Ranks wait for the slowest: it works longer, the others communicate longer."""
    if len(reading.ranks) < 2 or reading.profile.rank != reading.ranks[0].rank:
        return []
    if any(_waits_for_cores(profile) for profile in reading.ranks):
        return []  # a rank without a core is slow for no reason of the script
    working = {profile.rank: _working_seconds(profile) for profile in reading.ranks}
    waiting = {profile.rank: profile.phases["communication"].p50 for profile in reading.ranks}
    slowest = max(working, key=lambda rank: working[rank])
    median = statistics.median(working[rank] for rank in working if rank != slowest)
    late = working[slowest] - median
    others = [seconds for rank, seconds in waiting.items() if rank != slowest]
    waited = sum(others) / len(others) - waiting[slowest]
    if working[slowest] < _LATE * median or waited < 0.5 * late:
        return []
    phase = _late_phase(reading, slowest)
    lost = min(late, waited, reading.step_seconds)
    return reading.finding(
        "straggler",
        touched_seconds=lost,
        saves_seconds=(0.4 * lost, lost),
        confidence=0.7,
        summary=f"Rank {slowest} works {percent(late / median)} longer per step than the "
        f"median of the others, mostly in {phase}; they wait for it.",
        evidence={
            "slowest_rank": slowest,
            "slowest_working_seconds": working[slowest],
            "median_working_seconds": median,
            "others_waiting_seconds": waited,
            "phase": phase,
        },
        where=reading.hottest(phase),
        cure="Give every rank the same amount of work (batches of like total length), and look "
        "at that rank's machine: clocks, neighbours, storage.",
        effort="code",
    )


def _waits_for_cores(profile: StepProfile) -> bool:
    return profile.crowded_share > _DISTURBED


def _working_seconds(profile: StepProfile) -> float:
    """A typical step of a rank without its communication."""
    return sum(
        spread.p50 if name in EVERY_STEP else spread.mean
        for name, spread in profile.phases.items()
        if name != "communication"
    )


def _late_phase(reading: Reading, slowest: int) -> str:
    """The phase in which the slowest rank loses most against the average of the others."""
    of = {profile.rank: profile for profile in reading.ranks}
    others = [profile for rank, profile in of.items() if rank != slowest]

    def lost(phase: str) -> float:
        usual = sum(p.phases[phase].mean for p in others if phase in p.phases) / len(others)
        return of[slowest].phases[phase].mean - usual

    candidates = [p for p in of[slowest].phases if p != "communication"]
    return max(candidates, key=lost)
