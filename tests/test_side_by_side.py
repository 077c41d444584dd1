"""`pytest --forks N`: each test runs once, what failed is said, and a fork that dies hides none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAD = """
import os, pathlib, signal
import pytest

NOTED = pathlib.Path(__file__).parent / "noted"

def note(name):
    with NOTED.open("a") as file:
        file.write(name + "\\n")
"""
FILES = {
    "test_first.py": """
@pytest.fixture(scope="session")
def shared():
    note("made")

@pytest.mark.parametrize("at", range(3))
def test_passes(at, shared, tmp_path):
    (tmp_path / "own").touch()
    note(f"first {at}")

def test_fails():
    print("said in passing")
    assert "apples" == "pears"

@pytest.mark.alone
def test_wants_the_machine():
    note("alone")
""",
    "test_second.py": """
def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)
""",
    "test_third.py": """
@pytest.mark.alone
def test_wants_it_too():
    note("alone too")

def test_passes():
    note("third")

@pytest.mark.slow
def test_takes_long():
    note("slow")
""",
    "test_fourth.py": "raise ValueError('no test can be read here')\n",
}


@pytest.mark.slow
def test_every_test_runs_once_and_what_went_wrong_is_said(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(HEAD + text)
    words = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--forks", "2", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if "XDIST" not in name},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 6 passed, 1 error in" in done.stdout
    assert "the fork that ran it died (signal 9)" in done.stdout
    assert "said in passing" in done.stdout
    assert "no test can be read here" in done.stdout
    noted = (tmp_path / "noted").read_text().splitlines()
    assert sorted(noted[-2:]) == ["alone", "alone too"]
    assert sorted(noted[:-2]) == ["first 0", "first 1", "first 2", "made", "third"]
