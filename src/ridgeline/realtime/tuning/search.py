"""The search tries each cure in turn on top of what survived: measured, compared, kept or not.

The stack grows in the order of the cures' stages. After each cure that is kept the pipeline is
watched anew, so that the next cure judges what it would really meet: after batching a module is
called once, after sharing two of three encoders are not called at all. Of a slot's cures the
fastest stays. At the end baseline and whole stack are measured directly, their results compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic

import msgspec
import numpy as np

from ridgeline.errors import InputError, RidgelineError
from ridgeline.realtime.cures import PLACES, CureCard, CureStage, all_cures, cure, places_of
from ridgeline.realtime.tuning import wire
from ridgeline.realtime.tuning.asked import PipelineTuning
from ridgeline.realtime.tuning.budget import TimeBudget
from ridgeline.realtime.tuning.figures import TimedFrames, figures_of, figures_seconds
from ridgeline.realtime.tuning.measured import (
    SideBySide,
    measure,
    p99_over_p50,
    round_seconds,
    verdict_words,
)
from ridgeline.realtime.tuning.sides import SideProcess, TimeRanOut
from ridgeline.records.ledger import Options
from ridgeline.records.realtime_ledger import CureRow, FrameFigures

_HEADROOM = 1.25
"""Period over the latency of the slower side: frames do not wait for each other."""
_OBSERVED_FRAMES = 6
_PROOF_ROUNDS = 12
_FEWEST_PROOF_ROUNDS = 3
"""Rounds of the proof for which time is kept."""
_MOST_SETTINGS = 4
"""Settings of one cure that are tried at most."""
_MOST_PLACES = 4
"""Modules that a cure is tried on alone."""


@dataclass(slots=True)
class _Variant:
    """A stack with the process that runs it."""

    stack: list[wire.AppliedCure]
    side: SideProcess
    opened: wire.SideOpened
    results: Path
    offers: dict[str, wire.CureOffer] = field(default_factory=dict)


class PipelineSearch:
    """A tuning job under way."""

    def __init__(
        self, job: PipelineTuning, on_progress: Callable[[str], None], folder: Path
    ) -> None:
        self._job, self._on_progress, self._folder = job, on_progress, folder
        self._time = TimeBudget(job.budget_seconds)
        self._count = 0
        self._open: list[SideProcess] = []
        self.rows: list[CureRow] = []
        self.skipped: dict[str, str] = {}
        self.notes: list[str] = []
        self.interrupted = False
        try:
            self.base = self._start([], self._time.end)
        except TimeRanOut:
            raise InputError(
                f"--budget {job.budget_seconds:g} s: the pipeline took longer to be started and"
                " recorded alone; give more, or fewer --frames"
            ) from None
        self.best = self.base
        few = _FEWEST_PROOF_ROUNDS * round_seconds("p50", self._period(self.base))
        self._time.proof_seconds = few + 2 * figures_seconds(self.base.opened)
        on_progress(f"{self.base.opened.name}: recorded {job.frames} frames of {job.pipeline}")

    # -- the search --------------------------------------------------------------------------------

    def search(self) -> None:
        """Try every cure that applies, while there is time."""
        self._watch()
        for name, known in all_cures().items():
            if self._job.only and name not in self._job.only:
                self.skipped[name] = "not asked for"
                continue
            if self._late(known.CARD):
                self.skipped[name] = "the time ran out"
                continue
            offer = self.best.offers[name]
            if not offer.options:
                self.skipped[name] = offer.reason
                continue
            self._try(known.CARD, offer.options[:_MOST_SETTINGS])

    def _try(self, card: CureCard, options: list[Options]) -> None:
        """The settings of one cure; alternatives of a slot replace each other, others end it.

        What fails or changes results on several modules together is tried on each alone.
        """
        for one in options:
            if self._late(card):
                return
            row = self._row(card, one)
            if row.kept and not card.slot:
                return
            places = places_of(one)
            if row.kept or row.verified or len(places) < 2:
                continue
            for place in places[:_MOST_PLACES]:
                if self._late(card):
                    return
                self._row(card, {**one, PLACES: place})

    def _late(self, card: CureCard) -> bool:
        once = round_seconds(card.watched, self._period(self.best))
        return self._time.late_for(card.stage, once)

    def _row(self, card: CureCard, options: Options) -> CureRow:
        """Measure one setting on top of the stack; what is kept becomes the stack."""
        stack, gone = self._stack_with(card, options)
        self._on_progress(f"{card.name} {_said(options)}: starting".replace("  ", " "))
        trial: _Variant | None = None
        try:
            trial = self._start(stack, self._time.end_of(card.stage))
            row = self._measured(card, options, trial)
        except RidgelineError as error:
            row = _not_measured(card, options, f"not measured: {error}", self._frame_seconds)
        self._on_progress(f"{card.name} {_said(options)}: {row.reason}".replace("  ", " "))
        if trial is not None and row.kept:
            self._keep(trial, gone)
        elif trial is not None:
            self._close(trial)
        self.rows.append(row)
        return row

    def _stack_with(
        self, card: CureCard, options: Options
    ) -> tuple[list[wire.AppliedCure], list[wire.AppliedCure]]:
        """The stack with a cure, and members of it that had to go: one slot, the same modules."""
        added = wire.AppliedCure(name=card.name, options=options)
        stack, gone, places = [added], [], set(places_of(options))
        for one in self.best.stack:
            mate = card.slot and cure(one.name).CARD.slot == card.slot
            left = [place for place in places_of(one.options) if place not in places]
            if not mate or len(left) == len(places_of(one.options)) > 0:
                stack.append(one)
                continue
            gone.append(one)
            if left:
                rest: Options = {**one.options, PLACES: ", ".join(left)}
                stack.append(wire.AppliedCure(name=one.name, options=rest))
        stack.sort(key=lambda one: cure(one.name).CARD.stage)
        return stack, gone

    def _keep(self, trial: _Variant, gone: list[wire.AppliedCure]) -> None:
        """The trial becomes the stack."""
        self.rows = [
            msgspec.structs.replace(row, superseded=True)
            if row.kept and any((row.cure, row.options) == (one.name, one.options) for one in gone)
            else row
            for row in self.rows
        ]
        if self.best is not self.base:
            self._close(self.best)
        self.best = trial
        if monotonic() < self._time.end_of(CureStage.RUN):
            self._watch()

    def _measured(self, card: CureCard, options: Options, trial: _Variant) -> CureRow:
        checked = trial.side.ask(
            wire.CompareResults(
                other=str(self.base.results),
                cure=self._strictest(trial),
                may_fall=self._job.may_fall,
            ),
            wire.ResultsCompared,
            until=self._time.end_of(card.stage),
        )
        if not checked.passed:
            reason = f"rejected, {checked.summary}"
            return _not_measured(card, options, reason, self._frame_seconds, checked.summary)
        period = self.base.opened.period_seconds if card.watched == "age" else self._period(trial)
        found = measure(
            self.best.side,
            trial.side,
            watched=card.watched,
            period_seconds=period,
            bar=1 + self._job.threshold,
            until=self._time.end_of(card.stage),
            on_progress=lambda text: self._on_progress(f"{card.name}: {text}"),
        )
        if not found.a_rounds:
            raise TimeRanOut("the time ran out")
        kept = found.interval.low > 1 + self._job.threshold
        product = 1.0 if card.watched in ("p99", "age") else found.interval.ratio
        return CureRow(
            cure=card.name,
            options=options,
            watched=card.watched,
            multiplier=found.interval.ratio,
            ci_low=found.interval.low,
            ci_high=found.interval.high if np.isfinite(found.interval.high) else None,
            cumulative=self._cumulative * (product if kept else 1.0),
            frame_seconds=median(found.b_latencies),
            p99_over_p50=(p99_over_p50(found.a_latencies), p99_over_p50(found.b_latencies)),
            rounds=found.interval.rounds,
            verified=True,
            verification=checked.summary,
            kept=kept,
            reason=verdict_words(found, kept=kept, bar=1 + self._job.threshold),
            costs=card.costs,
        )

    def _strictest(self, trial: _Variant) -> str:
        """Whose check holds for the whole stack: that of its member that may change most.

        The results of a stack are compared with the baseline's and not with those of the stack
        above, so that small losses do not add up unseen.
        """
        return max((one.name for one in trial.stack), key=_freedom)

    # -- the last proof ----------------------------------------------------------------------------

    def prove(self) -> tuple[SideBySide | None, wire.ResultsCompared | None]:
        """Baseline and whole stack side by side; None where nothing was kept."""
        if self.best is self.base:
            return None, None
        self._on_progress("baseline and whole stack, side by side")
        checked = self.best.side.ask(
            wire.CompareResults(
                other=str(self.base.results),
                cure=self._strictest(self.best),
                may_fall=self._job.may_fall,
            ),
            wire.ResultsCompared,
        )
        found = measure(
            self.base.side,
            self.best.side,
            watched="p50",
            period_seconds=self._period(self.best),
            bar=1.0,
            until=self._time.end - min(2 * figures_seconds(self.base.opened), self._time.left / 2),
            on_progress=lambda text: self._on_progress(f"the whole stack: {text}"),
            rounds=_PROOF_ROUNDS,
        )
        return found, checked

    def figures(self, variant: _Variant, timed: TimedFrames | None, share: float) -> FrameFigures:
        """What the ledger says of one variant, in this share of the time that is left."""
        return figures_of(
            variant.side,
            self.base.opened,
            variant.opened.quality,
            timed,
            unhurried_seconds=self._period(variant),
            seconds=share * self._time.left,
        )

    # -- variants ----------------------------------------------------------------------------------

    def _start(self, stack: list[wire.AppliedCure], until: float) -> _Variant:
        self._count += 1
        began = monotonic()
        name = f"{self._count:02d}"
        side = SideProcess(self._folder / f"{name}.log")
        self._open.append(side)
        results = self._folder / f"{name}.results"
        try:
            opened = side.ask(
                wire.OpenSide(
                    pipeline=self._job.pipeline,
                    stack=stack,
                    recording=str(self._folder / "recording"),
                    frames=self._job.frames,
                    prime=max(12, self._job.frames // 3),
                    results=str(results),
                ),
                wire.SideOpened,
                until=until,
            )
        except BaseException:
            self._open.remove(side)
            side.close()
            raise
        self._time.note_opening(monotonic() - began)
        return _Variant(stack, side, opened, results)

    def _close(self, variant: _Variant) -> None:
        self._open.remove(variant.side)
        variant.side.close()

    def close(self) -> None:
        """End every process that was started."""
        for side in self._open:
            side.close()

    def _watch(self) -> None:
        """Ask the process of the stack which cures apply now."""
        order = wire.FindCures(frames=_OBSERVED_FRAMES, queue_ratio=self._overload())
        found = self.best.side.ask(order, wire.CuresFound)
        self.best.offers = {offer.name: offer for offer in found.offers}

    def _overload(self) -> float:
        """Age of the stack's results at the declared rate over that without waiting."""
        declared = self.base.opened.period_seconds
        unhurried = max(declared, _HEADROOM * self.best.opened.frame_seconds)
        if unhurried <= declared:
            return 1.0
        ages = [
            median(
                self.best.side.ask(
                    wire.TimeFrames(frames=16, period_seconds=period), wire.FramesTimed
                ).latencies
            )
            for period in (declared, unhurried)
        ]
        return ages[0] / ages[1]

    def _period(self, trial: _Variant) -> float:
        """A period at which neither side of a comparison lets frames wait."""
        slowest = max(self.best.opened.frame_seconds, trial.opened.frame_seconds)
        if trial is self.best:
            slowest = max(slowest, self.base.opened.frame_seconds)
        return max(self.base.opened.period_seconds, _HEADROOM * slowest)

    @property
    def _cumulative(self) -> float:
        kept = [row for row in self.rows if row.kept]
        return kept[-1].cumulative if kept else 1.0

    @property
    def _frame_seconds(self) -> float:
        return self.best.opened.frame_seconds


def _freedom(name: str) -> float:
    """How far a cure may change results: 0 for equal ones."""
    return cure(name).CARD.freedom


def _said(options: Options) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items())


def _not_measured(
    card: CureCard, options: Options, reason: str, frame_seconds: float, verification: str = ""
) -> CureRow:
    return CureRow(
        cure=card.name,
        options=options,
        watched=card.watched,
        multiplier=1.0,
        ci_low=0.0,
        ci_high=None,
        cumulative=1.0,
        frame_seconds=frame_seconds,
        p99_over_p50=None,
        rounds=0,
        verified=False,
        verification=verification or "not measured",
        kept=False,
        reason=reason,
        costs=card.costs,
    )
