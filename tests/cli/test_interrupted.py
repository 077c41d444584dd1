"""Ctrl-C at any moment: one line and exit code 130, or nothing at all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ridgeline

PROGRAM = Path(sys.executable).with_name("ridgeline")
OURS = str(Path(ridgeline.__file__).parent)
COMMANDS = [
    ["plan", "training", "--model", "Llama-3-70B", "--cluster", "256xH100", "--seq", "8192",
     "--global-batch", "512"],
    ["simulate", "serving", "--model", "Llama-3.1-8B", "--gpu", "H100", "--rate", "12",
     "--requests", "5000"],
    ["hardware"],
]  # fmt: skip
KILL = "os.kill(os.getpid(), signal.SIGINT)"
HALF_IMPORTED = "import sys, types; sys.modules['dataclasses'] = types.ModuleType('dataclasses')"
DYING = f"import time\nclass Dying:\n    def __del__(self): {KILL}; list(range(1000))"
MOMENTS = {
    "before the command begins": (f"main.run = lambda words, begin: {KILL}", True),
    "while a library is imported": (
        f"main.run = lambda words, begin: {KILL}\n{HALF_IMPORTED}",
        True,
    ),
    "while it works": (f"main.run = lambda words, begin: (begin(), {KILL})", True),
    "in the making of a class": (
        f"main.run = lambda words, begin: (begin(), exec('{KILL}; list(range(1000))'))",
        True,
    ),
    "where nothing can be raised": (
        f"{DYING}\nmain.run = lambda words, begin: (begin(), Dying() and None, time.sleep(9))",
        True,
    ),
    "when it is done": (
        f"import atexit; main.run = lambda words, begin: 0; atexit.register(lambda: {KILL})",
        False,
    ),
}


@pytest.mark.sweep("-m-where nothing can be raised", "-c-while a library is imported")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", ["-m", "-c"])
def test_ctrl_c_is_one_line_and_one_exit_code(way: str, moment: str, tmp_path: Path) -> None:
    text, interrupts = MOMENTS[moment]
    code = f"import os, signal\nfrom ridgeline.cli import main\n{text}\nmain.main()\n"
    (tmp_path / "interrupted.py").write_text(code)
    words = [way, "interrupted" if way == "-m" else code]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    expected = (130, "ridgeline: interrupted\n") if interrupts else (0, "")
    assert (done.returncode, done.stderr) == expected


def interrupted(command: list[str], seconds: float) -> None:
    """Start a command, interrupt it after a while, and look at how it ends."""
    process = subprocess.Popen(
        [PROGRAM, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "80"},
    )
    try:
        time.sleep(seconds)  # the moment is the point: none is wrong
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    if "KeyboardInterrupt" in errors or process.returncode == -signal.SIGINT:
        # Python's own start, or an import before `main`: nothing of ours was called.
        called = [line for line in errors.splitlines() if OURS in line and "<module>" not in line]
        assert called == []
        return
    if process.returncode == 0:
        return  # it was done before
    last = errors.splitlines()[-1:]
    assert (process.returncode, last) == (130, ["ridgeline: interrupted"]), errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=["plan", "simulate", "hardware"])
def test_ctrl_c_at_random_moments(command: list[str]) -> None:
    moments = random.Random(command[0])
    for _ in range(4):
        interrupted(command, moments.uniform(0.0, 1.5))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=["plan", "simulate", "hardware"])
def test_ctrl_c_at_two_hundred_random_moments(command: list[str]) -> None:
    moments = random.Random(command[0])
    for _ in range(200):
        interrupted(command, moments.uniform(0.0, 1.5))
