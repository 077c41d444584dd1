"""Every log that is appended to, cut short at every byte as a kill leaves it: whole lines stay.

A log that is written anywhere in the source and is not in `LOGS` fails here.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.train.watch.test_log import logged

import ridgeline
from ridgeline.compress.search.search import SearchLog
from ridgeline.errors import InputError
from ridgeline.records.appended import AppendedFile, read_lines
from ridgeline.records.compression import LayerLoss
from ridgeline.records.step_log import COLUMNS, StepRow, StepWork, line, read_step_log
from ridgeline.records.training_run import FILE as STEPS
from ridgeline.records.training_run import read_log as read_steps
from ridgeline.train.survive.events import (
    EventLog,
    SkippedBatch,
    read_events,
    skip,
    skipped_batches,
)


def _step(folder: Path, number: int) -> None:
    file = AppendedFile(folder / STEPS)  # as `TrainingLog` does, without TensorBoard's files
    file.append(msgspec.json.encode(logged(number)))
    file.close()


def _event(folder: Path, number: int) -> None:
    log = EventLog(folder, clock=lambda: 1.7e9)
    log.write("checkpoint", number, note='a {quoted} "note" of rank 0')
    log.close()


def _skipped(folder: Path, number: int) -> None:
    skip(folder, SkippedBatch(step=number, samples=8 * number, why="loss was {nan}"))


def _loss(folder: Path, number: int) -> None:
    log = SearchLog(folder)
    log.add(LayerLoss(layer=f"model.{number}", scheme="w4a16", kl=0.25))
    log.close()


def _losses(folder: Path) -> list[int]:
    log = SearchLog(folder)
    log.close()
    return [int(layer.partition(".")[2]) for layer, _ in log.losses]


LOGS: dict[str, tuple[Callable[[Path, int], None], Callable[[Path], list[Any]]]] = {
    "log.jsonl": (_step, lambda folder: [one.step for one in read_steps(folder)]),
    "events.jsonl": (_event, lambda folder: [one.step for one in read_events(folder)]),
    "skipped.jsonl": (_skipped, lambda folder: [one.step for one in skipped_batches(folder)]),
    "sensitivities.jsonl": (_loss, _losses),
}
"""File → how one entry is appended as whoever starts anew does, and what all entries are."""


def test_no_log_is_missing_here() -> None:
    root = Path(ridgeline.__file__).parent
    named = {
        name
        for path in root.rglob("*.py")
        for name in re.findall(r'^[A-Z]+ = "(\w+\.jsonl)"', path.read_text(), re.MULTILINE)
    }
    assert named == set(LOGS)
    appending = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"""open\(["']a|O_APPEND|, ["']ab?["']\)""", path.read_text())
    }
    assert appending == {
        "export/process.py",  # what a worker says
        "checkpoints/writing.py",  # its own working file
        "measure/bootstrap/sitecustomize.py",  # lines that live as long as a run
        "measure/child/guard.py",  # the same
        "measure/child/seeds.py",  # no file: a keyword of random.seed
        "measure/live/conductor.py",  # what a child says
        "measure/guard/keep.py",  # lines that live as long as a run
        "measure/guard/offline.py",  # the same
        "measure/compare/history.py",  # the lock; the file is replaced whole
        "records/appended.py",
        "train/start.py",  # what a child says
    }


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_was_cut_at_any_byte_is_read_and_gone_on_with(name: str, tmp_path: Path) -> None:
    write, read = LOGS[name]
    for number in (1, 2):
        write(tmp_path, number)
    whole = (tmp_path / name).read_bytes()
    for end in range(len(whole) + 1):
        folder = tmp_path / str(end)
        folder.mkdir()
        (folder / name).write_bytes(whole[:end])
        before = read(folder)
        assert before == [1, 2][: len(before)]
        assert len(before) >= whole[:end].count(b"\n")
        write(folder, 3)
        assert read(folder) == [*before, 3]


def test_a_step_log_that_was_cut_at_any_byte_has_no_step_that_never_was(tmp_path: Path) -> None:
    rows = [StepRow(float(n), 0.25, 3, StepWork(decodes=12, decode_context=345)) for n in range(3)]
    whole = ",".join(COLUMNS) + "\n" + "".join(map(line, rows))
    path = tmp_path / "steps.csv"
    for end in range(whole.index("\n") + 1, len(whole) + 1):
        path.write_text(whole[:end])
        found = read_step_log(path)
        assert found == rows[: whole[:end].count("\n") - 1]


def test_two_lines_that_an_older_release_ran_together_are_told_apart(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        _event(tmp_path, number)
    path = tmp_path / "events.jsonl"
    one, two, three = path.read_bytes().splitlines()
    for cut in range(1, len(two) + 1):
        path.write_bytes(b"\n".join([one, two[:cut] + three, b""]))
        found = [event.step for event in read_events(tmp_path)]
        assert found == ([1, 2, 3] if cut == len(two) else [1, 3])


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n2\nthree\n4\n")
    with pytest.raises(InputError, match=r"lines, line 3: .*repair or remove the line"):
        read_lines(path, msgspec.json.Decoder(int).decode)
    deep = b"[" * 100_000
    path.write_bytes(b"1\n" + deep + b"\n")
    with pytest.raises(InputError, match="lines, line 2: ") as caught:
        read_lines(path, msgspec.json.Decoder(int).decode)
    assert len(str(caught.value)) < 300


def _append_many(path: Path, writer: int, barrier: Any) -> None:
    barrier.wait()
    for number in range(200):
        file = AppendedFile(path)  # as ranks that start again
        file.append(f'{{"writer":{writer},"number":{number},"pad":"{"x" * 300}"}}'.encode())
        file.close()


def test_several_processes_that_append_at_once_lose_no_line(tmp_path: Path) -> None:
    path, context = tmp_path / "lines", multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    processes = [
        context.Process(target=_append_many, args=(path, writer, barrier)) for writer in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    found = read_lines(path, msgspec.json.decode)
    for writer in range(3):
        assert [one["number"] for one in found if one["writer"] == writer] == list(range(200))
