"""One search for the best stack: what is kept, what is split, what is left out again.

`tuner.py` decides what to try next; `questions.py` answers what is asked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from ridgeline.hardware.ceilings import Ceilings
from ridgeline.measure.wire import Applied
from ridgeline.records import Finding, Ledger, LedgerRow
from ridgeline.techniques import technique
from ridgeline.tune.candidates import key_of, label_of, slot_of
from ridgeline.tune.costs import Costs
from ridgeline.tune.forecast import foretold
from ridgeline.tune.questions import (
    NO_EFFECT,
    Questions,
    rounding_of,
    weakest_equivalence,
)
from ridgeline.tune.row import Asked, is_unclear, not_measured

COULD_BE_WORTHLESS = 1.1
"""A member that is this much faster beyond doubt is not left out once more: what came after it
would have to do the same work."""
WELL_BEGUN = 1.25
"""What is this much faster in rounds that prove nothing yet is gone on with at once."""
LONGER = 3.0
"""Times its usual time for a question that is asked once more."""


@dataclass(slots=True, kw_only=True)
class StackSearch(Questions):
    """A search in progress. The stack is a list of applied techniques in the order kept."""

    ceilings: Ceilings | None
    findings: list[Finding]
    on_row: Callable[[Ledger], None]
    """Hears of the ledger whenever it has grown."""
    stack: list[Applied] = field(default_factory=list)
    rows: list[LedgerRow] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Technique, or label → why it was not asked about."""

    @property
    def cumulative(self) -> float:
        """Product of the multipliers of the stack's members, each as it was added."""
        return math.prod(row.multiplier for row in self.rows_of_the_stack())

    def ask(
        self, a: list[Applied], b: list[Applied], *, stage: str = "add", name: str = ""
    ) -> LedgerRow:
        """The row for a question; both sides of the last one, the whole stack's, stay alive."""
        self.pool.kept = frozenset(self.variant_of(one).key for one in ([], self.stack))
        return Questions.ask(self, a, b, stage=stage, name=name)

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
        model = self.modelled_gain(members_of(row)) if row.stage == "add" else None
        if model is None:
            return row
        return replace(row, modelled=tuple(model), expected=foretold(list(row.members), model))

    def seconds_for(self, members: list[Applied], *, at_best: bool = False) -> float:
        """What it will take to measure these on top of the stack."""
        costs = Costs.of(self.baseline, self.pool.load_seconds)
        judged = [weakest_equivalence(members)] if members else []
        checked = self.verifier.is_prepared(judged, rounding_of(self.stack))
        return costs.seconds(
            members,
            self.rows,
            speedup=self.cumulative,
            checked=checked,
            at_best=at_best,
            lead_steps=self.pool.lead_of(self.variant_of(self.stack)),
        )

    def least_seconds_for(self, members: list[Applied]) -> float:
        """What it may take, where all goes well."""
        return self.seconds_for(members, at_best=True)

    def can_afford(self, members: list[Applied]) -> bool:
        """May the time that is left do to measure these on top of the stack?"""
        return self.least_seconds_for(members) <= self.left_seconds

    # -- the questions -----------------------------------------------------------------------

    def add(self, members: list[Applied]) -> LedgerRow:
        """Is the stack faster, and still right, with these on top, as one?"""
        row = self.ask(self.stack, [*self.stack, *members])
        if row.kept:
            self.stack.extend(members)
        self.rows.append(row)
        self.on_progress(f"{key_of(members)}: {row.reason}")
        self.on_row(self.ledger())
        return row

    def add_what_holds(self, members: list[Applied]) -> None:
        """Add these as one; where they do not hold, each half of them, and so on."""
        if not members or self.is_out_of_time or not self.can_afford(members):
            return
        self.on_progress(f"trying {key_of(members)}")
        row = self.add(members)
        well_begun = row.rounds and row.multiplier > WELL_BEGUN and row.ci_low <= 1 + self.threshold
        if well_begun and not row.kept and self.can_decide(row):
            row = self.decide(row)  # both sides are warm; parts of it would begin from the start
        for part in self.parts_of(row, members):
            self.add_what_holds(part)

    def parts_of(self, row: LedgerRow, members: list[Applied]) -> list[list[Applied]]:
        """What to try of members that did not hold as one: those that broke nothing, or halves."""
        if row.kept or len(members) == 1 or row.reason == NO_EFFECT:
            return []
        rest = self._without_what_broke(row, members)
        half = (len(members) + 1) // 2
        return [rest] if rest else [members[:half], members[half:]]

    def _without_what_broke(self, row: LedgerRow, members: list[Applied]) -> list[Applied]:
        """The members that the error of a failed stack does not speak of; the row is the others'.

        Empty: it did not fail, or its error speaks of none of them, or of all.
        """
        if row.rounds:
            return []
        broken = [
            member
            for member in members
            if any(part in row.reason for part in technique(member.technique).CARD.breaks_with)
        ]
        rest = [member for member in members if member not in broken]
        if not broken or not rest:
            return []
        place = next(i for i, one in enumerate(self.rows) if one is row)
        asked = Asked.of(broken, "", "add")
        self.rows[place] = not_measured(asked, row.reason, self.baseline.step_seconds.p50)
        return rest

    def challenge(self, member: Applied, holder: str) -> LedgerRow:
        """Is the stack faster with this member in the place of another of its slot?

        Both are measured beside the stack without either; the faster one stays.
        """
        held = next(one for one in self.stack if one.technique == holder)
        other = self._row_of(held)
        if other is None:  # it was measured as one with others: they get rows of their own first
            for row in self.groups():
                self.split(row)
            other = self._row_of(held)
        below = [one for one in self.stack if one is not held]
        self.on_progress(f"trying {key_of([member])} in the place of {holder}")
        row = self.ask(below, [*below, member])
        if row.kept and other is not None:
            faster = row.multiplier > other.multiplier
            winner, loser = (row, other) if faster else (other, row)
            beaten = replace(
                loser,
                kept=False,
                reason=f"{label_of(winner.technique, winner.options)} is faster in its place: "
                f"{winner.multiplier:.2f}× against {loser.multiplier:.2f}×",
            )
            if faster:
                self.stack[self.stack.index(held)] = member
                self.rows = [beaten if one is other else one for one in self.rows]
            else:
                row = beaten
        elif row.kept:
            row = replace(row, kept=False, reason=f"{holder} is in its place")
        self.rows.append(row)
        self.on_progress(f"{key_of([member])}: {row.reason}")
        self.on_row(self.ledger())
        return row

    def _row_of(self, member: Applied) -> LedgerRow | None:
        """The kept row of one member of the stack; None: it was measured with others."""
        return next(
            (
                row
                for row in self.rows_of_the_stack()
                if not row.together
                and (row.technique, row.options) == (member.technique, member.options)
            ),
            None,
        )

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
        while len(members) > 1 and not self.is_out_of_time and self.can_afford([]):
            rest, last = members[:-1], members[-1:]
            self.on_progress(f"what {key_of(last)} is worth on top of {key_of(rest)}")
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
            self.on_progress(f"{key_of(last or rest)}: {own.reason}")
            self.on_row(self.ledger())

    def groups(self) -> list[LedgerRow]:
        """Rows of the stack that were measured as one."""
        return [row for row in self.rows_of_the_stack() if row.together]

    def _without_idle(self, group: LedgerRow) -> LedgerRow:
        """The same row without members that changed nothing in this script.

        The run with the others alone would do the very same, so it is not started.
        """
        alive = self.pool.alive(self.variant_of(self.stack))
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
        self.answer_too([*below, *members], [*below, *busy], below, rest)
        return rest

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
        """Rows of one technique that could not be decided, the best of each slot that is free."""
        taken = {slot_of(member.technique) for member in self.stack}
        found: list[LedgerRow] = []
        unclear = [row for row in self._unclear if not row.together]
        for row in sorted(unclear, key=lambda row: -row.multiplier):
            slot = slot_of(row.technique)
            if slot not in taken:
                taken.add(slot)
                found.append(row)
        return found

    def open_groups(self) -> list[LedgerRow]:
        """Rows of several that could not be decided, and of which no part was measured since."""
        apart = {
            name for row in self.rows if row.rounds and not row.together for name in row.members
        }
        taken = apart | {member.technique for member in self.stack}
        return [row for row in self._unclear if row.together and taken.isdisjoint(row.members)]

    @property
    def _unclear(self) -> list[LedgerRow]:
        return [row for row in self.rows if is_unclear(row, self.threshold)]

    def can_decide(self, row: LedgerRow) -> bool:
        """Is there time for more rounds of a row that could not be decided?"""
        members = members_of(row)
        seconds = self.seconds_to_next_look(self.stack, [*self.stack, *members])
        if seconds is None:
            seconds = self.seconds_for(members)
        return seconds <= self.left_seconds

    def decide(self, row: LedgerRow) -> LedgerRow:
        """Ask on about a row that could not be decided, for longer; the answer takes its place.

        Where the time ends before a round of it, the row stays as it is.
        """
        members = members_of(row)
        self.on_progress(f"deciding {key_of(members)}")
        self.forget(self.stack, [*self.stack, *members])
        self.patience = LONGER
        try:
            found = self.add(members)
        finally:
            self.patience = 1.0
        old = row if found.rounds else found
        self.rows = [other for other in self.rows if other is not old]
        return found if found.rounds else row

    def leave_out_what_came_early(self) -> None:
        """Could a technique added later have made an earlier one worthless? Small gains could."""
        for row in self.rows_of_the_stack()[:-1]:
            if row.together or row.ci_low > COULD_BE_WORTHLESS:
                continue
            if self.is_out_of_time or not self.can_afford([]):
                return
            self._leave_out(row)

    def _leave_out(self, proved: LedgerRow) -> None:
        """Is the stack still faster with the member of this row than without it?"""
        member = next(m for m in self.stack if m.technique == proved.technique)
        self.on_progress(f"trying without {label_of(member.technique, member.options)}")
        without = [other for other in self.stack if other is not member]
        row = self.ask(without, self.stack, stage="leave-one-out")
        # What was proved once is not taken back by rounds in which its gain may be as well.
        if row.rounds and not row.kept and row.ci_high < proved.multiplier:
            self.stack[:] = without
        self.rows.append(row)
        self.on_progress(f"without {label_of(member.technique, member.options)}: {row.reason}")
        self.on_row(self.ledger())


def members_of(row: LedgerRow) -> list[Applied]:
    """The techniques of a row, with their options."""
    together = row.together or {row.technique: row.options}
    return [Applied(technique=name, options=options) for name, options in together.items()]
