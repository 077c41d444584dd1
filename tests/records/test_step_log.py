"""Step logs as engines leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.records.step_log import COLUMNS, StepRow, StepWork, line, read_step_log

ROWS = [
    StepRow(12.5, 0.25, 1, StepWork(256, 32_896, 1, 3, 900)),
    StepRow(12.75, 0.015, 0, StepWork(decodes=4, decode_context=1_160)),
]


def written(path: Path, *more: str) -> Path:
    path.write_text(",".join(COLUMNS) + "\n" + "".join(map(line, ROWS)) + "".join(more))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_step_log(written(tmp_path / "steps.csv")) == ROWS


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    assert read_step_log(written(tmp_path / "steps.csv", "13.0,0.0")) == ROWS


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("13.0,x,0,0,0,0,1,20\n", "line 4"),
        ("13.0,-1,0,0,0,0,1,20\n", "a step of -1.0 s"),
        ("13.0,0.1,0,0,0,0,-1,20\n", "a count below 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_step_log(written(tmp_path / "steps.csv", more))


def test_another_file_is_no_step_log(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="serve --step-log"):
        read_step_log(path)
    path.write_text("")
    with pytest.raises(InputError, match="no step log"):
        read_step_log(path)
