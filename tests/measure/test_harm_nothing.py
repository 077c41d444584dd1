"""A measured script leaves nothing behind: files are hashed before and after the command.

In both ways: with a view of the files of its own, and with copies kept from inside
(`RIDGELINE_VIEW=off`), as where the kernel permits no view.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.warm_scripts import run_module_warm

from ridgeline.measure.guard.offline import offline_variables

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


def run(folder: Path, way: str, words: list[str], **environment: str) -> Run:
    plant(folder)
    before = tree(folder)
    libraries = {"RIDGELINE_VIEW": WAYS[way], "PYTHONPATH": str(SCRIPT.parent / "libraries")}
    with contextlib.chdir(folder):
        done = run_module_warm([*RIDGELINE, *words], env=os.environ | libraries | environment)
    return Run(done, before, tree(folder), way)


@pytest.fixture(
    scope="module",
    params=[
        "view programs plain",
        pytest.param("view programs and a child with torch", marks=pytest.mark.slow),
        pytest.param("copies", marks=pytest.mark.slow),
    ],
)
def examined(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, probed: Path
) -> Run:
    way, *others = request.param.split()
    words = ["doctor", "--steps", "8", "--json", "--", str(SCRIPT), "40", *others]
    cache = tmp_path_factory.mktemp("cache")
    shutil.copytree(probed, cache, dirs_exist_ok=True)
    return run(tmp_path_factory.mktemp("work"), way, words, XDG_CACHE_HOME=str(cache))


def test_doctor_leaves_every_file_as_it_was(examined: Run) -> None:
    assert examined.document["profile"]["steps"] > 0
    assert examined.after == examined.before


def test_doctor_says_what_the_script_would_have_left(examined: Run) -> None:
    noted = examined.document["profile"]["side_effects"]
    assert noted["protection"] == examined.way
    assert noted["files"] > 30
    assert len(noted["first_files"]) == 8


def test_doctor_keeps_uploads_at_home_and_says_so(examined: Run) -> None:
    noted = examined.document["profile"]["side_effects"]
    assert noted["offline"] == ["huggingface_hub", "wandb"]
    assert noted["unprotected"] == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_a_script_made_and_removed_again_is_not_told(way: str, tmp_path: Path) -> None:
    words = ["doctor", "--steps", "8", "--json", "--", str(SCRIPT.with_name("cleans_up.py"))]
    noted = run(tmp_path, way, words).document["profile"]["side_effects"]
    assert noted is None or noted["first_files"] == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_tune_leaves_every_file_as_it_was(
    way: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both sides of an A/B run write the same paths, and neither is seen by the user."""
    out = tmp_path_factory.mktemp("out")
    only = ["--only", "fused-optimizer", "--only", "gc-freeze", "--only", "foreach-optimizer"]
    words = ["tune", "--budget", "20s", *only, "--out", str(out), "--json"]
    tuned = run(tmp_path_factory.mktemp("work"), way, [*words, "--", str(SCRIPT), "100000"])
    assert tuned.document["record"] == "tuning"
    assert tuned.after == tuned.before


KNOWN_DIFFERENCES = {"PYTHONPATH", "WORLD", "PWD", "_"}
"""Of the environment: the first is how the interception gets in."""


@pytest.fixture(scope="module")
def heard() -> Iterator[None]:
    """SIGINT as at a terminal: a shell has what it starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, probed: Path, heard: None
) -> Callable[[str], dict[str, Any]]:
    """What a script sees of its surroundings: started plainly, or by doctor in a way."""
    folder = tmp_path_factory.mktemp("world")
    cache = tmp_path_factory.mktemp("cache")
    shutil.copytree(probed, cache, dirs_exist_ok=True)
    (folder / "input.txt").write_text("yes\nno\n")
    words = [str(SCRIPT.with_name("tells_its_world.py")), "30", "--name", "a b"]

    def seen(name: str) -> dict[str, Any]:
        start = (
            [sys.executable] if name == "plain" else [*RIDGELINE, "doctor", "--steps", "8", "--"]
        )
        environment = os.environ | {"XDG_CACHE_HOME": str(cache), "WORLD": name}
        with (folder / "input.txt").open() as file:
            subprocess.run(
                [*start, *words],
                cwd=folder,
                check=True,
                stdin=file,
                capture_output=True,
                start_new_session=True,
                env=environment | {"RIDGELINE_VIEW": WAYS[name]} if name in WAYS else environment,
            )
        found: dict[str, Any] = json.loads((cache / name).read_text())
        return found

    return seen


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_script_sees_what_it_sees_without_us(
    way: str, world: Callable[[str], dict[str, Any]]
) -> None:
    plain, seen = world("plain"), world(way)
    without = plain.pop("environment")
    with_us = seen.pop("environment")
    added = {name for name in with_us if with_us[name] != without.get(name)} - KNOWN_DIFFERENCES
    assert added == set(offline_variables(Path())), "what keeps libraries at home, and no more"
    assert not set(without) - set(with_us)
    assert seen == plain


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_out_of_a_cache_of_data_nothing_is_lost_and_more_may_come(way: str, tmp_path: Path) -> None:
    data = tmp_path / "keras" / "datasets"
    (data / "folder").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    lying = ("removed.npz", "folder/inner.npz", "replaced.npz", "renamed.npz", "busy.lock")
    for name in lying:
        (data / name).write_text(f"gigabytes: {name}")
    script = SCRIPT.with_name("empties_its_cache.py")
    subprocess.run(
        [*RIDGELINE, "doctor", "--steps", "8", "--", str(script)],
        cwd=tmp_path / "work",
        check=True,
        capture_output=True,
        env=os.environ | {"KERAS_HOME": str(tmp_path / "keras"), "RIDGELINE_VIEW": WAYS[way]},
    )
    left = {
        str(path.relative_to(data)): path.read_text() for path in data.rglob("*") if path.is_file()
    }
    kept = {name: f"gigabytes: {name}" for name in lying if name not in ("replaced.npz",)}
    del kept["busy.lock"]
    assert left == {
        **kept,
        "replaced.npz": "newer",
        "downloaded.npz": "more",
        "another.npz": "gigabytes: renamed.npz",
    }
    assert not list(tmp_path.rglob("*ridgeline*"))
