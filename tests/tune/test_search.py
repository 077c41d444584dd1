"""What a search asks and keeps, with duels whose outcome is given."""

from __future__ import annotations

import math
from pathlib import Path
from time import monotonic

import pytest
from tests.diagnose.profiles import profile

import ridgeline.tune.search as searching
from ridgeline.measure.statistics import RatioInterval
from ridgeline.measure.wire import Applied
from ridgeline.techniques import technique
from ridgeline.tune.duel import Contender, Duel, DuelPlan
from ridgeline.tune.memory import Memory
from ridgeline.tune.search import Search
from ridgeline.tune.stack import stack_of

LOSSES = [1.0, 0.9, 0.8, 0.7]
Ratios = dict[frozenset[str], tuple[float, float, float]]


def search(
    monkeypatch: pytest.MonkeyPatch, folder: Path, ratios: Ratios, asked: list[frozenset[str]]
) -> Search:
    """A search whose duels end as `ratios` says of the techniques that one side has more."""

    def duel(a: Contender, b: Contender, plan: DuelPlan) -> Duel:
        added = frozenset(m.technique for m in b.stack) - {m.technique for m in a.stack}
        asked.append(added)
        low, ratio, high = ratios[added]
        interval = RatioInterval(ratio=ratio, low=low, high=high, rounds=18)
        return Duel(
            interval=interval, a_steps=[1.0], b_steps=[1 / ratio], a_losses=LOSSES, b_losses=LOSSES
        )

    monkeypatch.setattr(searching, "duel", duel)
    return Search(
        command=["train.py"],
        threshold=0.01,
        duel_seconds=60.0,
        deadline=monotonic() + 1000,
        memory=Memory(folder / "answers.json", "fingerprint"),
        baseline=profile(),
        ceilings=None,
        findings=[],
        say=lambda text: None,
        on_row=lambda ledger: None,
    )


def try_all(one: Search, *names: str) -> None:
    for name in names:
        one.add(technique(name), {})


def test_techniques_too_small_to_tell_alone_are_kept_when_they_prove_themselves_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[frozenset[str]] = []
    both = frozenset({"fused-optimizer", "gc-freeze"})
    one = search(
        monkeypatch,
        tmp_path,
        {
            frozenset({"bf16-autocast"}): (1.8, 2.0, 2.2),
            frozenset({"fused-optimizer"}): (0.95, 1.02, 1.09),
            frozenset({"gc-freeze"}): (0.94, 1.01, 1.08),
            frozenset({"set-to-none"}): (0.90, 0.95, 1.0),
            both: (1.03, 1.06, 1.09),
        },
        asked,
    )
    try_all(one, "bf16-autocast", "fused-optimizer", "gc-freeze", "set-to-none")
    members = one.add_together()
    assert {member.technique for member in members} == both
    assert asked[-1] == both, "what is clearly slower is not taken along"
    assert [m.technique for m in one.stack] == ["bf16-autocast", "fused-optimizer", "gc-freeze"]
    ledger = one.ledger()
    assert ledger.rows[-1].members == ["fused-optimizer", "gc-freeze"]
    assert ledger.cumulative == pytest.approx(2.0 * 1.06)
    assert math.isclose(ledger.rows[-1].cumulative, ledger.cumulative)
    rows = stack_of(ledger).technique
    assert [row.name for row in rows] == [m.technique for m in one.stack]
    assert "measured as one" in rows[-1].verification


def test_one_technique_that_is_too_small_to_tell_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[frozenset[str]] = []
    ratios: Ratios = {frozenset({"fused-optimizer"}): (0.95, 1.02, 1.09)}
    one = search(monkeypatch, tmp_path, ratios, asked)
    try_all(one, "fused-optimizer")
    assert one.add_together() == []
    assert len(asked) == 1
    assert one.stack == []


def test_what_does_not_hold_together_leaves_the_stack_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = frozenset({"fused-optimizer", "gc-freeze"})
    ratios: Ratios = {
        frozenset({"fused-optimizer"}): (0.95, 1.02, 1.09),
        frozenset({"gc-freeze"}): (0.95, 1.02, 1.09),
        both: (0.97, 1.01, 1.05),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, "fused-optimizer", "gc-freeze")
    assert one.add_together() == []
    assert one.stack == []
    assert not one.rows[-1].kept
    assert one.ledger().cumulative == 1.0


def test_of_two_techniques_in_one_slot_the_better_goes_into_the_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slot = technique("bf16-autocast").CARD.slot
    assert slot == technique("fp16-autocast").CARD.slot is not None
    both = frozenset({"fp16-autocast", "gc-freeze"})
    ratios: Ratios = {
        frozenset({"bf16-autocast"}): (0.95, 1.01, 1.09),
        frozenset({"fp16-autocast"}): (0.96, 1.03, 1.09),
        frozenset({"gc-freeze"}): (0.95, 1.02, 1.09),
        both: (1.02, 1.05, 1.08),
    }
    one = search(monkeypatch, tmp_path, ratios, [])
    try_all(one, "bf16-autocast", "fp16-autocast", "gc-freeze")
    assert one.add_together() == [
        Applied(technique="fp16-autocast"), Applied(technique="gc-freeze"),
    ]  # fmt: skip


def test_what_an_earlier_job_measured_is_said_to_be_lost_where_it_cannot_be_read(
    tmp_path: Path,
) -> None:
    whole = Memory(tmp_path / "answers.json", "fingerprint")
    whole.answers.baseline = profile()
    whole.save()
    again = Memory(tmp_path / "answers.json", "fingerprint")
    assert again.resumed
    assert again.lost is None
    text = (tmp_path / "answers.json").read_bytes()
    (tmp_path / "answers.json").write_bytes(text[: len(text) // 2])
    torn = Memory(tmp_path / "answers.json", "fingerprint")
    assert not torn.resumed
    assert "answers.json" in (torn.lost or "")
