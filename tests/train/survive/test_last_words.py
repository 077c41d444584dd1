"""What is told of a rank that ended without a message for us."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.train.start import _what_failed


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_the_last_line_of_a_traceback_is_told_with_and_without_torchs_prefix(
    tmp_path: Path, prefix: str
) -> None:
    log = tmp_path / "logs" / "run" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    lines = ["Traceback (most recent call last):", "  File …", "ValueError: no such thing"]
    log.write_text("".join(f"{prefix}{line}\n" for line in lines))
    assert "a rank ended with 1: ValueError: no such thing; see" in str(_what_failed(tmp_path, 1))
