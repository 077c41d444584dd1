"""The whole job: profile the script, try every technique that fits, keep what proves itself.

1. Profile the script as it stands and diagnose it.
2. Candidates are the techniques that apply, most promising first (geometric mean of the
   expected gain's two ends). Each is measured against the stack so far in a duel, and kept when
   the lower end of its confidence interval clears the threshold and its losses verify.
3. Techniques that alone were too small to tell are tried together.
4. Each member but the last is left out once more: a technique added later may have made it
   worthless. One that no longer proves itself is dropped.
5. The script as it stood against the full stack, directly: that is the cumulative figure.
6. On request, the same stack as a diff of the script, itself run, verified and measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from msgspec.structs import replace

from ridgeline.diagnose import diagnose
from ridgeline.errors import InputError
from ridgeline.hardware.ceilings import Ceilings, installed_torch
from ridgeline.measure.profile import Plan, measure
from ridgeline.measure.wire import Applied, Session
from ridgeline.records import Ledger, StepProfile
from ridgeline.records.ledger import Options
from ridgeline.records.store import write_record
from ridgeline.techniques import Context, Technique, all_techniques, options_of, technique
from ridgeline.tune.billing import UNPRICED, RunTerms, billed
from ridgeline.tune.duel import silent
from ridgeline.tune.install import ENTRY
from ridgeline.tune.memory import Memory, fingerprint
from ridgeline.tune.prove import prove_patch
from ridgeline.tune.search import Say, Search, label_of
from ridgeline.tune.stack import stack_of, write_stack

MIN_EXPECTED_GAIN = 1.01
"""A technique that at best brings less than 1 % is not worth a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to tune and within which limits."""

    command: list[str]
    out: Path
    """Folder for ledger.json, stack.toml, report.html, tuned.patch; made when missing."""
    budget_seconds: float = 900.0
    """Wall time for the search; what is under way is finished, nothing new is begun."""
    threshold: float = 0.01
    """A technique is kept when it is faster by more than this beyond doubt (0.01: 1 %)."""
    only: tuple[str, ...] = ()
    """Try only these techniques; empty: all that apply."""
    patch: bool = False
    """Also write the stack as a diff of the script, proved like a technique."""
    terms: RunTerms = UNPRICED
    """Length and price of the whole run, for the ledger's bill."""

    def __post_init__(self) -> None:
        if not self.budget_seconds > 0:
            raise InputError(f"--budget must be above 0 seconds, is {self.budget_seconds:g}")
        if not 0 <= self.threshold < 1:
            raise InputError(f"--threshold must be in [0, 1), is {self.threshold:g}")
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out}: is a file; give a folder")
        for name in self.only:
            technique(name)


def tune(job: Job, *, ceilings: Ceilings | None = None, say: Say = silent) -> Ledger:
    """Tune one script; returns the ledger and leaves it in the job's folder.

    `ledger.json` is written after every measurement, so an interruption loses nothing; running
    the same job again resumes.

    Raises:
        InputError: the script or an option is unusable.
        ChildDied: the script as it stands was killed.
    """
    job.out.mkdir(parents=True, exist_ok=True)
    search = _begin(job, ceilings, say)
    for module, options in _candidates(search, job):
        if search.is_out_of_time:
            break
        if not _is_displaced(search, module, options):
            say(f"trying {label_of(module.CARD.name, options)}")
            search.add(module, options)
    last = search.add_together() or search.stack[-1:]
    for member in search.stack[: len(search.stack) - len(last)]:
        if len(search.stack) < 2 or search.is_out_of_time:
            break
        search.leave_out(member)
    ledger = billed(_finish(search, job), job.terms)
    write_record(job.out / "ledger.json", ledger)
    search.memory.forget()
    return ledger


def _begin(job: Job, ceilings: Ceilings | None, say: Say) -> Search:
    """The search with its baseline profile, measured now or remembered."""
    memory = Memory(job.out / "answers.json", fingerprint(job.command, installed_torch()))
    if memory.lost is not None:
        say(f"measuring anew: what an earlier job had measured is damaged ({memory.lost})")
    if memory.resumed:
        say(f"resuming: {len(memory.answers.rows)} measurements are known already")
    baseline = memory.answers.baseline
    if baseline is None:
        say("profiling the script as it stands")
        seconds = max(30.0, min(120.0, 0.25 * job.budget_seconds))
        baseline = _profile(job, [], ceilings, Plan(budget_seconds=seconds), say)
        memory.answers.baseline = baseline
        memory.save()
    search = Search(
        command=job.command,
        threshold=job.threshold,
        duel_seconds=max(60.0, 0.3 * job.budget_seconds),
        deadline=monotonic() + job.budget_seconds,
        memory=memory,
        baseline=baseline,
        ceilings=ceilings,
        findings=list(diagnose([baseline], ceilings).findings),
        say=say,
        on_row=_writer(job),
    )
    search.on_row(search.ledger())
    return search


def _writer(job: Job) -> Callable[[Ledger], None]:
    return lambda ledger: write_record(job.out / "ledger.json", billed(ledger, job.terms))


def _profile(
    job: Job, stack: list[Applied], ceilings: Ceilings | None, plan: Plan, say: Say
) -> StepProfile:
    session = Session(stack=stack, fix_seed=True)
    return measure(
        job.command, plan, session=session, entry=ENTRY, ceilings=ceilings, progress=say
    )[0]


def _context(search: Search) -> Context:
    return Context(
        profile=search.baseline,
        findings=tuple(search.findings),
        ceilings=search.ceilings,
        stack={member.technique: member.options for member in search.stack},
    )


def _candidates(search: Search, job: Job) -> list[tuple[Technique, Options]]:
    """Techniques that apply, most promising first; why others do not is kept."""
    context = _context(search)
    ranked: list[tuple[float, Technique, Options]] = []
    for name, module in all_techniques().items():
        if job.only and name not in job.only:
            continue
        fits = module.applies(context)
        if not fits.ok:
            search.skipped[name] = fits.reason
            continue
        for options in options_of(module, context):
            gain = module.predict(context, options)
            if gain.high < MIN_EXPECTED_GAIN:
                best = f"worth {gain.high - 1:.1%} at best"
                search.skipped[label_of(name, options)] = best
                continue
            ranked.append((math.sqrt(gain.low * gain.high), module, options))
    ranked.sort(key=lambda row: -row[0])
    return [(module, options) for _, module, options in ranked]


def _is_displaced(search: Search, module: Technique, options: Options) -> bool:
    """Is the technique's place taken by a member of the stack?"""
    card = module.CARD
    for member in search.stack:
        other = technique(member.technique).CARD
        if other.name == card.name or (card.slot is not None and other.slot == card.slot):
            search.skipped[label_of(card.name, options)] = f"{other.name} is in its place"
            return True
    return False


def _finish(search: Search, job: Job) -> Ledger:
    """Prove the full stack against the script as it stood; write down what `run` needs."""
    if not search.stack:
        ledger = replace(search.ledger(), cumulative=1.0, cumulative_ci=(1.0, 1.0))
        return replace(ledger, complete=True, loss_check=None)
    search.say("measuring the full stack against the script as it stood")
    row, samples = search.whole()
    if not row.kept:
        # Members that proved themselves one by one but not together are no stack.
        search.notes.append(f"the whole stack did not hold: {row.reason}")
        search.stack.clear()
        return replace(search.ledger(), cumulative=1.0, cumulative_ci=(1.0, 1.0), complete=True)
    answers = search.memory.answers
    if answers.tuned is None:
        search.say("profiling the tuned script")
        plan = Plan(steps=20, budget_seconds=60.0)
        answers.tuned = _profile(job, search.stack, search.ceilings, plan, search.say)
        search.memory.save()
    ledger = replace(
        search.ledger(),
        tuned=answers.tuned,
        cumulative=row.multiplier,
        cumulative_ci=(row.ci_low, row.ci_high),
        loss_check=row.loss_check,
        complete=True,
        stack=str(job.out / "stack.toml"),
        samples={"baseline": samples.get("a", []), "tuned": samples.get("b", [])},
    )
    write_stack(job.out / "stack.toml", stack_of(ledger))
    if job.patch:
        ledger = prove_patch(search, ledger, _context(search), job.out)
    return ledger
