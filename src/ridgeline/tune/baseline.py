"""The profile that a search begins with: the script as it stands, whose run stays alive."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from time import monotonic

from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import LiveRun, MeasurementPlan
from ridgeline.measure.wire import Applied, Session
from ridgeline.records import StepProfile
from ridgeline.tune.job import TuneJob
from ridgeline.tune.pool import Pool, Variant
from ridgeline.tune.questions import OnProgress
from ridgeline.tune.stack import ENTRY

_PLAN = MeasurementPlan(steps=20, timed_seconds=5.0, cycle_seconds=3.0)
_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.25, 30.0, 120.0
"""Share of the budget for the profile, and its bounds in seconds."""
_LOOK_SECONDS = 10.0
"""What the slowest start leaves for a look at a step."""
_SECOND_SHARE = 0.5
"""Share of what is left for a second profile, where the first saw no usual step."""


def baseline_of(
    job: TuneJob,
    ceilings: Ceilings | None,
    on_progress: OnProgress,
    pool: Pool,
    begun: float,
) -> StepProfile:
    """The profile of the job's script as it stands; its run stays alive in the pool.

    Where the time was enough for the very first step alone, the same run is measured on: what
    happens once (a summary, an evaluation) may be most of that step, and what no other step
    shows is worth nothing to a search.
    """
    on_progress("profiling the script as it stands")
    ending = begun + job.budget_seconds - job.ending_seconds
    seconds = max(_LEAST_SECONDS, min(_MOST_SECONDS, _SHARE * job.budget_seconds))
    # Without it nothing can be tuned: a slow start may take what else there is, and more.
    pool.deadline, pool.least_patience_seconds = ending - _LOOK_SECONDS, seconds
    start = max(0.0, ending - seconds - monotonic())
    plan = dataclasses.replace(_PLAN, budget_seconds=seconds, start_seconds=start)
    baseline = profile_of(job.command, [], ceilings, plan, pool, on_progress)
    left = _SECOND_SHARE * (ending - monotonic())
    if not _saw_only_the_first_step(baseline) or left < _LEAST_SECONDS:
        return baseline
    on_progress("only the first step was seen: profiling what comes after it")
    pool.deadline, pool.least_patience_seconds = ending, left
    plan = dataclasses.replace(_PLAN, budget_seconds=left)
    return profile_of(job.command, [], ceilings, plan, pool, on_progress)


def _saw_only_the_first_step(profile: StepProfile) -> bool:
    return profile.steps == 1 and profile.warmup_steps == 0 and not profile.operators


def profile_of(
    command: list[str],
    stack: list[Applied],
    ceilings: Ceilings | None,
    plan: MeasurementPlan,
    pool: Pool,
    on_progress: OnProgress,
) -> StepProfile:
    """The profile of the run that is alive, or of a new one that stays alive."""
    variant = Variant(command=command, stack=tuple(stack))

    def conduct(session: Session) -> AbstractContextManager[LiveRun]:
        if not stack:  # what counts as a step stays as the baseline has shown
            pool.calls = session.calls
        return pool.borrow(variant)

    session = Session(stack=stack, fix_seed=True, calls=pool.calls)
    return measure(
        command,
        plan,
        session=session,
        entry=ENTRY,
        ceilings=ceilings,
        on_progress=on_progress,
        conduct=conduct,
    )[0]
