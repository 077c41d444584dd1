"""A measured script leaves nothing behind: files are hashed before and after the command.

In both ways: with a view of the files of its own, and with copies kept from inside
(`RIDGELINE_VIEW=off`), as where the kernel permits no view.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "writes_everywhere.py"
RIDGELINE = [sys.executable, "-m", "ridgeline.cli.main"]
WAYS = {"view": "on", "copies": "off"}


def tree(folder: Path) -> dict[str, tuple[Any, ...]]:
    """All of a folder: what each entry is, its rights, its time, its content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        entry = path.lstat()
        if stat.S_ISLNK(entry.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(entry.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            content = ""
        times = entry.st_mtime_ns if stat.S_ISREG(entry.st_mode) else 0
        found[str(path.relative_to(folder))] = (stat.filemode(entry.st_mode), times, content)
    return found


def plant(folder: Path) -> None:
    """What the script will write to, rename and remove."""
    for name in ("old.txt", "old.pt", "old.bin", "old.safetensors", "removed.txt", "cut.txt",
                 "by_rm.txt", "by_mv.txt", "runs.db.backup", "table.csv"):  # fmt: skip
        (folder / name).write_bytes(b"weeks of training: " + name.encode())
    for name in ("kept", "gone", "whole"):
        (folder / name).mkdir()
        (folder / name / "inner.txt").write_text(f"inside of {name}")
    (folder / "link").symlink_to("old.txt")


@dataclass(frozen=True)
class Run:
    """One command and the folder that it ran in."""

    done: subprocess.CompletedProcess[str]
    before: dict[str, tuple[Any, ...]]
    after: dict[str, tuple[Any, ...]]
    way: str

    @property
    def document(self) -> dict[str, Any]:
        """What it said with --json."""
        assert self.done.returncode == 0, self.done.stderr
        return json.loads(self.done.stdout)


def run(folder: Path, way: str, words: list[str]) -> Run:
    plant(folder)
    before = tree(folder)
    done = subprocess.run(
        [*RIDGELINE, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"RIDGELINE_VIEW": WAYS[way]},
    )
    return Run(done, before, tree(folder), way)


@pytest.fixture(scope="module", params=["view", "copies"])
def examined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    words = [str(SCRIPT), "40"] + ["programs"] * (request.param == "view")
    folder = tmp_path_factory.mktemp("work")
    return run(folder, request.param, ["doctor", "--steps", "8", "--json", "--", *words])


def test_doctor_leaves_every_file_as_it_was(examined: Run) -> None:
    assert examined.document["profile"]["steps"] > 0
    assert examined.after == examined.before


def test_doctor_says_what_the_script_would_have_left(examined: Run) -> None:
    noted = examined.document["profile"]["side_effects"]
    assert noted["protection"] == examined.way
    assert noted["files"] > 30
    assert len(noted["first_files"]) == 8
