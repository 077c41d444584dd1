"""How long, as people write it."""

from __future__ import annotations

import pytest

from ridgeline.cli.durations import duration_text, parse_duration
from ridgeline.cli.main import run


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400), ("2min 30s", 150),
     ("500ms", 0.5), ("1d", 86400)],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(duration_text(seconds)) == seconds


@pytest.mark.parametrize("command", ["tune", "doctor"])
@pytest.mark.parametrize("word", ["soon", "5 parsecs", "m5"])
def test_what_is_no_duration_is_one_line_with_the_cure(
    command: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--budget", word, "--", __file__]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "1h30m" in error
