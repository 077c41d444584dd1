"""One search: what was asked, what was measured, and the rows that came of it.

`tuner.py` decides what to ask next; here a question becomes a duel, a duel becomes a row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from msgspec.structs import replace

from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.statistics import RatioInterval
from ridgeline.measure.wire import Applied
from ridgeline.records import Finding, Ledger, LedgerRow, LossCheck, StepProfile
from ridgeline.records.ledger import Options
from ridgeline.techniques import Promise, Technique, technique
from ridgeline.tune.duel import Contender, ContenderFailed, Duel, DuelPlan, duel
from ridgeline.tune.memory import Memory
from ridgeline.tune.verify import Verifier

Say = Callable[[str], None]
Row = Callable[[Duel], LedgerRow]
WEAKEST_FIRST: tuple[Promise, ...] = ("statistical", "reduced-precision", "rounding", "bit-equal")
_COPIES_MUST_LEAVE = 0.9
"""Share of the device's memory that two copies of the script may take together."""


@dataclass(slots=True, kw_only=True)
class Search:
    """State of one search. The stack is a list of applied techniques in the order kept."""

    command: list[str]
    threshold: float
    duel_seconds: float
    deadline: float
    memory: Memory
    baseline: StepProfile
    ceilings: Ceilings | None
    findings: list[Finding]
    say: Say
    on_row: Callable[[Ledger], None]
    stack: list[Applied] = field(default_factory=list)
    rows: list[LedgerRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    verifier: Verifier = field(init=False)

    def __post_init__(self) -> None:
        self.verifier = Verifier(self.command, self.memory, self.say)

    @property
    def is_out_of_time(self) -> bool:
        """Has the budget run out? Said once in the notes."""
        if monotonic() < self.deadline:
            return False
        note = "the budget ran out before everything was tried; give more with --budget"
        if note not in self.notes:
            self.notes.append(note)
        return True

    @property
    def cumulative(self) -> float:
        """Product of the multipliers of the stack's members, each as it was added."""
        names = {member.technique for member in self.stack}
        kept = [r for r in self.rows if r.kept and r.stage == "add" and names >= set(r.members)]
        return math.prod(row.multiplier for row in kept)

    def ledger(self) -> Ledger:
        """The ledger as it stands, incomplete."""
        return Ledger(
            baseline=self.baseline,
            tuned=None,
            rows=list(self.rows),
            cumulative=self.cumulative,
            cumulative_ci=(self.cumulative, self.cumulative),
            loss_check=None,
            findings=self.findings,
            stack=None,
            report=None,
            patch=None,
            environment=self.baseline.environment,
            complete=False,
            stack_rows=[member.technique for member in self.stack],
            notes=list(self.notes),
            skipped=dict(self.skipped),
        )

    # -- the three questions -----------------------------------------------------------------

    def add(self, module: Technique, options: Options) -> None:
        """Is the stack faster, and still right, with this technique on top?"""
        card = module.CARD
        added = Applied(technique=card.name, options=options)
        row = self._ask(
            f"add {key_of(self.stack)} + {key_of([added])}",
            (self.stack, [*self.stack, added]),
            lambda result: self._judge(result, self._check(result, [added]), added, "add"),
            lambda reason: self._not_measured(added, reason, "add"),
        )
        if row.kept:
            self.stack.append(added)
            row = replace(row, cumulative=self.cumulative * row.multiplier)
        self.rows.append(row)
        self.say(f"{label_of(card.name, options)}: {row.reason}")
        self.on_row(self.ledger())

    def add_together(self) -> list[Applied]:
        """Are the techniques that alone were too small to tell worth having together?

        Returns those that were added: all of them or none.
        """
        members = self._undecided()
        if len(members) < 2 or self.is_out_of_time:
            return []
        self.say(f"trying together {key_of(members)}")
        asked = Applied(technique=" + ".join(member.technique for member in members))
        row = self._ask(
            f"add together {key_of(self.stack)} + {key_of(members)}",
            (self.stack, [*self.stack, *members]),
            lambda result: self._judge(result, self._check(result, members), asked, "add"),
            lambda reason: self._not_measured(asked, reason, "add"),
        )
        together = {member.technique: member.options for member in members}
        cumulative = self.cumulative * (row.multiplier if row.kept else 1.0)
        self.rows.append(replace(row, together=together, cumulative=cumulative))
        if row.kept:
            self.stack.extend(members)
        self.say(f"together: {row.reason}")
        self.on_row(self.ledger())
        return members if row.kept else []

    def _undecided(self) -> list[Applied]:
        """Verified, and neither clearly faster nor clearly not; the best settings of each."""
        taken = {slot_of(member.technique) for member in self.stack}
        found: list[Applied] = []
        for row in sorted(self.rows, key=lambda row: -row.multiplier):
            slot = slot_of(row.technique)
            unclear = row.verified and not row.kept and row.ci_high > 1 + self.threshold
            if row.stage == "add" and unclear and slot not in taken:
                taken.add(slot)
                found.append(Applied(technique=row.technique, options=row.options))
        return found

    def leave_out(self, member: Applied) -> None:
        """Is the stack still faster with this member than without it?"""
        card = technique(member.technique).CARD
        without = [other for other in self.stack if other is not member]
        row = self._ask(
            f"leave {key_of(self.stack)} - {key_of([member])}",
            (without, self.stack),
            lambda result: self._judge(
                result, self._check(result, [member], without), member, "leave-one-out"
            ),
            lambda reason: self._not_measured(member, reason, "leave-one-out"),
        )
        if not row.kept:
            self.stack.remove(member)
        self.rows.append(replace(row, cumulative=self.cumulative))
        self.say(f"without {label_of(card.name, member.options)}: {row.reason}")
        self.on_row(self.ledger())

    def whole(self) -> tuple[LedgerRow, dict[str, list[float]]]:
        """How much faster is the full stack than the script as it stood? And the step times."""
        key = f"whole {key_of(self.stack)}"
        all_of_it = Applied(technique="whole stack")
        row = self._ask(
            key,
            ([], self.stack),
            lambda result: self._judge(
                result, self._check(result, self.stack, []), all_of_it, "whole"
            ),
            lambda reason: self._not_measured(all_of_it, reason, "whole"),
        )
        return row, self.memory.answers.samples.get(key, {})

    def patched(self, contender: Contender, placed: list[Applied]) -> LedgerRow:
        """Is the patched script faster than the script as it stood, and the same as its stack?

        A script that holds only a part of the stack has no twin to be compared with: it is
        held to what that part promises.
        """
        asked = Applied(technique="patched script")
        as_it_stood = Contender(command=self.command)
        try:
            result = duel(as_it_stood, contender, self._plan())
        except ContenderFailed as failure:
            if failure.side == "a":
                raise failure.error from None
            return self._not_measured(asked, str(failure.error), "patch")
        stacked = self.whole()[0].loss_check
        if len(placed) == len(self.stack) and stacked is not None:
            check = self.verifier.check(
                "rounding", stacked.candidate, result.b_losses, stack=_rounding(self.stack)
            )
        else:
            check = self._check(result, placed, [])
        return self._judge(result, check, asked, "patch")

    # -- measuring and judging ---------------------------------------------------------------

    def _ask(
        self,
        key: str,
        stacks: tuple[list[Applied], list[Applied]],
        judge: Row,
        failed: Callable[[str], LedgerRow],
    ) -> LedgerRow:
        """The row for a question: remembered, or measured now and remembered."""
        answers = self.memory.answers
        if key in answers.rows:
            return answers.rows[key]
        a, b = (Contender(command=self.command, stack=tuple(stack)) for stack in stacks)
        try:
            result = duel(a, b, self._plan())
        except ContenderFailed as failure:
            if failure.side == "a":
                raise failure.error from None
            row = failed(str(failure.error))
        else:
            row = judge(result)
            answers.samples[key] = {"a": result.a_steps, "b": result.b_steps}
        answers.rows[key] = row
        self.memory.save()
        return row

    def _plan(self) -> DuelPlan:
        return DuelPlan(
            threshold=self.threshold,
            seconds=self.duel_seconds,
            resident=self._two_fit(),
            say=self.say,
        )

    def _two_fit(self) -> bool:
        """Do two copies of the script fit on the device side by side?"""
        capacity = self.baseline.device_memory_bytes
        return not capacity or (2 * self.baseline.peak_memory_bytes < _COPIES_MUST_LEAVE * capacity)

    def _check(
        self, result: Duel, added: list[Applied], on: list[Applied] | None = None
    ) -> LossCheck:
        """Did what was added on top of a stack (None: the present one) keep its promise?"""
        return self.verifier.check(
            weakest_promise(added),
            result.a_losses,
            result.b_losses,
            stack=_rounding(self.stack if on is None else on),
        )

    def _judge(self, result: Duel, check: LossCheck, asked: Applied, stage: str) -> LedgerRow:
        if result.had_no_effect:
            return self._not_measured(asked, "changed nothing in this script", stage)
        interval = result.interval
        needed = 1 + self.threshold if stage == "add" else 1.0
        finite = result.b_non_finite == 0
        verified = check.passed and finite
        return LedgerRow(
            technique=asked.technique,
            options=asked.options,
            multiplier=interval.ratio,
            ci_low=interval.low,
            ci_high=interval.high if math.isfinite(interval.high) else interval.ratio,
            cumulative=self.cumulative,
            step_seconds=statistics.median(result.b_steps or [0.0]),
            baseline_step_seconds=statistics.median(result.a_steps or [0.0]),
            peak_memory_bytes=result.b_peak_memory_bytes,
            verified=verified,
            verification=f"{check.kind}: {check.summary}; gradients "
            + ("finite" if finite else "not finite"),
            kept=interval.low > needed and verified,
            reason=_reason(interval, check, finite=finite, needed=needed),
            stage=stage,
            loss_check=check,
            rounds=interval.rounds,
        )

    def _not_measured(self, asked: Applied, reason: str, stage: str) -> LedgerRow:
        return LedgerRow(
            technique=asked.technique,
            options=asked.options,
            multiplier=1.0,
            ci_low=0.0,
            ci_high=1.0,
            cumulative=self.cumulative,
            step_seconds=self.baseline.step_seconds.p50,
            baseline_step_seconds=self.baseline.step_seconds.p50,
            peak_memory_bytes=0,
            verified=False,
            verification="not measured",
            kept=False,
            reason=reason,
            stage=stage,
        )


def _reason(interval: RatioInterval, check: LossCheck, *, finite: bool, needed: float) -> str:
    if interval.rounds == 0:
        return "no round could be measured: the script is too short, or the time ran out"
    measured = f"{interval.ratio:.3f}× [{interval.low:.3f}, {interval.high:.3f}]"
    if not check.passed:
        return f"rejected, {check.summary} ({measured})"
    if not finite:
        return f"rejected, gradients are not finite ({measured})"
    if interval.low > needed:
        return f"kept, {measured}"
    return f"not faster beyond doubt: {measured}"


def _rounding(stack: list[Applied]) -> list[Applied]:
    """The members on which a small disturbance grows in another way than on the script alone."""
    return [one for one in stack if technique(one.technique).CARD.promise == "reduced-precision"]


def weakest_promise(stack: list[Applied]) -> Promise:
    """What a stack may do to the training result: as much as its boldest member."""
    promises = {technique(member.technique).CARD.promise for member in stack}
    return next(promise for promise in WEAKEST_FIRST if promise in promises)


def slot_of(name: str) -> str:
    """What a technique excludes others from: its slot, or its own name."""
    return technique(name).CARD.slot or name


def key_of(stack: list[Applied]) -> str:
    """A stack in words."""
    return " ".join(label_of(m.technique, m.options) for m in stack) or "nothing"


def label_of(name: str, options: Options) -> str:
    """A technique with its options in words."""
    settings = ",".join(f"{key}={value}" for key, value in sorted(options.items()))
    return f"{name}({settings})" if settings else name
