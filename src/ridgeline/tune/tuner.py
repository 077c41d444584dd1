"""Tune a training script: profile it, try every technique that fits, keep what proves itself.

1. Profile the script as it stands and diagnose it; its process stays alive as the first side A.
2. What is likely to help and starts quickly is tried as one stack: the first A/B gives the
   headline. Where it does not hold, its halves are tried, and so on.
3. After a gain of more than `PROFILE_AGAIN_AFTER` the tuned script is profiled, and candidates
   are chosen anew: what was worth nothing in the old step may be worth something in the new.
4. What has to compile goes on top; then what was tried as one is split into rows of its own,
   and what does not show its worth is dropped; then the risky, then the small ones together;
   what still could not be told from no gain is asked about for longer.
5. Members with a small gain are left out once more: a technique added later may have made them
   worthless.
6. The script as it stood against the full stack, directly: that is the cumulative figure, known
   already where the stack is one that was tried as a whole. Where no time is left for it, the
   figure is the product of the rows, and says so.
7. On request, the same stack as a diff of the script, itself run, verified and measured.

The budget is the wall time of all of it. When it ends, what is proven so far is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from time import monotonic

from msgspec.structs import replace

from ridgeline import quantity
from ridgeline.diagnose import diagnose
from ridgeline.errors import RidgelineError
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.hardware.environment import installed
from ridgeline.measure.live.few_calls import told_of_repeats
from ridgeline.measure.live.operator_times import steps_to_profile
from ridgeline.measure.live.windows import MeasurementPlan
from ridgeline.measure.statistics.cycles import cycle_of
from ridgeline.measure.statistics.sequential import MOST_ROUNDS
from ridgeline.measure.wire import Applied
from ridgeline.records import Ledger, StepProfile
from ridgeline.records.ledger import NOT_BEGUN
from ridgeline.records.store import write_record
from ridgeline.techniques import Context, technique
from ridgeline.tune.ab_plan import silent
from ridgeline.tune.ab_run import LOOK_STEPS
from ridgeline.tune.baseline import baseline_of, profile_of
from ridgeline.tune.billing import billed
from ridgeline.tune.candidates import (
    TechniqueCandidate,
    candidates,
    displaced_by,
    is_small,
    key_of,
    next_question,
    one_per_slot_of,
    or_hopeful,
    seconds_for_others,
)
from ridgeline.tune.job import TuneJob
from ridgeline.tune.memory import JobMemory, fingerprint
from ridgeline.tune.paced import call_at_pace, refuse_training
from ridgeline.tune.pool import LEAST_PATIENCE_SECONDS, Pool
from ridgeline.tune.questions import LEAST_WORTH_OF_A_ROW, OnProgress
from ridgeline.tune.row import did_harm, gained_nothing
from ridgeline.tune.search import StackSearch
from ridgeline.tune.stack import stack_of, write_stack
from ridgeline.tune.whole import prove_whole

Show = Callable[[Ledger], None]

PROFILE_AGAIN_AFTER = 1.15
"""Gain since the last profile from which the step is another one."""
_TUNED = MeasurementPlan(steps=12, warmup=1, timed_seconds=4.0)
_PROFILE_STEPS = 40
"""What a profile costs in steps, those under instruments counted as several."""
_PROFILE_SHARE = 0.25
"""What a profile between two questions may take of the time that is left for them."""
_QUESTION_SHARE, _LEAST_QUESTION, _MOST_QUESTION = 0.1, 5.0, 60.0
"""Share of the budget for the rounds of one question, and its bounds in seconds."""


def _unseen(ledger: Ledger) -> None:
    """Show a ledger to nobody."""


def tune(
    job: TuneJob,
    *,
    ceilings: Ceilings | None = None,
    on_progress: OnProgress = silent,
    show: Show = _unseen,
    begun: float | None = None,
) -> Ledger:
    """Tune one script; returns the ledger and leaves it in the job's folder.

    `ledger.json` and `stack.toml` are written after every measurement, so an interruption loses
    nothing; running the same job again resumes. `show` gets the ledger whenever it has grown.
    `begun` is when the budget began to run, on `monotonic`'s clock.

    Raises:
        InputError: the script or an option is unusable.
        ChildDied: the script as it stands was killed.
    """
    begun = monotonic() if begun is None else begun
    job.out.mkdir(parents=True, exist_ok=True)
    pool = Pool()
    try:
        search = _begin(job, ceilings, on_progress, pool, begun)
        search.on_row = _writer(job, show)
        search.on_row(search.ledger())
        _add_what_helps(search, job)
        _decide_what_is_open(search)
        search.leave_out_what_came_early()
        search.deadline = pool.deadline = begun + job.budget_seconds
        ledger = billed(_at_pace(search, job, _finish(search, job)), job.terms)
    finally:
        pool.close()
    write_record(job.out / "ledger.json", ledger)
    search.memory.forget()
    return ledger


def _begin(
    job: TuneJob, ceilings: Ceilings | None, on_progress: OnProgress, pool: Pool, begun: float
) -> StackSearch:
    """The search with its baseline profile, measured now or remembered."""
    memory = JobMemory(job.out / "answers.json", fingerprint(job.command, installed("torch")))
    if memory.lost is not None:
        on_progress(f"measuring anew: what an earlier job had measured is damaged ({memory.lost})")
    if memory.resumed:
        on_progress(f"resuming: {len(memory.answers.rows)} measurements are known already")
    baseline = memory.answers.baseline
    if baseline is None:
        baseline = baseline_of(job, ceilings, on_progress, pool, begun)
        memory.answers.baseline, memory.answers.calls = baseline, pool.calls
        memory.save()
    refuse_training(baseline.kind, job.period_seconds)
    pool.calls = replace(memory.answers.calls, assumed=baseline.kind == "inference")
    pool.cycle = cycle_of(baseline.step_samples)
    profiled = steps_to_profile(LOOK_STEPS, baseline.operator_calls)
    pool.has_memory_looked_at = profiled == LOOK_STEPS
    pool.deadline = begun + job.budget_seconds - job.ending_seconds
    pool.least_patience_seconds = LEAST_PATIENCE_SECONDS
    question = _QUESTION_SHARE * job.budget_seconds
    search = StackSearch(
        command=job.command,
        threshold=job.threshold,
        ab_seconds=min(max(question, _LEAST_QUESTION), _MOST_QUESTION),
        deadline=pool.deadline,
        memory=memory,
        baseline=baseline,
        ceilings=ceilings,
        findings=list(diagnose([baseline], ceilings).findings),
        on_progress=on_progress,
        on_row=_unseen,
        pool=pool,
        notes=_told_of_cycles(pool) + told_of_repeats(pool.calls),
    )
    pool.room = search.copies_that_fit()
    return search


def _told_of_cycles(pool: Pool) -> list[str]:
    """What multipliers mean where a long step returns after so many short ones."""
    if pool.cycle is None:
        return []
    told = (
        f"{pool.cycle.in_words} (an agent plays, a model is evaluated): multipliers are those of "
        "whole cycles, or, where there was no time for these, count the long steps as unchanged"
    )
    return [told]


def _writer(job: TuneJob, show: Show) -> Show:
    """What happens to the ledger whenever it has grown."""

    def write_and_show(ledger: Ledger) -> None:
        _write(job, ledger)
        show(ledger)

    return write_and_show


def _write(job: TuneJob, ledger: Ledger) -> None:
    """What is proven so far, for whoever is interrupted."""
    write_record(job.out / "ledger.json", billed(ledger, job.terms))
    if ledger.stack_rows:
        write_stack(job.out / "stack.toml", stack_of(ledger))
    else:
        (job.out / "stack.toml").unlink(missing_ok=True)


def _profile_of_the_stack(search: StackSearch, share: float = 1.0) -> StepProfile | None:
    """The tuned script's profile, remembered or measured now.

    None where it would take more than this share of the time that is left.
    """
    profiles, key = search.memory.answers.profiles, key_of(search.stack)
    if key not in profiles:
        left = share * search.left_seconds
        if left < _PROFILE_STEPS * search.baseline.step_seconds.mean / search.cumulative:
            return None
        search.on_progress("profiling the tuned script")
        plan = dataclasses.replace(_TUNED, budget_seconds=min(left, 60.0))
        try:
            profiles[key] = profile_of(
                search.command, search.stack, search.ceilings, plan, search.pool, search.on_progress
            )
        except RidgelineError as error:
            search.notes.append(f"the tuned script could not be profiled: {error}")
            return None
        search.memory.save()
    return profiles[key]


def _context(search: StackSearch, profile: StepProfile | None = None) -> Context:
    """What techniques judge by: the script as it stood, or as it is by now."""
    profile = profile or search.baseline
    findings = diagnose([profile], search.ceilings).findings
    return Context(
        profile=profile,
        findings=tuple(findings),
        ceilings=search.ceilings,
        stack={member.technique: member.options for member in search.stack},
        changed_at={name: tuple(at) for name, at in search.memory.answers.places.items()},
    )


def _add_what_helps(search: StackSearch, job: TuneJob) -> None:
    """Ask about candidates, cheapest expected gain first, until none is left or the time is."""
    tried: set[str] = set()
    profile, gained = search.baseline, 1.0
    while True:
        context = _context(search, profile)
        open_ = _open(search, candidates(context, job.only, search.skipped), tried)
        chosen = next_question(open_, search.seconds_for, search.left_seconds)
        if chosen and is_small(chosen):
            chosen = or_hopeful(chosen, open_, search.least_seconds_for, search.left_seconds)
        if not chosen or any(one.may_harm for one in chosen) or is_small(chosen):
            _split_groups(search)
        if not chosen:
            # Nothing else needs the time that is left.
            chosen = next_question(open_, search.least_seconds_for, search.left_seconds)
        if not chosen or search.is_out_of_time:
            _tell_of_what_does_not_fit(search, open_)
            break
        tried |= {one.label for one in chosen}
        search.modelled |= {one.label: one.gain for one in chosen}
        members = [one.applied for one in chosen]
        if is_small(chosen):
            _add_together(search, members)
            continue
        holder = displaced_by(members[0].technique, search.stack)
        if holder is not None:
            search.challenge(members[0], holder)
            continue
        others = seconds_for_others(chosen, open_, search.seconds_for, search.left_seconds)
        with search.leaving(others):
            search.add_what_holds(members)
        if any(technique(member.technique).CARD.opaque for member in search.stack):
            continue  # a profile would not see what the model does
        if search.cumulative > PROFILE_AGAIN_AFTER * gained:
            gained = search.cumulative
            profile = _profile_of_the_stack(search, _PROFILE_SHARE) or profile
    undecided = one_per_slot_of(search.undecided())
    if len(undecided) > 1:
        _add_together(search, undecided)


def _tell_of_what_does_not_fit(search: StackSearch, open_: list[TechniqueCandidate]) -> None:
    """Why candidates were not begun: what they would take, and what is left."""
    for one in open_:
        seconds = search.seconds_for([one.applied])
        search.skipped[one.label] = (
            f"{NOT_BEGUN}: it takes some {quantity.seconds(seconds)}, and"
            f" {quantity.seconds(search.left_seconds)} were left"
        )
    if open_:
        names = ", ".join(dict.fromkeys(one.applied.technique for one in open_))
        search.notes.append(f"{NOT_BEGUN}, for want of time: {names}")
        search.note_that_time_ran_out()


def _open(
    search: StackSearch, found: list[TechniqueCandidate], tried: set[str]
) -> list[TechniqueCandidate]:
    """Candidates that were not asked about, and whose place is free."""
    left = []
    for candidate in found:
        if candidate.label in tried:
            continue
        opaque = candidate.card.opaque
        if not opaque and did_harm(search.rows, candidate.applied.technique):
            search.skipped[candidate.label] = "other settings of it did harm"
            continue
        if candidate.is_slow_to_start and gained_nothing(
            search.rows, candidate.applied.technique, search.threshold
        ):
            search.skipped[candidate.label] = "other settings of it gained nothing"
            continue
        taken = displaced_by(candidate.applied.technique, search.stack)
        if taken is not None and not (opaque or technique(taken).CARD.opaque):
            search.skipped[candidate.label] = f"{taken} is in its place"
            continue
        left.append(candidate)
    return left


def _split_groups(search: StackSearch) -> None:
    """Rows of their own for what was tried as one."""
    for row in search.groups():
        search.split(row)


def _add_together(search: StackSearch, together: list[Applied]) -> None:
    """What alone is too small to tell, as one; where that does harm or fails, parts of it."""
    if not together or search.is_out_of_time or not search.can_afford(together):
        return
    search.on_progress(f"trying together {key_of(together)}")
    row = search.add(together)
    if row.rounds == 0 or row.ci_high < 1:
        for part in search.parts_of(row, together):
            search.add_what_holds(part)


def _decide_what_is_open(search: StackSearch) -> None:
    """Longer for what looks like a gain and could not be told from none, while time is left."""
    for row in (*search.open_rows(), *search.open_groups()):
        least = max(1 + search.threshold, LEAST_WORTH_OF_A_ROW)
        if row.multiplier > least and row.rounds < MOST_ROUNDS and search.can_decide(row):
            search.decide(row)


def _finish(search: StackSearch, job: TuneJob) -> Ledger:
    """Prove the full stack against the script as it stood; write down what `run` needs."""
    row = prove_whole(search)
    if row is None:
        ledger = replace(search.ledger(), cumulative=1.0, cumulative_ci=(1.0, 1.0), complete=True)
        _write(job, ledger)
        return ledger
    ledger = replace(
        search.ledger(),
        tuned=_profile_of_the_stack(search),
        cumulative=row.multiplier,
        cumulative_ci=(row.ci_low, row.ci_high),
        step_seconds=(row.baseline_step_seconds, row.step_seconds),
        loss_check=row.loss_check,
        complete=True,
        stack=str(job.out / "stack.toml"),
        samples=search.samples(search.stack),
        notes=list(search.notes),
    )
    _write(job, ledger)
    if job.patch:
        # It reads source code with libcst, which takes as long to import as all the rest.
        from ridgeline.tune.prove import prove_patch

        ledger = prove_patch(search, ledger, _context(search), job.out)
    return ledger


def _at_pace(search: StackSearch, job: TuneJob, ledger: Ledger) -> Ledger:
    """The ledger with the calls at the period that the job asks for."""
    if job.period_seconds is None:
        return ledger
    found, notes = call_at_pace(
        search.pool,
        search.command,
        search.stack,
        period_seconds=job.period_seconds,
        seconds=job.paced_seconds,
        on_progress=search.on_progress,
    )
    return replace(ledger, paced=found, notes=[*ledger.notes, *notes])
