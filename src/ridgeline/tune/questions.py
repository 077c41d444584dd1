"""Questions of one script, answered by a measurement or by memory.

Every question is one of two stacks of the same script, the second with something added to the
first. It becomes an A/B run, and that becomes a row of the ledger. An answer is remembered under
the two stacks, whatever made it be asked, so nothing is measured twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from msgspec.structs import replace

from ridgeline import quantity
from ridgeline.measure.statistics.sequential import next_look, side_by_side
from ridgeline.measure.wire import Applied, Updates
from ridgeline.records import LedgerRow, LossCheck, StepProfile
from ridgeline.techniques import Equivalence, Gain, technique
from ridgeline.tune.ab_plan import ABPlan
from ridgeline.tune.ab_result import ABRun
from ridgeline.tune.ab_run import run_ab
from ridgeline.tune.candidates import SHOWS_ALONE, key_of, label_of
from ridgeline.tune.costs import LEAST_BLOCK_SECONDS
from ridgeline.tune.memory import JobMemory
from ridgeline.tune.pool import LEAST_PATIENCE_SECONDS, Pool, Variant, VariantFailed
from ridgeline.tune.row import Asked, measured, needed, not_measured
from ridgeline.tune.verify import Verifier

OnProgress = Callable[[str], None]
WEAKEST_FIRST: tuple[Equivalence, ...] = (
    "statistical",
    "quantised",
    "reduced-precision",
    "rounding",
    "bit-equal",
)
WHOLE = "whole stack"
WHOLE_STAGE = "whole"
PATCHED = "patched script"
NO_EFFECT = "changed nothing in this script"
OUT_OF_TIME = "the budget ran out before it was measured"
OTHERS_TURN = "it was still preparing when the time began that others need; give more with --budget"
FULLY_WORTH, LEAST_WORTH = 0.15, 0.25
"""A question about a gain of this much gets all of its time; a smaller one in proportion, and no
less than this share."""
LEAST_WORTH_OF_A_ROW = 1.02
"""Gain below which nobody waits to have it told from none: that takes thirty rounds and more."""
ROW_WITHIN, HEADLINE_WITHIN = 2.0, 1.25
"""How narrow the interval of a gain has to be (upper end over lower) before its question ends
early. The whole stack's is what a reader takes home."""
_COPIES_MUST_LEAVE = 0.9
"""Share of the device's memory that all copies of the script may take together."""


@dataclass(slots=True, kw_only=True)
class Questions:
    """What is asked of one script, within one budget."""

    command: list[str]
    threshold: float
    """A row is kept that is faster by more than this beyond doubt."""
    ab_seconds: float
    """What the rounds of one question may take."""
    deadline: float
    """When the last question must be answered, on `monotonic`'s clock."""
    memory: JobMemory
    baseline: StepProfile
    on_progress: OnProgress
    pool: Pool
    """Whoever made it closes it."""
    patience: float = 1.0
    """How many times its usual time the question at hand may take."""
    notes: list[str] = field(default_factory=list)
    modelled: dict[str, Gain] = field(default_factory=dict)
    """What each candidate's model last expected, by name and settings in words."""
    runs: dict[str, ABRun] = field(default_factory=dict)
    """A/B runs that this process made, by question: one that decided nothing can go on."""
    verifier: Verifier = field(init=False)

    def __post_init__(self) -> None:
        self.verifier = Verifier(
            self.command,
            self.memory,
            self.on_progress,
            step_seconds=self.baseline.step_seconds.p50,
            calls=self.pool.calls,
            # What has shown its gain is checked in the time of all, not in its question's alone.
            patience=lambda: max(self.deadline - monotonic(), LEAST_PATIENCE_SECONDS),
        )

    @property
    def is_out_of_time(self) -> bool:
        """Has the budget run out? Said once in the notes."""
        if monotonic() < self.deadline:
            return False
        self.note_that_time_ran_out()
        return True

    def note_that_time_ran_out(self) -> None:
        """Note, once, that not everything was tried."""
        note = "the budget ran out before everything was tried; give more with --budget"
        if self.baseline.is_crowded:
            waited = quantity.percent(self.baseline.crowded_share)
            note += (
                f", or a quiet machine: it waited for a core for {waited} of a step, which other "
                "programs held"
            )
        if note not in self.notes:
            self.notes.append(note)

    @property
    def left_seconds(self) -> float:
        """What is left of the budget for questions."""
        return max(0.0, self.deadline - monotonic())

    def modelled_gain(self, members: list[Applied]) -> Gain | None:
        """What the models expect of members together; None where one was never thought of."""
        labels = [label_of(member.technique, member.options) for member in members]
        gains = [self.modelled[label] for label in labels if label in self.modelled]
        if len(gains) < len(labels):
            return None
        return Gain(math.prod(gain.low for gain in gains), math.prod(gain.high for gain in gains))

    @contextmanager
    def leaving(self, seconds: float) -> Iterator[None]:
        """Give the question at hand so much less than all the time that is left."""
        until = self.pool.deadline
        self.pool.deadline = min(until, self.deadline) - seconds
        try:
            yield
        finally:
            self.pool.deadline = until

    def ask(
        self, a: list[Applied], b: list[Applied], *, stage: str = "add", name: str = ""
    ) -> LedgerRow:
        """The row for a question: remembered, or measured now and remembered."""
        answers, key = self.memory.answers, _question(a, b)
        row = answers.rows.get(key)
        if row is None:
            added = [member for member in b if member not in a]
            row = self._measure(self.variant_of(a), self.variant_of(b), added, name, stage, key)
            was_cut_off = row.reason == OTHERS_TURN or self.is_out_of_time
            if row.rounds or not was_cut_off:
                answers.rows[key] = row
                self.memory.save()
        return self._as_asked(row, stage, name)

    def known(self, a: list[Applied], b: list[Applied]) -> LedgerRow | None:
        """The answer to a question that was asked already."""
        return self.memory.answers.rows.get(_question(a, b))

    def samples(self, b: list[Applied]) -> dict[str, list[float]]:
        """Step seconds of the script as it stood and of a stack, from their own A/B run."""
        found = self.memory.answers.samples.get(_question([], b), {})
        return {"baseline": found.get("a", []), "tuned": found.get("b", [])}

    def variant_of(self, stack: list[Applied]) -> Variant:
        """The script with a stack."""
        return Variant(command=self.command, stack=tuple(stack))

    def _as_asked(self, row: LedgerRow, stage: str, name: str) -> LedgerRow:
        """The same numbers, judged by what this stage needs."""
        kept = row.verified and row.ci_low > needed(stage, self.threshold)
        named = replace(row, technique=name, options={}, together={}) if name else row
        return replace(named, stage=stage, kept=kept)

    def _measure(
        self,
        a: Variant,
        b: Variant,
        added: list[Applied],
        name: str,
        stage: str,
        key: str | None = None,
        check_of: Callable[[ABRun], LossCheck] | None = None,
    ) -> LedgerRow:
        """Measure now; a side that fails costs this row, not the search."""
        asked = Asked.of(added, name, stage)
        begun = self.runs.pop(key, None) if key is not None else None
        for attempt in (1, 2):
            try:
                result = run_ab(self.pool, a, b, self._plan(added, stage), begun)
                break
            except VariantFailed as failure:
                reason = failure.reason
                if self.is_out_of_time:
                    reason = OUT_OF_TIME
                elif monotonic() >= self.pool.deadline:
                    reason = OTHERS_TURN
                elif failure.side == "a" and attempt == 1:
                    # It ran before: something outside ended it.
                    self.on_progress(f"starting again: {reason}")
                    continue
                return not_measured(asked, reason, self.baseline.step_seconds.p50)
        if result.had_no_effect:
            return not_measured(asked, result.refusal or NO_EFFECT, self.baseline.step_seconds.p50)
        check = check_of(result) if check_of is not None else self._check(result, a, added, stage)
        row = measured(asked, result, check, self.threshold)
        if key is not None:
            self.runs[key] = result
            self.memory.answers.samples[key] = {"a": result.a_steps, "b": result.b_steps}
            self.memory.answers.updates[key] = result.b_updates
            self.memory.answers.know_places(result.b_places)
        return row

    def _plan(self, added: list[Applied], stage: str) -> ABPlan:
        model = self.modelled_gain(added)
        worth = model.high - 1 if model is not None else FULLY_WORTH
        return ABPlan(
            threshold=self.threshold,
            seconds=self.ab_seconds
            * self.patience
            * min(1.0, max(LEAST_WORTH, worth / FULLY_WORTH)),
            deadline=self.deadline,
            resident=self.copies_that_fit() > 1,
            on_progress=self.on_progress,
            within=HEADLINE_WITHIN if stage == WHOLE_STAGE else ROW_WITHIN,
            least_worth=self._least_worth(stage),
        )

    def _least_worth(self, stage: str) -> float:
        """Gain below which rounds end; who is asked once more has to be worth more rounds."""
        if stage != "add":
            return 1.0
        return SHOWS_ALONE if self.patience > 1 else LEAST_WORTH_OF_A_ROW

    def copies_that_fit(self) -> int:
        """How many copies of the script fit on the device side by side."""
        capacity, each = self.baseline.device_memory_bytes, self.baseline.peak_memory_bytes
        if not capacity or not each:
            return self.pool.room
        return max(1, min(self.pool.room, int(_COPIES_MUST_LEAVE * capacity / each)))

    def _check(self, result: ABRun, a: Variant, added: list[Applied], stage: str) -> LossCheck:
        """Did what was added to A keep its equivalence?

        That of a whole is asked of undecided rounds, too: its rows may tell what it is worth.
        """
        looks_good = result.interval.high if stage == WHOLE_STAGE else result.interval.low
        return self.verifier.check(
            weakest_equivalence(added),
            result.a_losses,
            result.b_losses,
            stack=rounding_of(a.stack),
            thorough=looks_good > 1.0,
            updates=(result.a_updates, result.b_updates),
        )

    def answer_too(
        self, was: list[Applied], now: list[Applied], below: list[Applied], row: LedgerRow
    ) -> None:
        """What was measured of one stack holds for another that does the same."""
        answers = self.memory.answers
        answers.rows[_question(below, now)] = row
        answers.samples[_question(below, now)] = answers.samples.get(_question(below, was), {})
        updates = answers.updates.get(_question(below, was), Updates())
        answers.updates[_question(below, now)] = updates

    def forget(self, a: list[Applied], b: list[Applied]) -> None:
        """Ask this question again when it comes up; its rounds so far count."""
        self.memory.answers.rows.pop(_question(a, b), None)

    def seconds_to_next_look(self, a: list[Applied], b: list[Applied]) -> float | None:
        """What more rounds take until this question is looked at again.

        None: it was not asked by this process, or is at its last look.
        """
        run = self.runs.get(_question(a, b))
        look = next_look(run.rounds) if run is not None else None
        if run is None or look is None:
            return None
        before, after = side_by_side(run.a_rounds, run.b_rounds, run.interval.ratio)
        blocks = max(before, LEAST_BLOCK_SECONDS) + max(after, LEAST_BLOCK_SECONDS)
        return (look - run.rounds) * blocks

    def whole(self, stack: list[Applied]) -> LedgerRow:
        """How much faster is the full stack than the script as it stood?"""
        return self.ask([], stack, stage=WHOLE_STAGE, name=WHOLE)

    def patched(self, stack: list[Applied], variant: Variant, placed: list[Applied]) -> LedgerRow:
        """Is the patched script faster than the script as it stood, and the same as its stack?

        A script that holds only a part of the stack has no twin to be compared with: it is
        held to the equivalence of that part.
        """
        stacked = self.whole(stack).loss_check
        twin = stacked if len(placed) == len(stack) else None
        stepped_by = self.memory.answers.updates.get(_question([], stack), Updates())

        def same_as_the_stack(result: ABRun) -> LossCheck:
            assert twin is not None, "only asked where there is one"
            return self.verifier.check(
                "rounding",
                twin.candidate,
                result.b_losses,
                stack=rounding_of(stack),
                updates=(stepped_by, result.b_updates),
            )

        try:
            return self._measure(
                self.variant_of([]),
                variant,
                placed,
                PATCHED,
                "patch",
                check_of=same_as_the_stack if twin is not None else None,
            )
        finally:
            self.pool.drop(variant)


def _question(a: list[Applied], b: list[Applied]) -> str:
    """Two stacks, whatever the order in which their members were kept."""
    below, above = (sorted(stack, key=lambda member: member.technique) for stack in (a, b))
    return f"{key_of(below)} | {key_of(above)}"


def rounding_of(stack: Sequence[Applied]) -> list[Applied]:
    """The members on which a small disturbance grows in another way than on the script alone."""
    return [one for one in stack if _equivalence_of(one) == "reduced-precision"]


def _equivalence_of(member: Applied) -> Equivalence:
    return technique(member.technique).CARD.equivalence_of(member.options)


def weakest_equivalence(stack: list[Applied]) -> Equivalence:
    """What a stack may do to the training result: as much as its boldest member."""
    equivalences = {_equivalence_of(member) for member in stack}
    return next(equivalence for equivalence in WEAKEST_FIRST if equivalence in equivalences)
