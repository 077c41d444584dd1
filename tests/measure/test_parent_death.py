"""Processes that end with their parent, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import sys, time
from ridgeline.measure import parent_death
parent_death.{how}
print("up", flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
print(child.pid, flush=True)
child.wait()
"""


def started(how: str) -> tuple[subprocess.Popen[str], int]:
    """A parent, and the process id of its child once that is up."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD.format(how=how)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert parent.stdout is not None
    lines = sorted([parent.stdout.readline().strip(), parent.stdout.readline().strip()])
    assert lines[1] == "up"
    return parent, int(lines[0])


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    "how",
    ["die_with_parent()", "watch_parent(__import__('os').getppid())"],
    ids=["by the kernel", "by a thread"],
)
def test_a_child_ends_with_a_parent_that_is_killed(how: str) -> None:
    parent, child = started(how)
    assert is_running(child)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + 50
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_whose_parent_was_gone_before_it_asked_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(how="die_with_parent(1 << 30)")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        check=False,
        timeout=50,
    )
    assert done.returncode == -signal.SIGKILL
