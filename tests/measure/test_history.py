"""A history file: nothing is lost, nothing is guessed, and the first bad entry is named."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.measure.compare.history import HistoryEntry, append, judge, read_history
from ridgeline.measure.compare.readers import Origin


def an_entry(seconds: float, source: str = "run.json", device: str = "cpu") -> HistoryEntry:
    return HistoryEntry(
        source=source,
        kind="training",
        step_seconds=seconds,
        mean_step_seconds=seconds,
        steps=50,
        peak_memory_bytes=1,
        origin=Origin(device=device, command=["train.py"]),
    )


def a_history(path: Path, logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Path:
    entries = [an_entry(float(np.exp(log)), f"run-{index}.json") for index, log in enumerate(logs)]
    path.write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
    return path


def noise(count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(scale=0.01, size=count)


# The file


def test_entries_come_back_in_order_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "history.jsonl"
    for index in range(3):
        assert append(path, an_entry(1.0 + index))
    assert [(line, entry.step_seconds) for line, entry in read_history(path)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
    ]


def test_a_retried_job_adds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert append(path, an_entry(1.0))
    assert not append(path, an_entry(1.0))
    assert len(read_history(path)) == 1


def test_what_stands_in_the_file_is_kept_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    before = msgspec.json.encode(an_entry(1.0)).replace(b'"steps":50', b'"steps": 50, "later": 1')
    path.write_bytes(before)  # without a line end
    append(path, an_entry(2.0))
    assert path.read_bytes().startswith(before + b"\n{")
    assert len(read_history(path)) == 2


@pytest.mark.parametrize(
    "line", [b"{", b"nonsense", b'{"step_seconds": "fast"}', b"[]", b"\xff\xfe"]
)
def test_a_corrupt_line_is_named_and_nothing_is_written(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "history.jsonl"
    content = msgspec.json.encode(an_entry(1.0)) + b"\n\n" + line + b"\n"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        append(path, an_entry(2.0))
    assert str(caught.value).startswith(f"{path}:3: not a history entry")
    assert path.read_bytes() == content


def test_a_crash_while_writing_leaves_the_old_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.jsonl"
    append(path, an_entry(1.0))
    before = path.read_bytes()

    def crash(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        append(path, an_entry(2.0))
    assert path.read_bytes() == before


def test_a_link_to_the_history_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    append(real, an_entry(1.0))
    link.symlink_to(real)
    append(link, an_entry(2.0))
    assert link.is_symlink()
    assert len(read_history(real)) == 2


def _append_ten(path: Path, writer: int) -> None:
    for index in range(10):
        append(path, an_entry(1.0 + index, f"writer-{writer}"))


def test_entries_of_concurrent_jobs_all_arrive(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_ten, args=(path, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read_history(path)) == 30
    assert [leftover.name for leftover in tmp_path.iterdir()] == ["history.jsonl"]


# The judgement


def test_a_steady_history_is_steady(tmp_path: Path) -> None:
    verdict = judge(a_history(tmp_path / "h.jsonl", noise(40)), threshold=0.02)
    assert (verdict.verdict, verdict.first_bad, verdict.changes) == ("steady", None, [])


def test_a_jump_names_its_first_entry(tmp_path: Path) -> None:
    logs = noise(40)
    logs[30:] += 0.1
    verdict = judge(a_history(tmp_path / "h.jsonl", logs), threshold=0.02)
    assert verdict.verdict == "slower"
    assert verdict.first_bad is not None
    assert (verdict.first_bad.line, verdict.first_bad.source) == (31, "run-30.json")
    assert verdict.slowdown == pytest.approx(1.105, abs=0.02)
    assert [change.kind for change in verdict.changes] == ["jump"]


def test_a_slow_drift_names_the_first_entry_beyond_the_threshold(tmp_path: Path) -> None:
    logs = noise(60) + 0.004 * np.maximum(0, np.arange(60) - 20)
    verdict = judge(a_history(tmp_path / "h.jsonl", logs), threshold=0.02)
    assert verdict.first_bad is not None
    assert 20 < verdict.first_bad.line <= 33
    assert [change.kind for change in verdict.changes] == ["drift"]


def test_a_regression_that_was_repaired_is_remembered_but_not_held_against_anyone(
    tmp_path: Path,
) -> None:
    logs = noise(60)
    logs[20:40] += 0.2
    verdict = judge(a_history(tmp_path / "h.jsonl", logs), threshold=0.02)
    assert (verdict.verdict, verdict.first_bad) == ("steady", None)
    assert [change.at.line for change in verdict.changes] == [21, 41]


def test_half_a_repair_still_names_the_first_bad_entry(tmp_path: Path) -> None:
    logs = noise(60)
    logs[20:] += 0.3
    logs[40:] -= 0.1
    verdict = judge(a_history(tmp_path / "h.jsonl", logs), threshold=0.02)
    assert verdict.first_bad is not None
    assert verdict.first_bad.line == 21


def test_an_improvement_is_a_change_and_no_regression(tmp_path: Path) -> None:
    logs = noise(40)
    logs[25:] -= 0.2
    verdict = judge(a_history(tmp_path / "h.jsonl", logs), threshold=0.02)
    assert verdict.first_bad is None
    assert [change.at.line for change in verdict.changes] == [26]


def test_a_small_jump_within_the_threshold_is_no_regression(tmp_path: Path) -> None:
    logs = 0.1 * noise(60)
    logs[30:] += 0.01
    path = a_history(tmp_path / "h.jsonl", logs)
    assert judge(path, threshold=0.02).first_bad is None
    assert judge(path, threshold=0.0).first_bad is not None


def test_entries_of_another_machine_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    path = a_history(tmp_path / "h.jsonl", noise(20))
    with path.open("ab") as file:
        for _ in range(12):
            file.write(msgspec.json.encode(an_entry(5.0, device="H100")) + b"\n")
    verdict = judge(path, threshold=0.02)
    assert (verdict.verdict, verdict.entries, verdict.left_out) == ("steady", 12, 20)
    assert "20 of 32 entries" in verdict.warnings[0]


def test_a_young_history_says_that_it_is_too_short(tmp_path: Path) -> None:
    verdict = judge(a_history(tmp_path / "h.jsonl", noise(4)), threshold=0.02)
    assert verdict.verdict == "too few entries"
