"""A disk that is full costs one clear line, and nothing of the user's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.measure.test_harm_nothing import tree

SCRIPT = Path(__file__).parent / "scripts" / "plain_loop.py"
SMALL_DISK = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'


def on_a_small_disk(disk: Path, size: str, words: list[str]) -> list[str]:
    """A command in a namespace of its own, where `disk` holds no more than `size`."""
    start = ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", SMALL_DISK, "sh"]
    return [*start, size, str(disk), *words]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    made = tmp_path / "disk"
    made.mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    tried = subprocess.run(on_a_small_disk(made, "64k", ["true"]), check=False, capture_output=True)
    if tried.returncode != 0:
        pytest.skip("no mount namespaces here")
    return made


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must not show its own frames, however it ends."""
    shutil.copy(SCRIPT, folder / "train.py")
    before = tree(folder)
    done = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env=os.environ | environment,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert tree(folder) == before
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("size", ["16k", "256k"])
def test_tune_on_a_full_disk_says_which_file(disk: Path, folder: Path, size: str) -> None:
    tune = [sys.executable, "-m", "ridgeline.cli.main", "tune", "--budget", "20s"]
    words = [*tune, "--only", "fused-optimizer", "--out", str(disk), "--", "train.py", "100000"]
    done = run(on_a_small_disk(disk, size, words), folder)
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert re.match(
        rf"ridgeline: no space left on the disk: {disk}/\w+\.\w+ was not written; make room", said
    )


@pytest.mark.slow
def test_doctor_answers_though_the_temporary_folder_is_full(disk: Path, folder: Path) -> None:
    words = [sys.executable, "-m", "ridgeline.cli.main", "doctor", "--steps", "8", "--", "train.py"]
    done = run(on_a_small_disk(disk, "4k", words), folder, TMPDIR=str(disk))
    if done.returncode == 0:
        assert "bound" in done.stdout
    else:
        assert done.stderr.strip().splitlines()[-1].startswith("ridgeline: no space left")
