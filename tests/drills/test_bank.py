"""Every question can be drawn, answered by its own solution, and made again from its id."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import pytest
from tests.sources import ROOT

from ridgeline.cli.main import run
from ridgeline.diagnose import diagnose
from ridgeline.drills.bank import pick, question_of, topics
from ridgeline.drills.causes import case_names
from ridgeline.drills.evidence import record, record_names
from ridgeline.drills.grading import UNITS, grade, right_answer
from ridgeline.drills.questions import ask_row, tables
from ridgeline.drills.scenarios import scenarios
from ridgeline.drills.solved import RightOption, RightQuantity
from ridgeline.errors import InputError
from ridgeline.records import StepProfile
from ridgeline.records.store import read_record

ROWS = [(table.topic, row) for table in tables() for row in table.question]
NAMES = [name for names in topics().values() for name in names]
EIGHT = {"nan-loss", "out-of-memory", "straggler", "data-starvation", "exploding-gradients",
         "slow-after-scaling", "memory-leak", "accuracy-after-quantisation"}  # fmt: skip


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize(("topic", "row"), ROWS, ids=[row.name for _, row in ROWS])
def test_a_row_makes_questions_with_answers_of_reasonable_size(topic: str, row: object) -> None:
    for seed in range(25):
        asked = ask_row(topic, row, seed)  # type: ignore[arg-type]
        assert "{" not in asked.question.text
        right = asked.right[0]
        if isinstance(right, RightQuantity):
            assert asked.question.asks[0].unit in UNITS
            assert 1e-6 < right.value < 1e26
            assert math.isfinite(right.value)


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("name", NAMES)
def test_the_solution_answers_its_own_question_and_others_do_not(name: str) -> None:
    asked = question_of(f"{name}:11")
    assert question_of(asked.question.id) == asked
    answers = [
        right_answer(ask, right) if isinstance(right, RightQuantity) else "abcdefgh"[right.number]
        for ask, right in zip(asked.question.asks, asked.right, strict=True)
    ]
    assert grade(asked, answers).score == 1.0
    assert grade(asked, []).score == 0.0
    for place, right in enumerate(asked.right):
        off = list(answers)
        off[place] = (
            "ab"[right.number == 0]
            if isinstance(right, RightOption)
            else f"{right.value * 1.2:.6g}"
        )
        assert grade(asked, off).score < 1.0


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize(("topic", "row"), ROWS, ids=[row.name for _, row in ROWS])
def test_the_command_of_a_solution_prints_its_result(
    topic: str, row: object, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ask_row(topic, row, 2)  # type: ignore[arg-type]
    assert run([*shlex.split(asked.solution[-1].command)[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["result"]
    for part in filter(None, row.step[-1].take.split(".")):  # type: ignore[attr-defined]
        if isinstance(found, dict) and part not in found:
            return  # a property: what it is made of stands there
        found = found[int(part)] if part.isdecimal() else found[part]
    right = asked.right[0]
    expected = right.value if isinstance(right, RightQuantity) else row.options[right.number]  # type: ignore[attr-defined]
    assert found == (pytest.approx(expected) if isinstance(right, RightQuantity) else expected)


def test_the_published_figures_come_out() -> None:
    zero = next(row for _, row in ROWS if row.name == "zero-states")
    found = {seed: ask_row("", zero, seed).question.text for seed in range(400)}
    seed = next(
        one for one, text in found.items()
        if text.startswith("7 billion") and "ZeRO-2 over 64" in text
    )  # fmt: skip
    right = ask_row("", zero, seed).right[0]
    assert isinstance(right, RightQuantity)
    assert right.value / 7e9 == pytest.approx(16.6 / 7.5, rel=3e-3)  # 1910.02054, figure 1


def test_a_seed_decides_everything_and_topics_take_turns() -> None:
    first = [one.question for one in pick(5, 26)]
    assert first == [one.question for one in pick(5, 26)]
    assert first != [one.question for one in pick(6, 26)]
    assert {one.topic for one in first[:13]} == set(topics())
    only = [one.question.id.partition(":")[0] for one in pick(1, 8, ["failures"])]
    assert set(only) == EIGHT


@pytest.mark.parametrize("topic", list(topics()))
def test_a_topic_is_known_by_its_name_in_any_case(topic: str) -> None:
    assert pick(1, 1, [topic.upper()])[0].question.topic == topic


def test_bad_topics_and_ids_are_told() -> None:
    with pytest.raises(InputError, match="no topic 'cooking'; use one of: all-reduce"):
        pick(1, 1, ["cooking"])
    with pytest.raises(InputError, match="did you mean zero-states"):
        question_of("zero-state:1")
    for identity in ("zero-states:x", "zero-states:-1", "zero-states:²", f"zero-states:{10**30}"):
        with pytest.raises(InputError, match="is no seed"):
            question_of(identity)


def test_the_eight_failures_are_there_and_every_record_is_told_of() -> None:
    assert set(scenarios()) == EIGHT
    told = {one.record for one in scenarios().values()} | set(case_names().values())
    assert set(record_names()) - told == {"library_w3a16_gptq_g32"}  # a figure of the solution
    rows = record("library_w3a16_gptq_g32")["rows"]
    assert (
        f"{rows[1]['quality']['perplexity']:.3g}" in scenarios()["accuracy-after-quantisation"].why
    )


@pytest.mark.parametrize("name", [name for name in record_names() if "profile" in record(name)])
def test_the_doctor_still_names_the_cause_that_a_record_is_asked_for(
    name: str, tmp_path: Path
) -> None:
    content = record(name)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(content["profile"]))
    profile = read_record(path, StepProfile)
    wanted = content["findings"][0]["cause"]
    assert wanted in [one.cause for one in diagnose([profile]).findings]
    by_hand = [one.cause for one in scenarios().values() if one.record == name]
    assert all(cause == wanted for cause in by_hand)


def test_records_tell_nothing_of_the_machine_that_made_them() -> None:
    for name in record_names():
        text = json.dumps(record(name))
        assert str(ROOT) not in text
        assert "site-packages" not in text
