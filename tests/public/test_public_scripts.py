"""Public training scripts are examined unmodified, and do what they do without us.

Their sources are not part of this repository: `scripts.toml` says which, at which commit, and
how to lay them out for `RIDGELINE_PUBLIC_SCRIPTS`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

PROGRAM = [sys.executable, "-m", "ridgeline.cli.main"]
TABLE = Path(__file__).with_name("scripts.toml")
ROWS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in tomllib.loads(TABLE.read_text())["script"]
}


@pytest.fixture
def checkouts() -> Path:
    folder = os.environ.get("RIDGELINE_PUBLIC_SCRIPTS")
    if folder is None:
        pytest.skip(f"RIDGELINE_PUBLIC_SCRIPTS names no folder of checkouts; see {TABLE.name}")
    return Path(folder).resolve()


def examine(row: dict[str, Any], root: Path, out: Path) -> dict[str, Any]:
    """`ridgeline doctor --json` on one public script, from its own folder."""
    folder = root / row["folder"]
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; check out {row['repository']} at {row['commit']}")
    for module in row.get("needs", ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{row['name']} needs {module}")
    command = [word.format(root=root, out=out) for word in row["command"]]
    settings = {name: text.format(root=root) for name, text in row.get("environment", {}).items()}
    done = subprocess.run(
        [*PROGRAM, "doctor", "--json", "--budget", "60", "--", *command],
        cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1500:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_the_table_names_at_least_eight_repositories_and_their_commits() -> None:
    assert len({row["repository"] for row in ROWS.values()}) >= 8
    assert all(row["commit"] for row in ROWS.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_public_script_is_examined_as_it_stands(
    name: str, checkouts: Path, tmp_path: Path
) -> None:
    document = examine(ROWS[name], checkouts, tmp_path)
    profile = document["profile"]
    assert profile["kind"] == "training"
    assert profile["steps"] >= min(ROWS[name]["at_least"], 10)
    phases = sum(phase["mean"] for phase in profile["phases"].values())
    assert phases == pytest.approx(profile["step_seconds"]["mean"], rel=1e-6)
    assert 0 < document["limit_fraction"] <= 1.0
    assert document["verdict"]
