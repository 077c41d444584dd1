"""`ridgeline drill` in a terminal's place: answers line by line, progress on disk."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.drills.bank import question_of
from ridgeline.drills.grading import right_answer
from ridgeline.drills.history import DrillHistory
from ridgeline.records.drill import DrillAttempt, DrillProgress
from ridgeline.records.store import write_record

ONE = "zero-states:7"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGELINE_STATE", str(tmp_path))
    return tmp_path / "drill"


def answer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def right(identity: str) -> str:
    asked = question_of(identity)
    return right_answer(asked.question.asks[0], asked.right[0])  # type: ignore[arg-type]


def test_an_answer_is_graded_shown_and_remembered(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(f"3 ms\n{right(ONE)}\n1 GB\n", monkeypatch)
    assert run(["drill", "--question", ONE, "--question", "adam-states:1"]) == 0
    said = capsys.readouterr()
    assert "ms does not measure bytes" in said.err
    assert "right" in said.out
    assert "ridgeline calc zero" in said.out
    assert "50 % over 2 questions" in said.out
    assert [one.score for one in DrillHistory().read().attempts] == [1.0, 0.0]
    assert run(["drill", "--list", "--json"]) == 0
    standing = json.loads(capsys.readouterr().out)
    assert standing["sessions"][0]["score"] == 0.5
    memory = next(one for one in standing["topics"] if one["topic"] == "training memory")
    assert memory["answered"] == 2


def test_stdin_that_ends_keeps_what_was_scored(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(f"{right(ONE)}\n", monkeypatch)
    assert run(["drill", "--question", ONE, "--question", "adam-states:1"]) == 0
    assert "stdin ended after 1 of 2 questions" in capsys.readouterr().err
    assert len(DrillHistory().read().attempts) == 1
    answer("", monkeypatch)
    assert run(["drill"]) == 2
    assert "stdin ended before an answer" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_scored(state: Path) -> None:
    words = [sys.executable, "-m", "ridgeline.cli.main", "drill", "--question", ONE,
             "--question", "adam-states:1"]  # fmt: skip
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"RIDGELINE_STATE": str(state.parent)},
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{right(ONE)}\n")
        process.stdin.flush()
        seen = ""
        while "2 of 2" not in seen:
            seen = process.stdout.readline()
            assert seen
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "100 % over 1 question" in out
    assert "interrupted" in err
    assert [one.score for one in DrillHistory(state).read().attempts] == [1.0]


def test_a_sheet_is_printed_answered_and_graded(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["drill", "--json", "--seed", "4", "--count", "13"]) == 0
    sheet = json.loads(capsys.readouterr().out)
    assert len({one["topic"] for one in sheet["questions"]}) == 13
    for one in sheet["questions"]:
        asked = question_of(one["id"])
        one["answers"] = [
            right_answer(ask, answer)[0] if ask.options else right_answer(ask, answer)
            for ask, answer in zip(asked.question.asks, asked.right, strict=True)
        ]
    sheet["questions"][0]["answers"] = ["what?"]
    path = tmp_path / "sheet.json"
    path.write_text(json.dumps(sheet))
    assert run(["drill", "--answers", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["score"] for one in found["grades"]] == [0.0] + [1.0] * 12
    assert found["score"] == pytest.approx(12 / 13)
    assert run(["drill", "--answers", str(path)]) == 0
    assert "12 of 13 all right" in capsys.readouterr().out
    assert not state.exists()


def test_a_late_answer_has_half_the_points() -> None:
    from ridgeline.drills.grading import grade

    asked = question_of(ONE)
    assert grade(asked, [right(ONE)], 119.0).score == 1.0
    assert grade(asked, [right(ONE)], 121.0).score == 0.5


@pytest.mark.parametrize("content", [b"", b"{", b'{"attempts": [{"when": 3}]}', b"\xff\xfe"])
def test_a_damaged_file_of_progress_is_one_line_and_kept_aside(
    state: Path, content: bytes, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    state.mkdir(parents=True)
    (state / "progress.json").write_bytes(content)
    answer(f"{right(ONE)}\n", monkeypatch)
    assert run(["drill", "--question", ONE]) == 0
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert "kept as progress.json.damaged-1, and begun anew" in err[0]
    assert (state / "progress.json.damaged-1").read_bytes() == content
    assert len(DrillHistory().read().attempts) == 1


def test_a_state_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RIDGELINE_STATE", str(tmp_path / "file"))
    answer(f"{right(ONE)}\n", monkeypatch)
    assert run(["drill", "--question", ONE]) == 2
    assert "set RIDGELINE_STATE to a folder that can be written" in capsys.readouterr().err


def test_the_best_of_earlier_sessions_is_told(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = DrillAttempt(
        when="2026-01-01T00:00:00", session="2026-01-01T00:00:00", id=ONE, topic="MFU", score=0.75,
        seconds=60.0,
    )  # fmt: skip
    write_record(state / "progress.json", DrillProgress(attempts=[earlier]))
    answer(f"{right(ONE)}\n", monkeypatch)
    assert run(["drill", "--question", ONE]) == 0
    assert "the best session before had 75 %" in capsys.readouterr().out
