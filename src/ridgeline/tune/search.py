"""One search: what was asked, what was measured, and the rows that came of it.

`tuner.py` decides what to ask next; here a question becomes a duel, a duel becomes a row. Every
question is one of two stacks of the same script, the second with something added to the first;
an answer is remembered under the two, whatever made it be asked, so nothing is measured twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from msgspec.structs import replace

from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.wire import Applied
from ridgeline.records import Finding, Ledger, LedgerRow, LossCheck, StepProfile
from ridgeline.techniques import Gain, Promise, technique
from ridgeline.tune.candidates import key_of, label_of, slot_of
from ridgeline.tune.duel import Contender, ContenderFailed, Duel, DuelPlan, duel
from ridgeline.tune.forecast import foretold
from ridgeline.tune.memory import Memory
from ridgeline.tune.pool import LEAST_PATIENCE_SECONDS, Pool
from ridgeline.tune.row import Asked, is_unclear, measured, needed, not_measured
from ridgeline.tune.verify import Verifier

Say = Callable[[str], None]
WEAKEST_FIRST: tuple[Promise, ...] = ("statistical", "reduced-precision", "rounding", "bit-equal")
WHOLE = "whole stack"
WHOLE_STAGE = "whole"
PATCHED = "patched script"
NO_EFFECT = "changed nothing in this script"
COULD_BE_WORTHLESS = 1.1
"""A member that is this much faster beyond doubt is not left out once more: what came after it
would have to do the same work."""
FULLY_WORTH, LEAST_WORTH = 0.15, 0.25
"""A question about a gain of this much gets all of its time; a smaller one in proportion, and no
less than this share."""
ROW_WITHIN, HEADLINE_WITHIN = 2.0, 1.25
"""How narrow the interval of a gain has to be (upper end over lower) before its question ends
early. The whole stack's is what a reader takes home."""
LONGER = 3.0
"""Times its usual time for a question that is asked once more."""
_COPIES_MUST_LEAVE = 0.9
"""Share of the device's memory that all copies of the script may take together."""


@dataclass(slots=True, kw_only=True)
class Search:
    """State of one search. The stack is a list of applied techniques in the order kept."""

    command: list[str]
    threshold: float
    duel_seconds: float
    """For the rounds of one question."""
    deadline: float
    """When the last question must be answered, on `monotonic`'s clock."""
    memory: Memory
    baseline: StepProfile
    ceilings: Ceilings | None
    findings: list[Finding]
    say: Say
    on_row: Callable[[Ledger], None]
    pool: Pool = field(default_factory=Pool)
    patience: float = 1.0
    """How many times its usual time the question at hand may take."""
    stack: list[Applied] = field(default_factory=list)
    rows: list[LedgerRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    expected: dict[str, Gain] = field(default_factory=dict)
    """What each candidate's model last expected, by name and settings in words."""
    verifier: Verifier = field(init=False)

    def __post_init__(self) -> None:
        self.verifier = Verifier(
            self.command,
            self.memory,
            self.say,
            step_seconds=self.baseline.step_seconds.p50,
            patience=lambda: max(self.pool.deadline - monotonic(), LEAST_PATIENCE_SECONDS),
        )

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
        return math.prod(row.multiplier for row in self.rows_of_the_stack())

    def rows_of_the_stack(self) -> list[LedgerRow]:
        """The kept rows that make up the stack, in the order kept."""
        names = {member.technique for member in self.stack}
        return [r for r in self.rows if r.kept and r.stage == "add" and names >= set(r.members)]

    def ledger(self) -> Ledger:
        """The ledger as it stands, incomplete."""
        rows, product = [], 1.0
        in_stack = self.rows_of_the_stack()
        for row in self.rows:
            product *= row.multiplier if any(row is kept for kept in in_stack) else 1.0
            rows.append(self._with_forecast(replace(row, cumulative=product)))
        direct = self.known([], self.stack)
        interval = (direct.ci_low, direct.ci_high) if direct else (product, product)
        return Ledger(
            baseline=self.baseline,
            tuned=None,
            rows=rows,
            cumulative=direct.multiplier if direct else product,
            cumulative_ci=interval if self.stack else (1.0, 1.0),
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

    def _with_forecast(self, row: LedgerRow) -> LedgerRow:
        """The row, and what was foretold of it."""
        model = self._modelled(members_of(row)) if row.stage == "add" else None
        if model is None:
            return row
        return replace(row, modelled=tuple(model), expected=foretold(list(row.members), model))

    def _modelled(self, members: list[Applied]) -> Gain | None:
        """What the models expect of members together; None where one was never thought of."""
        labels = [label_of(member.technique, member.options) for member in members]
        gains = [self.expected[label] for label in labels if label in self.expected]
        if len(gains) < len(labels):
            return None
        return Gain(math.prod(gain.low for gain in gains), math.prod(gain.high for gain in gains))

    # -- the questions -----------------------------------------------------------------------

    def add(self, members: list[Applied]) -> LedgerRow:
        """Is the stack faster, and still right, with these on top, as one?"""
        row = self.ask(self.stack, [*self.stack, *members])
        if row.kept:
            self.stack.extend(members)
        self.rows.append(row)
        self.say(f"{key_of(members)}: {row.reason}")
        self.on_row(self.ledger())
        return row

    def add_what_holds(self, members: list[Applied]) -> None:
        """Add these as one; where they do not hold, each half of them, and so on."""
        if not members or self.is_out_of_time:
            return
        self.say(f"trying {key_of(members)}")
        if self.add(members).kept or len(members) == 1:
            return
        half = (len(members) + 1) // 2
        self.add_what_holds(members[:half])
        self.add_what_holds(members[half:])

    def split(self, group: LedgerRow) -> None:
        """Give each member of a row that was measured as one a row of its own.

        From the last (weakest) on: the group without it beside the group, then what is left
        beside the stack below. A member without which the group is as fast is dropped. Where a
        question fails or the time runs out, what is left stays one row.
        """
        group = self._without_idle(group)
        members = members_of(group)
        start = self.stack.index(members[0])
        below, above = self.stack[:start], self.stack[start + len(members) :]
        place = next(i for i, row in enumerate(self.rows) if row is group)
        while len(members) > 1 and not self.is_out_of_time:
            rest, last = members[:-1], members[-1:]
            self.say(f"what {key_of(last)} is worth on top of {key_of(rest)}")
            own = self.ask([*below, *rest], [*below, *members])
            if own.rounds == 0:
                break
            left = self.ask(below, [*below, *rest])
            if not left.kept:
                if not own.kept:
                    break  # neither shows without the other
                rest, last = last, []
                own, left = left, self.ask(below, [*below, *rest])
                if not left.kept:
                    break
            self.rows[place : place + 1] = [left, own]
            members = rest
            if not own.kept:
                self.stack[:] = [*below, *members, *above]
                above = self.stack[start + len(members) :]
            else:
                above = [*last, *above]
            self.say(f"{key_of(last or rest)}: {own.reason}")
            self.on_row(self.ledger())

    def groups(self) -> list[LedgerRow]:
        """Rows of the stack that were measured as one."""
        return [row for row in self.rows_of_the_stack() if row.together]

    def _without_idle(self, group: LedgerRow) -> LedgerRow:
        """The same row without members that changed nothing in this script.

        The run with the others alone would do the very same, so it is not started.
        """
        alive = self.pool.alive(self._contender(self.stack))
        members = members_of(group)
        idle = [m for m in members if alive is not None and m.technique not in alive.applied]
        if not idle or len(idle) == len(members):
            return group
        start = self.stack.index(members[0])
        busy = [member for member in members if member not in idle]
        below = self.stack[:start]
        asked = Asked.of(busy, "", "add")
        rest = replace(
            group, technique=asked.technique, options=asked.options, together=asked.together
        )
        step = self.baseline.step_seconds.p50
        rows = [not_measured(Asked.of([one], "", "add"), NO_EFFECT, step) for one in idle]
        place = next(i for i, row in enumerate(self.rows) if row is group)
        self.rows[place : place + 1] = [rest, *rows]
        self.stack = [member for member in self.stack if member not in idle]
        self._answer_too([*below, *members], [*below, *busy], below, rest)
        return rest

    def _answer_too(
        self, was: list[Applied], now: list[Applied], below: list[Applied], row: LedgerRow
    ) -> None:
        """What was measured of one stack holds for another that does the same."""
        answers = self.memory.answers
        answers.rows[_question(below, now)] = row
        answers.samples[_question(below, now)] = answers.samples.get(_question(below, was), {})

    def undecided(self) -> list[Applied]:
        """What looks faster, but not beyond doubt; the best settings of each.

        Their losses were not looked at closely: those of all of them together will be.
        """
        return [
            Applied(technique=row.technique, options=row.options)
            for row in self.open_rows()
            if row.multiplier > 1
        ]

    def open_rows(self) -> list[LedgerRow]:
        """Rows that could not be decided, the best of each slot that is free."""
        taken = {slot_of(member.technique) for member in self.stack}
        found: list[LedgerRow] = []
        unclear = [row for row in self.rows if is_unclear(row, self.threshold)]
        for row in sorted(unclear, key=lambda row: -row.multiplier):
            slot = slot_of(row.technique)
            if slot not in taken:
                taken.add(slot)
                found.append(row)
        return found

    def decide(self, row: LedgerRow) -> None:
        """Ask once more about a row that could not be decided, for longer; it takes its place."""
        members = members_of(row)
        self.say(f"deciding {key_of(members)}")
        self.memory.answers.rows.pop(_question(self.stack, [*self.stack, *members]), None)
        self.patience = LONGER
        try:
            found = self.add(members)
        finally:
            self.patience = 1.0
        if found.rounds:
            self.rows = [other for other in self.rows if other is not row]

    def leave_out_what_came_early(self) -> None:
        """Could a technique added later have made an earlier one worthless? Small gains could."""
        for row in self.rows_of_the_stack()[:-1]:
            if row.together or row.ci_low > COULD_BE_WORTHLESS or self.is_out_of_time:
                continue
            member = next(m for m in self.stack if m.technique == row.technique)
            self._leave_out(member)

    def _leave_out(self, member: Applied) -> None:
        """Is the stack still faster with this member than without it?"""
        self.say(f"trying without {label_of(member.technique, member.options)}")
        without = [other for other in self.stack if other is not member]
        row = self.ask(without, self.stack, stage="leave-one-out")
        if not row.kept and row.rounds:
            self.stack[:] = without
        self.rows.append(row)
        self.say(f"without {label_of(member.technique, member.options)}: {row.reason}")
        self.on_row(self.ledger())

    def whole(self) -> LedgerRow:
        """How much faster is the full stack than the script as it stood?"""
        return self.ask([], self.stack, stage=WHOLE_STAGE, name=WHOLE)

    def patched(self, contender: Contender, placed: list[Applied]) -> LedgerRow:
        """Is the patched script faster than the script as it stood, and the same as its stack?

        A script that holds only a part of the stack has no twin to be compared with: it is
        held to what that part promises.
        """
        stacked = self.whole().loss_check
        twin = stacked if len(placed) == len(self.stack) else None

        def same_as_the_stack(result: Duel) -> LossCheck:
            assert twin is not None, "only asked where there is one"
            return self.verifier.check(
                "rounding", twin.candidate, result.b_losses, stack=_rounding(self.stack)
            )

        try:
            return self._measure(
                self._contender([]),
                contender,
                placed,
                PATCHED,
                "patch",
                check_of=same_as_the_stack if twin is not None else None,
            )
        finally:
            self.pool.drop(contender)

    # -- measuring and judging ---------------------------------------------------------------

    def ask(
        self, a: list[Applied], b: list[Applied], *, stage: str = "add", name: str = ""
    ) -> LedgerRow:
        """The row for a question: remembered, or measured now and remembered."""
        answers, key = self.memory.answers, _question(a, b)
        row = answers.rows.get(key)
        if row is None:
            added = [member for member in b if member not in a]
            row = self._measure(self._contender(a), self._contender(b), added, name, stage, key)
            if row.rounds or not self.is_out_of_time:
                answers.rows[key] = row
                self.memory.save()
        return self._as_asked(row, stage, name)

    def known(self, a: list[Applied], b: list[Applied]) -> LedgerRow | None:
        """The answer to a question that was asked already."""
        return self.memory.answers.rows.get(_question(a, b))

    def samples(self, b: list[Applied]) -> dict[str, list[float]]:
        """Step seconds of the script as it stood and of a stack, from their own duel."""
        found = self.memory.answers.samples.get(_question([], b), {})
        return {"baseline": found.get("a", []), "tuned": found.get("b", [])}

    def _contender(self, stack: list[Applied]) -> Contender:
        return Contender(command=self.command, stack=tuple(stack))

    def _as_asked(self, row: LedgerRow, stage: str, name: str) -> LedgerRow:
        """The same numbers, judged by what this stage needs."""
        kept = row.verified and row.ci_low > needed(stage, self.threshold)
        named = replace(row, technique=name, options={}, together={}) if name else row
        return replace(named, stage=stage, kept=kept)

    def _measure(
        self,
        a: Contender,
        b: Contender,
        added: list[Applied],
        name: str,
        stage: str,
        key: str | None = None,
        check_of: Callable[[Duel], LossCheck] | None = None,
    ) -> LedgerRow:
        """Measure now; a side that fails costs this row, not the search."""
        asked = Asked.of(added, name, stage)
        for attempt in (1, 2):
            try:
                result = duel(self.pool, a, b, self._plan(added, stage))
                break
            except ContenderFailed as failure:
                reason = str(failure.error)
                if self.is_out_of_time:
                    reason = "the budget ran out before it was measured"
                elif failure.side == "a" and attempt == 1:
                    # It ran before: something outside ended it.
                    self.say(f"starting again: {reason}")
                    continue
                return not_measured(asked, reason, self.baseline.step_seconds.p50)
        if result.had_no_effect:
            return not_measured(asked, NO_EFFECT, self.baseline.step_seconds.p50)
        check = check_of(result) if check_of is not None else self._check(result, a, added)
        row = measured(asked, result, check, self.threshold)
        if key is not None:
            self.memory.answers.samples[key] = {"a": result.a_steps, "b": result.b_steps}
        return row

    def _plan(self, added: list[Applied], stage: str) -> DuelPlan:
        model = self._modelled(added)
        worth = model.high - 1 if model is not None else FULLY_WORTH
        return DuelPlan(
            threshold=self.threshold,
            seconds=self.duel_seconds
            * self.patience
            * min(1.0, max(LEAST_WORTH, worth / FULLY_WORTH)),
            deadline=self.deadline,
            resident=self.copies_that_fit() > 1,
            say=self.say,
            within=HEADLINE_WITHIN if stage == WHOLE_STAGE else ROW_WITHIN,
        )

    def copies_that_fit(self) -> int:
        """How many copies of the script fit on the device side by side."""
        capacity, each = self.baseline.device_memory_bytes, self.baseline.peak_memory_bytes
        if not capacity or not each:
            return self.pool.room
        return max(1, min(self.pool.room, int(_COPIES_MUST_LEAVE * capacity / each)))

    def _check(self, result: Duel, a: Contender, added: list[Applied]) -> LossCheck:
        """Did what was added to A keep its promise?"""
        return self.verifier.check(
            weakest_promise(added),
            result.a_losses,
            result.b_losses,
            stack=_rounding(a.stack),
            thorough=result.interval.low > 1.0,
        )


def members_of(row: LedgerRow) -> list[Applied]:
    """The techniques of a row, with their options."""
    together = row.together or {row.technique: row.options}
    return [Applied(technique=name, options=options) for name, options in together.items()]


def _question(a: list[Applied], b: list[Applied]) -> str:
    """Two stacks, whatever the order in which their members were kept."""
    below, above = (sorted(stack, key=lambda member: member.technique) for stack in (a, b))
    return f"{key_of(below)} | {key_of(above)}"


def _rounding(stack: Sequence[Applied]) -> list[Applied]:
    """The members on which a small disturbance grows in another way than on the script alone."""
    return [one for one in stack if _promise_of(one) == "reduced-precision"]


def _promise_of(member: Applied) -> Promise:
    return technique(member.technique).CARD.promise_of(member.options)


def weakest_promise(stack: list[Applied]) -> Promise:
    """What a stack may do to the training result: as much as its boldest member."""
    promises = {_promise_of(member) for member in stack}
    return next(promise for promise in WEAKEST_FIRST if promise in promises)


__all__ = ["PATCHED", "Say", "Search", "key_of", "label_of", "slot_of", "weakest_promise"]
