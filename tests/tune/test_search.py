"""What a search asks and keeps, with A/B runs whose outcome is given."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.diagnose.profiles import profile

import ridgeline.tune.search as searching
from ridgeline.errors import ChildDied, ScriptError
from ridgeline.measure.statistics.intervals import RatioInterval
from ridgeline.measure.wire import Applied, Updates
from ridgeline.records import LedgerRow, Site
from ridgeline.techniques import Applicability, Context, Gain, technique
from ridgeline.tune import candidates as choosing
from ridgeline.tune import forecast, questions, verify
from ridgeline.tune.ab_plan import ABPlan
from ridgeline.tune.ab_result import ABRun
from ridgeline.tune.candidates import (
    TechniqueCandidate,
    candidates,
    next_question,
    or_hopeful,
    seconds_for_others,
)
from ridgeline.tune.costs import Costs
from ridgeline.tune.forecast import OTHERS, Margin
from ridgeline.tune.memory import Answers, JobMemory
from ridgeline.tune.pool import Pool, Variant, VariantFailed
from ridgeline.tune.questions import OUT_OF_TIME
from ridgeline.tune.row import Asked, not_measured
from ridgeline.tune.search import StackSearch
from ridgeline.tune.stack import stack_of
from ridgeline.tune.tuner import _open
from ridgeline.tune.whole import prove_whole

LOSSES = [1.0, 0.9, 0.8, 0.7]
Ratios = dict[frozenset[str], tuple[float, float, float]]


def search(
    monkeypatch: pytest.MonkeyPatch, folder: Path, ratios: Ratios, asked: list[frozenset[str]]
) -> StackSearch:
    """A search whose A/B runs end as `ratios` says of the techniques that one side has more."""

    def run_ab(
        pool: Pool, a: Variant, b: Variant, plan: ABPlan, begun: ABRun | None = None
    ) -> ABRun:
        added = frozenset(m.technique for m in b.stack) - {m.technique for m in a.stack}
        asked.append(added)
        low, ratio, high = ratios[added]
        interval = RatioInterval(ratio=ratio, low=low, high=high, rounds=18)
        return ABRun(
            interval=interval,
            a_rounds=[1.0],
            b_rounds=[1 / ratio],
            a_losses=list(LOSSES),
            b_losses=list(LOSSES),
        )

    monkeypatch.setattr(questions, "run_ab", run_ab)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # the pool is not closed
    return StackSearch(
        command=["train.py"],
        threshold=0.01,
        ab_seconds=60.0,
        deadline=monotonic() + 1000,
        memory=JobMemory(folder / "answers.json", "fingerprint"),
        baseline=profile(),
        ceilings=None,
        findings=[],
        on_progress=lambda text: None,
        pool=Pool(),
        on_row=lambda ledger: None,
    )


def members(*names: str) -> list[Applied]:
    return [Applied(technique=name) for name in names]


def try_all(one: StackSearch, *names: str) -> None:
    for member in members(*names):
        one.add([member])


FASTER, FUSED, FROZEN = "bf16-autocast", "fused-optimizer", "gc-freeze"
UNCLEAR = (0.95, 1.02, 1.09)


def test_a_stack_that_holds_is_one_question_and_then_a_row_for_each_member(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[frozenset[str]] = []
    ratios: Ratios = {
        frozenset({FASTER, FUSED, FROZEN}): (2.5, 2.6, 2.7),
        frozenset({FROZEN}): (1.05, 1.1, 1.15),
        frozenset({FASTER, FUSED}): (2.2, 2.3, 2.4),
        frozenset({FUSED}): (1.2, 1.3, 1.4),
        frozenset({FASTER}): (1.7, 1.8, 1.9),
    }
    one = search(monkeypatch, tmp_path, ratios, asked)
    one.add_what_holds(members(FASTER, FUSED, FROZEN))
    assert asked == [frozenset({FASTER, FUSED, FROZEN})], "the first answer is the headline"
    assert one.ledger().cumulative == 2.6
    for group in one.groups():
        one.split(group)
    ledger = one.ledger()
    assert [row.technique for row in ledger.rows] == [FASTER, FUSED, FROZEN]
    assert [row.multiplier for row in ledger.rows] == pytest.approx([1.8, 1.3, 1.1])
    assert ledger.rows[-1].cumulative == pytest.approx(1.8 * 1.3 * 1.1)
    assert ledger.stack_rows == [FASTER, FUSED, FROZEN]
    measured = len(asked)
    whole = one.whole(one.stack)
    assert len(asked) == measured, "the whole was measured already: it is not measured again"
    assert (whole.stage, whole.multiplier, ledger.cumulative) == ("whole", 2.6, 2.6)


@pytest.mark.parametrize(("ratio", "times"), [(1.76, 2), (1.1, 1)])
def test_what_begins_well_is_gone_on_with_before_its_parts_are_tried(
    ratio: float, times: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[frozenset[str]] = []
    both = frozenset({FASTER, FROZEN})
    parts: Ratios = {frozenset({name}): UNCLEAR for name in both}
    one = search(monkeypatch, tmp_path, {both: (0.6, ratio, 5.0), **parts}, asked)
    one.add_what_holds(members(FASTER, FROZEN))
    assert asked == [both] * times + [frozenset({FASTER}), frozenset({FROZEN})]


def test_a_member_that_changed_nothing_is_told_without_another_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[frozenset[str]] = []
    ratios: Ratios = {frozenset({FASTER, FROZEN}): (1.5, 1.6, 1.7)}
    one = search(monkeypatch, tmp_path, ratios, asked)
    one.add_what_holds(members(FASTER, FROZEN))
    seen = SimpleNamespace(applied={FASTER: "forward runs under autocast"})
    monkeypatch.setattr(one.pool, "alive", lambda variant: seen)
    one.split(one.groups()[0])
    assert len(asked) == 1
    assert one.stack == members(FASTER)
    kept, idle = one.ledger().rows
    assert (kept.technique, kept.multiplier, kept.kept) == (FASTER, 1.6, True)
    assert (idle.technique, idle.kept, idle.reason) == (
        FROZEN, False, "changed nothing in this script",
    )  # fmt: skip
    assert one.whole(one.stack).multiplier == 1.6
    assert len(asked) == 1


def test_a_member_whose_absence_does_not_slow_the_stack_is_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ratios: Ratios = {
        frozenset({FASTER, FUSED, FROZEN}): (2.0, 2.1, 2.2),
        frozenset({FROZEN}): (0.98, 1.0, 1.005),
        frozenset({FASTER, FUSED}): (2.0, 2.1, 2.2),
        frozenset({FUSED}): (1.1, 1.2, 1.3),
        frozenset({FASTER}): (1.6, 1.7, 1.8),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    one.add_what_holds(members(FASTER, FUSED, FROZEN))
    one.split(one.groups()[0])
    assert [m.technique for m in one.stack] == [FASTER, FUSED]
    dropped = next(row for row in one.ledger().rows if row.technique == FROZEN)
    assert not dropped.kept
    assert "not faster" in dropped.reason


def test_a_stack_whose_gain_is_all_the_last_members_keeps_that_one_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ratios: Ratios = {
        frozenset({FASTER, FUSED}): (1.4, 1.5, 1.6),
        frozenset({FUSED}): (1.4, 1.5, 1.6),
        frozenset({FASTER}): (0.97, 0.99, 1.005),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    one.add_what_holds(members(FASTER, FUSED))
    one.split(one.groups()[0])
    assert [m.technique for m in one.stack] == [FUSED]
    assert {row.technique: row.kept for row in one.ledger().rows} == {FASTER: False, FUSED: True}


def test_a_stack_that_does_not_hold_is_tried_by_halves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[frozenset[str]] = []
    ratios: Ratios = {
        frozenset({FASTER, FUSED, FROZEN}): (0.7, 0.8, 0.9),
        frozenset({FASTER, FUSED}): (1.9, 2.0, 2.1),
        frozenset({FROZEN}): (0.3, 0.4, 0.5),
    }
    one = search(monkeypatch, tmp_path, ratios, asked)
    one.add_what_holds(members(FASTER, FUSED, FROZEN))
    assert [m.technique for m in one.stack] == [FASTER, FUSED]
    assert one.ledger().cumulative == pytest.approx(2.0)


def test_a_stack_that_fails_is_tried_without_the_member_that_its_error_speaks_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = "RuntimeError: view size is not compatible with input tensor's size and stride"
    asked: list[frozenset[str]] = []
    ratios: Ratios = {frozenset({FASTER, FUSED}): (1.9, 2.0, 2.1)}
    one = search(monkeypatch, tmp_path, ratios, asked)
    measured = questions.run_ab

    def run_ab(
        pool: Pool, a: Variant, b: Variant, plan: ABPlan, begun: ABRun | None = None
    ) -> ABRun:
        if any(member.technique == "channels-last" for member in b.stack):
            raise VariantFailed("b", ScriptError(f"`train.py` failed (exit code 1): {error}"))
        return measured(pool, a, b, plan)

    monkeypatch.setattr(questions, "run_ab", run_ab)
    one.add_what_holds(members(FASTER, "channels-last", FUSED))
    assert asked == [frozenset({FASTER, FUSED})], "both of the others, in one question"
    rows = {row.technique: row.reason for row in one.ledger().rows}
    assert list(rows) == ["channels-last", f"{FASTER} + {FUSED}"]
    assert error in rows["channels-last"]


@pytest.mark.parametrize(
    ("again", "kept"),
    [((0.24, 1.0, 6.1), True), ((0.97, 0.98, 1.01), False)],
    ids=["rounds that tell nothing", "rounds that exclude the gain"],
)
def test_what_was_proved_is_left_out_again_where_its_gain_is_excluded(
    again: tuple[float, float, float],
    kept: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ratios: Ratios = {
        frozenset({FUSED}): (1.015, 1.03, 1.05),
        frozenset({FASTER}): (1.7, 1.8, 1.9),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FUSED, FASTER)
    ratios[frozenset({FUSED})] = again
    one.leave_out_what_came_early()
    assert [row.stage for row in one.rows] == ["add", "add", "leave-one-out"]
    assert (FUSED in [m.technique for m in one.stack]) is kept


def test_a_whole_without_time_to_be_measured_is_the_product_of_its_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ratios: Ratios = {
        frozenset({FASTER}): (1.4, 1.5, 1.6),
        frozenset({FUSED}): (1.1, 1.2, 1.3),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FASTER, FUSED)

    def cut_off(*_: object) -> ABRun:
        raise VariantFailed("b", ScriptError("it did not answer"))

    monkeypatch.setattr(questions, "run_ab", cut_off)
    one.deadline = monotonic()
    row = prove_whole(one)
    assert row is not None
    assert [m.technique for m in one.stack] == [FASTER, FUSED]
    assert (row.kept, row.verified) == (True, True)
    assert row.multiplier == pytest.approx(1.8)
    assert (row.ci_low, row.ci_high) == pytest.approx((1.54, 2.08))
    assert row.baseline_step_seconds / row.step_seconds == pytest.approx(1.8)
    assert "the full stack as a whole was not measured" in one.notes[-1]


@pytest.mark.parametrize(
    ("whole", "bad", "total"),
    [
        ((0.9, 1.7, 3.0), 0, (1.54, 1.8, 2.08)),
        ((1.6, 1.7, 1.75), 0, (1.6, 1.7, 1.75)),
        ((1.6, 1.7, 1.75), 1, (1.4, 1.5, 1.6)),
    ],
    ids=["undecided", "decided", "gradients not finite"],
)
def test_a_whole_whose_losses_there_was_no_time_to_judge_is_vouched_for_by_its_rows(
    whole: tuple[float, float, float],
    bad: int,
    total: tuple[float, float, float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ratios: Ratios = {
        frozenset({FASTER}): (1.4, 1.5, 1.6),
        frozenset({FUSED}): (1.1, 1.2, 1.3),
        frozenset({FASTER, FUSED}): whole,
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FASTER, FUSED)
    measure = questions.run_ab

    def parts(*arguments: Any) -> ABRun:
        result = measure(*arguments)
        result.b_losses, result.b_non_finite = [1.01 * loss for loss in LOSSES], bad
        return result

    def cut_off(*_: object, **__: object) -> list[Any]:
        raise ScriptError("it did not answer")

    monkeypatch.setattr(questions, "run_ab", parts)
    monkeypatch.setattr(verify, "trajectories", cut_off)
    row = prove_whole(one)
    assert row is not None
    assert (row.ci_low, row.multiplier, row.ci_high) == pytest.approx(total)
    assert (row.kept, row.verified) == (True, True)
    assert len(one.stack) == 2 - bad


def test_lines_that_a_technique_changed_are_remembered_over_all_its_runs() -> None:
    first, second = Site(file="net.py", line=3), Site(file="net.py", line=9)
    answers = Answers(fingerprint="a job")
    answers.know_places({"channels-last": [first, second]})
    answers.know_places({"channels-last": [second]})
    assert answers.places == {"channels-last": [first, second]}


def test_a_side_question_that_fails_costs_its_row_and_not_the_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dies(*_: object) -> ABRun:
        raise VariantFailed("a", ChildDied("`train.py` was killed by SIGKILL"))

    one = search(monkeypatch, tmp_path, {}, [])
    monkeypatch.setattr(questions, "run_ab", dies)
    one.add_what_holds(members(FUSED))
    (row,) = one.ledger().rows
    assert not row.kept
    assert "SIGKILL" in row.reason


def test_a_patch_that_steps_otherwise_than_its_stack_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Losses that differ by a rounding say nothing yet of a weight decay that was lost."""
    one = search(monkeypatch, tmp_path, {frozenset({FUSED}): (1.4, 1.5, 1.6)}, [])
    stack = members(FUSED)
    one.whole(stack)
    key = questions._question([], stack)
    one.memory.answers.updates[key] = Updates(settings=[{"weight_decay": 0.1}] * 3)
    monkeypatch.setattr(one.verifier, "_shaken", lambda *_: ([1.0, 0.9, 0.8, 0.70001], None))
    variant = Variant(command=["patched.py"])

    def row_of(weight_decay: float, parts_by: float = 1e-5) -> LedgerRow:
        steps = Updates(settings=[{"weight_decay": weight_decay}] * 3)

        def run_ab(*_: object) -> ABRun:
            interval = RatioInterval(ratio=1.5, low=1.4, high=1.6, rounds=18)
            losses = [*LOSSES[:-1], LOSSES[-1] + parts_by]
            return ABRun(
                interval=interval, a_rounds=[1.0], b_rounds=[0.7], b_losses=losses, b_updates=steps
            )

        monkeypatch.setattr(questions, "run_ab", run_ab)
        return one.patched(stack, variant, stack)

    assert row_of(0.1).kept
    for parts_by in (0.0, 1e-5):
        refused = row_of(0.0, parts_by)
        assert not refused.kept
        assert "`weight_decay` of the optimizer's step 0" in refused.verification


def test_step_times_and_ratio_of_a_row_agree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = search(monkeypatch, tmp_path, {frozenset({FUSED}): (1.2, 1.3, 1.4)}, [])
    row = one.add(members(FUSED))
    assert row.baseline_step_seconds / row.step_seconds == pytest.approx(row.multiplier)


def test_techniques_too_small_to_tell_alone_are_asked_about_together_and_are_one_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = frozenset({FUSED, FROZEN})
    ratios: Ratios = {
        frozenset({FASTER}): (1.8, 2.0, 2.2),
        frozenset({FUSED}): UNCLEAR,
        frozenset({FROZEN}): (0.94, 1.01, 1.08),
        frozenset({"set-to-none"}): (0.90, 0.95, 1.0),
        both: (1.03, 1.06, 1.09),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FASTER, FUSED, FROZEN, "set-to-none")
    small = one.undecided()
    assert {member.technique for member in small} == both, "the clearly slower is not taken along"
    one.add(small)
    assert [m.technique for m in one.stack] == [FASTER, FUSED, FROZEN]
    ledger = one.ledger()
    assert ledger.rows[-1].members == [FUSED, FROZEN]
    assert ledger.cumulative == pytest.approx(2.0 * 1.06)
    assert math.isclose(ledger.rows[-1].cumulative, ledger.cumulative)
    rows = stack_of(ledger).technique
    assert [row.name for row in rows] == [m.technique for m in one.stack]
    assert "measured as one" in rows[-1].verification


def test_what_looks_slower_is_not_taken_along_with_what_looks_faster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ratios: Ratios = {frozenset({FUSED}): UNCLEAR, frozenset({FROZEN}): (0.6, 0.9, 1.3)}
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FUSED, FROZEN)
    assert one.undecided() == members(FUSED)


@pytest.mark.parametrize(("outcome", "left"), [((0.4, 0.5, 0.7), 0), ((0.8, 0.95, 1.1), 1)])
def test_of_a_technique_that_did_harm_no_other_settings_are_tried(
    outcome: tuple[float, float, float],
    left: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ratios: Ratios = {frozenset({"loader-workers"}): outcome}
    one = search(monkeypatch, tmp_path, ratios, [])
    one.add([Applied(technique="loader-workers", options={"num_workers": 1})])
    other = Applied(technique="loader-workers", options={"num_workers": 2})
    found = [TechniqueCandidate(applied=other, gain=Gain(0.9, 1.5))]
    assert len(_open(one, found, set())) == left
    assert ("loader-workers(num_workers=2)" in one.skipped) is (left == 0)


@pytest.mark.parametrize(("ratio", "left"), [(1.009, 0), (1.05, 1)])
def test_what_compiled_for_nothing_is_not_compiled_once_more_with_other_settings(
    ratio: float, left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ratios: Ratios = {frozenset({"compile"}): (0.8, ratio, 1.3)}
    one = search(monkeypatch, tmp_path, ratios, [])
    one.add([Applied(technique="compile", options={"mode": "default"})])
    other = Applied(technique="compile", options={"mode": "default", "regional": "Block"})
    found = [TechniqueCandidate(applied=other, gain=Gain(1.1, 1.5))]
    assert len(_open(one, found, set())) == left


def candidate(name: str, low: float, high: float) -> TechniqueCandidate:
    return TechniqueCandidate(applied=Applied(technique=name), gain=Gain(low, high))


def asked_first(found: list[TechniqueCandidate], left_seconds: float, step: float) -> list[str]:
    """What comes next where a start takes five seconds."""
    costs = Costs(step_seconds=step, load_seconds=5.0, slowness=1.0)
    return [one.applied.technique for one in next_question(found, costs.seconds, left_seconds)]


def test_the_question_that_gains_most_per_second_comes_first_and_none_that_does_not_fit() -> None:
    quick = [candidate(FASTER, 1.3, 1.8), candidate(FUSED, 1.06, 1.2)]
    slow = [candidate("onnx-runtime", 1.3, 2.6), candidate("compile", 1.2, 1.5)]
    small = [candidate(FROZEN, 1.0, 1.04), candidate("set-to-none", 1.0, 1.02)]
    everything = [*quick, *slow, *small]
    assert asked_first(everything, 600.0, 0.1) == [FASTER, FUSED], "the headline"
    assert asked_first([*slow, *small], 600.0, 0.1) == ["onnx-runtime"], "slow, and worth it"
    assert asked_first([*slow, *small], 20.0, 0.1) == [FROZEN, "set-to-none"], "no time for it"
    assert asked_first([*slow[1:], *small], 600.0, 0.1) == ["compile"]
    assert asked_first(everything, 5.0, 0.1) == [], "nothing can be finished"
    assert asked_first(everything, 20.0, 2.0) == [], "nor with such steps"


def test_of_two_that_expect_the_same_the_one_whose_model_was_right_so_far_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = candidate("compile", 1.1, 1.5), candidate("aot-inductor", 1.1, 1.5)
    record = {"compile": Margin(technique="compile", rows=9, below=1.4, above=1.0)}
    record[OTHERS] = Margin(technique=OTHERS, rows=90, below=1.1, above=1.1)
    monkeypatch.setattr(forecast, "_margins", lambda: record)
    assert other.promise == pytest.approx(math.log(other.expected))
    assert one.promise == pytest.approx(math.log(one.expected / 1.4**0.5))


@pytest.mark.parametrize(("slowness", "begun"), [(1.0, []), (5.0, [FASTER])])
def test_time_that_nothing_else_needs_is_given_to_what_fits_on_a_quiet_machine(
    slowness: float, begun: list[str]
) -> None:
    costs = Costs(step_seconds=2.6, load_seconds=12.0, slowness=slowness)
    found, left = [candidate(FASTER, 1.3, 1.8)], 50.0

    def at_best(members: list[Applied]) -> float:
        return costs.seconds(members, at_best=True, checked=False)

    assert next_question(found, lambda some: costs.seconds(some, checked=False), left) == []
    chosen = next_question(found, at_best, left)
    assert [one.applied.technique for one in chosen] == begun


@pytest.mark.parametrize(("left", "first"), [(75.0, FASTER), (20.0, FROZEN)])
def test_what_may_just_be_finished_goes_before_what_is_too_small_to_show(
    left: float, first: str
) -> None:
    costs = Costs(step_seconds=2.0, load_seconds=13.0, slowness=1.0)
    strong, small = candidate(FASTER, 1.2, 1.46), candidate(FROZEN, 0.99, 1.04)

    def at_best(members: list[Applied]) -> float:
        return costs.seconds(members, at_best=True, checked=False)

    chosen = or_hopeful([small], [strong, small], at_best, left)
    assert [one.applied.technique for one in chosen] == [first]


@pytest.mark.parametrize(("share", "said"), [(0.1, False), (0.8, True)])
def test_whoever_ran_out_of_time_beside_other_programs_is_told_of_them(
    share: float, said: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = search(monkeypatch, tmp_path, {}, [])
    waited = share * one.baseline.step_seconds.mean
    one.baseline = replace(
        one.baseline, settings=replace(one.baseline.settings, cpu_wait_seconds=waited)
    )
    one.note_that_time_ran_out()
    (note,) = one.notes
    assert ("80 % of a step" in note) is said


def test_what_compiles_for_longer_than_anyone_foresaw_leaves_others_their_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = search(monkeypatch, tmp_path, {}, [])
    one.deadline = one.pool.deadline = monotonic() + 100
    slow, quick = candidate("compile", 1.0, 1.5), candidate("fused-optimizer", 1.0, 1.1)

    def left_to(chosen: list[TechniqueCandidate], open_: list[TechniqueCandidate]) -> float:
        return seconds_for_others(chosen, open_, one.seconds_for, one.left_seconds)

    kept_back = left_to([slow], [slow, quick])
    assert 0 < kept_back <= 50
    assert left_to([quick], [slow, quick]) == 0
    assert left_to([slow], [slow]) == 0

    def never_ready(pool: Pool, *_: object) -> ABRun:
        assert pool.deadline == pytest.approx(until - kept_back, abs=1.0)
        pool.deadline = monotonic()  # so long it compiled
        raise VariantFailed("b", ScriptError("gave up"))

    until = one.pool.deadline
    monkeypatch.setattr(questions, "run_ab", never_ready)
    with one.leaving(kept_back):
        row = one.add(members("compile"))
    assert row.reason == questions.OTHERS_TURN
    assert one.pool.deadline == until
    assert one.known([], members("compile")) is None  # with more time it is asked again


def test_what_has_shown_its_gain_is_checked_in_the_time_that_others_were_to_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = search(monkeypatch, tmp_path, {}, [])
    one.deadline = one.pool.deadline = monotonic() + 100
    with one.leaving(99):
        patience = one.verifier.patience()
    assert patience == pytest.approx(100, abs=2)


def test_what_prepared_for_long_is_expected_to_do_so_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = search(monkeypatch, tmp_path, {frozenset({"compile"}): (1.1, 1.2, 1.3)}, [])
    before = one.seconds_for(members("compile"))
    row = replace(one.add(members("compile")), startup_seconds=300.0)
    one.rows[-1] = row
    assert one.seconds_for(members("compile")) > before + 200
    one.deadline = monotonic() + before
    assert not one.can_afford(members("compile"))
    assert one.can_afford(members(FROZEN))
    assert one.least_seconds_for(members("compile")) > 200, "it took as long at best"
    assert one.seconds_for(members(FUSED)) > one.seconds_for(members(FROZEN)), "losses to check"


def test_what_is_foretold_to_lose_and_to_gain_little_waits() -> None:
    context = Context(profile=profile())
    module = SimpleNamespace(
        CARD=technique(FROZEN).CARD,
        applies=lambda context: Applicability(True, ""),
        predict=lambda context, options: Gain(0.95, 1.03),
    )
    skipped: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "all_techniques", lambda: {FROZEN: module})
        assert candidates(context, (), skipped) == []
    assert skipped == {FROZEN: "foretold to lose more than it gains, 0.95–1.03×"}


@pytest.mark.parametrize(
    ("whole", "total", "left"),
    [
        ((0.9, 2.3, 7.0), (2.04, 2.34, 2.66), [FASTER, FUSED]),
        ((1.9, 2.0, 2.1), (1.9, 2.0, 2.1), [FASTER, FUSED]),
        ((0.5, 0.6, 0.7), (1.7, 1.8, 1.9), [FASTER]),
    ],
    ids=["undecided", "decided", "contradicted"],
)
def test_rows_that_were_proved_stay_where_the_whole_could_not_be_decided_in_time(
    whole: tuple[float, float, float],
    total: tuple[float, float, float],
    left: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ratios: Ratios = {
        frozenset({FASTER}): (1.7, 1.8, 1.9),
        frozenset({FUSED}): (1.2, 1.3, 1.4),
        frozenset({FASTER, FUSED}): whole,
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FASTER, FUSED)
    row = prove_whole(one)
    assert row is not None
    assert (row.ci_low, row.multiplier, row.ci_high) == pytest.approx(total)
    assert row.baseline_step_seconds / row.step_seconds == pytest.approx(row.multiplier)
    assert [member.technique for member in one.stack] == left
    assert any("product of its rows" in note for note in one.notes) is (whole[0] == 0.9)


def test_what_does_not_hold_together_leaves_the_stack_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ratios: Ratios = {
        frozenset({FUSED}): UNCLEAR,
        frozenset({FROZEN}): UNCLEAR,
        frozenset({FUSED, FROZEN}): (0.97, 1.01, 1.05),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FUSED, FROZEN)
    assert not one.add(one.undecided()).kept
    assert [row.technique for row in one.open_rows()] == [FUSED, FROZEN], "but not both as one"
    assert one.stack == []
    assert one.ledger().cumulative == 1.0


def test_of_two_undecided_techniques_in_one_slot_the_better_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slot = technique(FASTER).CARD.slot
    assert slot == technique("fp16-autocast").CARD.slot is not None
    ratios: Ratios = {
        frozenset({FASTER}): (0.95, 1.01, 1.09),
        frozenset({"fp16-autocast"}): (0.96, 1.03, 1.09),
        frozenset({FROZEN}): UNCLEAR,
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FASTER, "fp16-autocast", FROZEN)
    assert one.undecided() == members("fp16-autocast", FROZEN)


def test_what_could_not_be_decided_is_asked_about_for_longer_and_its_row_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[frozenset[str]] = []
    ratios: Ratios = {frozenset({FUSED}): UNCLEAR, frozenset({FROZEN}): (0.9, 0.95, 0.99)}
    one = search(monkeypatch, tmp_path, ratios, asked)
    try_all(one, FUSED, FROZEN)
    (row,) = one.open_rows()
    assert row.technique == FUSED
    usual = one._plan(members(FUSED), "add").seconds
    allowed = []
    plan = one._plan
    monkeypatch.setattr(
        StackSearch, "_plan", lambda self, *args: allowed.append(plan(*args)) or plan(*args)
    )
    ratios[frozenset({FUSED})] = (1.02, 1.03, 1.04)
    assert one.can_decide(row)
    one.decide(row)
    assert [one.seconds for one in allowed] == [searching.LONGER * usual]
    too_little = RatioInterval(ratio=1.02, low=0.99, high=1.04, rounds=12)
    assert allowed[0].is_decided(too_little), "to tell it from none would take many more rounds"
    assert not one._plan(members(FUSED), "add").is_decided(too_little)
    assert one.stack == members(FUSED)
    assert [row.technique for row in one.ledger().rows] == [FROZEN, FUSED]
    assert one.ledger().cumulative == 1.03
    assert not one.open_rows()
    assert one.patience == 1.0


def test_what_was_undecided_as_one_is_asked_about_for_longer_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = frozenset({FUSED, FROZEN})
    ratios: Ratios = {both: UNCLEAR}
    one = search(monkeypatch, tmp_path, ratios, [])
    group = one.add(members(FUSED, FROZEN))
    assert one.open_rows() == []
    assert one.open_groups() == [group]
    ratios[both] = (1.02, 1.08, 1.1)
    one.decide(group)
    assert one.stack == members(FUSED, FROZEN)
    assert one.open_groups() == []


def test_a_group_of_which_a_part_was_measured_since_is_not_asked_about_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ratios: Ratios = {
        frozenset({FUSED, FROZEN}): UNCLEAR,
        frozenset({FUSED}): (0.8, 0.85, 0.9),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    one.add(members(FUSED, FROZEN))
    one.add(members(FUSED))
    assert one.open_groups() == []


def test_a_row_that_was_asked_about_again_in_vain_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = search(monkeypatch, tmp_path, {frozenset({FUSED}): UNCLEAR}, [])
    try_all(one, FUSED)
    (row,) = one.rows
    monkeypatch.setattr(
        StackSearch,
        "_measure",
        lambda *_: not_measured(Asked.of(members(FUSED), "", "add"), OUT_OF_TIME, 1.0),
    )
    assert one.decide(row) is row
    assert one.rows == [row]
    assert not one.stack


def test_what_an_earlier_job_measured_is_said_to_be_lost_where_it_cannot_be_read(
    tmp_path: Path,
) -> None:
    whole = JobMemory(tmp_path / "answers.json", "fingerprint")
    whole.answers.baseline = profile()
    whole.save()
    again = JobMemory(tmp_path / "answers.json", "fingerprint")
    assert again.resumed
    assert again.lost is None
    text = (tmp_path / "answers.json").read_bytes()
    (tmp_path / "answers.json").write_bytes(text[: len(text) // 2])
    torn = JobMemory(tmp_path / "answers.json", "fingerprint")
    assert not torn.resumed
    assert "answers.json" in (torn.lost or "")


def test_who_asks_the_questions_loads_neither_torch_nor_a_parser() -> None:
    """Either takes longer than the first word may."""
    code = (
        "import sys; import ridgeline.tune.tuner, ridgeline.cli.tune_progress; "
        "print(sorted({'torch', 'libcst', 'plotly'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", code]
    seen = subprocess.run(words, capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"


def test_a_runtime_takes_the_place_of_a_slower_one_and_the_ledger_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow, quick, late = "onnx-runtime", "openvino", "aot-inductor"
    ratios: Ratios = {
        frozenset({FASTER}): (1.1, 1.2, 1.3),
        frozenset({slow}): (1.7, 1.8, 1.9),
        frozenset({quick}): (2.3, 2.4, 2.5),
        frozenset({late}): (1.4, 1.5, 1.6),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, FASTER, slow)
    one.challenge(*members(quick), slow)
    assert [member.technique for member in one.stack] == [FASTER, quick]
    one.challenge(*members(late), quick)
    ledger = one.ledger()
    kept = {row.technique: row.kept for row in ledger.rows}
    assert kept == {FASTER: True, slow: False, quick: True, late: False}
    reasons = {row.technique: row.reason for row in ledger.rows}
    assert reasons[slow] == "openvino is faster in its place: 2.40× against 1.80×"
    assert reasons[late] == "openvino is faster in its place: 2.40× against 1.50×"
    assert ledger.rows[-1].cumulative == pytest.approx(1.2 * 2.4)


def test_a_side_run_of_a_slow_script_is_as_short_as_what_it_is_compared_with():
    def side_run(step):
        costs = Costs(step_seconds=step, load_seconds=0.0, slowness=1.0)
        known, unknown = (costs.seconds([], at_best=True, checked=one) for one in (True, False))
        return round((unknown - known) / step)

    assert side_run(0.1) == 16
    assert side_run(3.0) == 7


def test_a_question_takes_longer_the_further_the_stack_has_come_but_for_a_start_at_most():
    costs = Costs(step_seconds=0.5, load_seconds=10.0, slowness=1.0)
    at_once, later, last = (costs.seconds([], lead_steps=steps) for steps in (1, 20, 1000))
    assert later - at_once == pytest.approx(5.0)
    assert last - at_once == pytest.approx(15.0)


def test_what_a_start_takes_on_a_quiet_machine_is_not_what_it_took_on_a_busy_one():
    quiet, busy = (
        Costs(step_seconds=0.2 * times, load_seconds=8.0 * times, slowness=times)
        for times in (1.0, 5.0)
    )
    assert busy.seconds([], at_best=True, checked=False) == pytest.approx(
        quiet.seconds([], at_best=True, checked=False)
    )
    assert busy.seconds([]) > 3 * quiet.seconds([])
