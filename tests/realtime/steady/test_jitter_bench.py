"""The jitter experiment runs, and `--steady` makes frames more even than the default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench/realtime_jitter.py"


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(
    not hasattr(os, "SCHED_FIFO") or os.geteuid() != 0, reason="real-time priority is refused here"
)
def test_a_steady_process_is_more_even_beside_busy_ones(tmp_path: Path) -> None:
    out = tmp_path / "jitter.json"
    options = ["--frames", "90", "--rounds", "3", "--arms", "default", "steady", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, str(BENCH), *options], capture_output=True, text=True, check=True
    )
    rows = json.loads(out.read_text())
    evener = [
        default["ratio"] > steady["ratio"]
        for default, steady in zip(rows["default"], rows["steady"], strict=True)
    ]
    assert sum(evener) >= 2, done.stdout
