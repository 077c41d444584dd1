"""A script that asks the user's terminal gets the answers that it gets without us."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("warm")
SCRIPT = Path(__file__).parent / "scripts" / "asks_the_terminal.py"


def at_a_terminal(command: list[str], columns: int) -> tuple[int, str]:
    """Exit code and output of a command that somebody starts at a terminal so wide."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))
    seen: list[bytes] = []

    def read() -> None:
        try:
            while block := os.read(master, 65_536):
                seen.append(block)
        except OSError:  # the other end is closed
            return

    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as process:
        reader = threading.Thread(target=read)
        reader.start()
        os.close(slave)
        code = process.wait(180)
    reader.join(10)
    os.close(master)
    return code, b"".join(seen).decode(errors="replace")


@pytest.mark.slow
def test_a_script_that_asks_how_wide_the_terminal_is_gets_its_profile() -> None:
    words = [sys.executable, "-m", "ridgeline.cli.main", "doctor", "--steps", "8"]
    code, shown = at_a_terminal([*words, "--budget", "20", "--", str(SCRIPT)], columns=123)
    assert code == 0, shown
    assert "-bound" in shown


@pytest.mark.slow
def test_where_nobody_sits_at_a_terminal_the_scripts_failure_is_its_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = [sys.executable, "-m", "ridgeline.cli.main", "doctor", "--steps", "8"]
    code = subprocess.run(
        [*words, "--budget", "20", "--", str(SCRIPT)], stdin=subprocess.DEVNULL, check=False
    ).returncode
    assert code == 2
    assert "it fails the same way without ridgeline" in " ".join(capfd.readouterr().err.split())
