"""Ridgeline is ended at any moment: no process stays, and every file is as it was."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
from tests.measure.test_harm_nothing import WAYS, tree

SCRIPT = Path(__file__).parent / "scripts" / "many_processes.py"
RIDGELINE = [sys.executable, "-m", "ridgeline.cli.main"]
PATIENCE_SECONDS = 120.0


def marked(mark: str) -> list[str]:
    """The processes that inherited an environment with a mark in it."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if mark.encode() in (entry / "environ").read_bytes() and state != "Z":
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{entry.name} {state} {words}")
    return found


def until(what: str, seconds: float, *, mark: str, moment: float) -> None:
    deadline = time.monotonic() + seconds
    while left := marked(mark):
        assert time.monotonic() < deadline, f"{what} after {moment:.2f} s: {left}"
        time.sleep(0.02)


def end(way: str, how: signal.Signals, moment: float, folder: Path) -> subprocess.Popen[str]:
    """Start the doctor, end it at a moment, and wait until nobody is left."""
    folder.mkdir()
    temporary = Path(tempfile.mkdtemp(prefix="t"))  # a short name, for a socket in it
    work = folder / "work"
    work.mkdir()
    (work / "checkpoint.pt").write_bytes(b"weeks of training")
    before = tree(work)
    mark = uuid.uuid4().hex
    environment = os.environ | {
        "RIDGELINE_VIEW": WAYS[way], "MARK": mark, "TMPDIR": str(temporary),
    }  # fmt: skip
    with subprocess.Popen(
        [*RIDGELINE, "doctor", "--steps", "100000", "--", str(SCRIPT)],
        cwd=work,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in (-how, 130), f"{moment:.2f} s: {process.returncode} {errors}"
    until("left over", PATIENCE_SECONDS, mark=mark, moment=moment)
    assert tree(work) == before, f"{way} {how.name} after {moment:.2f} s"
    left = [path.name for path in temporary.iterdir() if path.name.startswith("ridgeline-")]
    assert not left, f"{way} {how.name} after {moment:.2f} s: {left}"
    shutil.rmtree(temporary)
    return process


@pytest.mark.sweep("view-9-0.6")
@pytest.mark.parametrize(
    ("way", "how", "moment"),
    [
        ("view", signal.SIGKILL, 0.6),
        ("view", signal.SIGKILL, 9.0),
        ("copies", signal.SIGKILL, 10.0),
        ("view", signal.SIGINT, 8.0),
    ],
)
def test_nothing_is_left_of_an_ended_run(
    way: str, how: signal.Signals, moment: float, tmp_path: Path
) -> None:
    end(way, how, moment, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_at_thirty_random_moments(way: str, tmp_path: Path) -> None:
    for number in range(30):
        how = random.choice([signal.SIGKILL, signal.SIGINT])
        end(way, how, random.uniform(0.05, 14.0), tmp_path / str(number))
