"""`ridgeline compress chain` with real trainings, killed half-way, to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_compress_chain import SHARED, SOURCES, STAGES

from ridgeline.measure.child_tree import descendants
from ridgeline.records.training_run import read_log

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]
CHAIN = (
    SHARED.replace("steps = 2", "steps = 40\nlog_every = 1\n[recipe.checkpoint]\nevery_steps = 5")
    + STAGES
)
SECONDS = 120


def chain(place: Path, out: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "ridgeline.cli.main", "compress", "chain", "chain.toml"),
            *("--out", out, "--device", "cpu", "--no-speed", "--json"),
        ],
        cwd=place,
        env=os.environ
        | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def what_it_found(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The rows of a chain that ended well, without what clocks say."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    rows = json.loads(output)["rows"]
    for row in rows:
        row.pop("seconds")
        if row["training"] is not None:
            row["training"].pop("seconds")
    return list(rows)


def test_a_chain_killed_in_a_training_ends_with_the_ledger_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "decoder.txt").write_text((SOURCES / "decoder.py").read_text())
    (tmp_path / "held.txt").write_text((SOURCES / "encoder.py").read_text()[:600])
    (tmp_path / "chain.toml").write_text(CHAIN)
    undisturbed = what_it_found(chain(tmp_path, "whole"))
    killed = chain(tmp_path, "killed")
    under_way = tmp_path / "killed.partial" / "02-distilled" / "run"
    deadline = time.monotonic() + SECONDS
    while not any(line.step >= 12 for line in read_log(under_way)):
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    below = descendants(killed.pid)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not (tmp_path / "killed").exists()
    pruned = tmp_path / "killed.partial" / "01-pruned" / "row.json"
    written = pruned.stat().st_mtime_ns
    resumed = chain(tmp_path, "killed")
    stamps = {written}
    while resumed.poll() is None and pruned.exists():
        stamps.add(pruned.stat().st_mtime_ns)
        time.sleep(0.05)
        if (tmp_path / "killed.partial" / "03-taught-again" / "row.json").exists():
            break
    assert what_it_found(resumed) == undisturbed
    assert stamps == {written}, "the stage that was done is not judged again"
    assert [row["training"] and row["training"]["steps"] for row in undisturbed] == [
        None, None, 40, 3, None,
    ]  # fmt: skip
