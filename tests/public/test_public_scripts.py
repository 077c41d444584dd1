"""Public scripts are examined unmodified: a verdict, no harm, no traceback of ours.

Their sources are not part of this repository: `scripts.toml` says which, at which commit, and
how to lay them out for `RIDGELINE_PUBLIC_SCRIPTS`. `bench/public_corpus.py` runs them all.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.public.table import Script, link_inputs, read_table, started

from ridgeline.records import Verdict

PROGRAM = [sys.executable, "-m", "ridgeline.cli.main"]
ROOT = Path(__file__).parents[2]
TABLE = read_table()
SCRIPTS = {script.name: script for script in TABLE.script}


@pytest.fixture
def checkouts() -> Path:
    folder = os.environ.get("RIDGELINE_PUBLIC_SCRIPTS")
    if folder is None:
        pytest.skip("RIDGELINE_PUBLIC_SCRIPTS names no folder of checkouts; see scripts.toml")
    return Path(folder).resolve()


def test_the_table_names_120_scripts_of_50_repositories_at_their_commits() -> None:
    assert len(TABLE.script) == len(SCRIPTS) >= 120
    assert {script.repository for script in TABLE.script} == TABLE.repositories.keys()
    assert len(TABLE.repositories) >= 50
    for repository, commit in TABLE.repositories.items():
        assert re.fullmatch(r"[0-9a-f]{40}|pip install [\w-]+==[\w.]+", commit), repository


def test_each_row_says_what_reasoning_allows_or_why_there_can_be_no_profile() -> None:
    verdicts = {verdict.value for verdict in Verdict}
    for script in TABLE.script:
        assert script.bounds or script.refused, script.name
        assert set(script.bounds) <= verdicts, script.name
        assert script.kind in ("training", "inference"), script.name


def test_each_start_is_of_words_below_the_folder_of_checkouts() -> None:
    for script in TABLE.script:
        start = started(script, TABLE, Path("/checkouts"), Path("/out"))
        assert start.words, script.name
        assert not any("{" in word for word in start.words), script.name
        assert start.folder.is_relative_to("/checkouts"), script.name


def test_the_page_is_written_from_the_results() -> None:
    from bench.public_corpus import COLUMNS, PAGE, RESULTS, page, read_results

    with RESULTS.open(newline="", encoding="utf-8") as file:
        assert tuple(next(csv.reader(file))) == COLUMNS
    results = read_results()
    assert results.keys() <= SCRIPTS.keys()
    assert PAGE.read_text(encoding="utf-8") == page(TABLE, results)


def runnable(script: Script, root: Path) -> None:
    """Skip, with the reason, what this machine cannot run."""
    folder = root / script.folder
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; check out {script.repository}")
    for module in script.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{script.name} needs {module}")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_public_script_is_examined_as_it_stands(
    name: str, checkouts: Path, tmp_path: Path
) -> None:
    from bench.public_corpus import contents

    script = SCRIPTS[name]
    runnable(script, checkouts)
    link_inputs(script, checkouts)
    start = started(script, TABLE, checkouts, tmp_path)
    before = contents(start.folder)
    done = subprocess.run(
        [*PROGRAM, "doctor", "--json", "--budget", "60", "--", *start.words],
        cwd=start.folder, env={**os.environ, **start.environment}, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    after = contents(start.folder)
    assert {path: after.get(path) for path in before} == before
    if script.refused:
        assert done.returncode == 2
        assert script.refused in done.stderr
        return
    assert done.returncode == 0, done.stderr[-1500:]
    document = json.loads(done.stdout)
    profile = document["profile"]
    assert profile["kind"] == script.kind
    assert profile["steps"] >= min(script.at_least, 10)
    phases = sum(phase["mean"] for phase in profile["phases"].values())
    assert phases == pytest.approx(profile["step_seconds"]["mean"], rel=1e-6)
    assert 0 < document["limit_fraction"] <= 1.0
    assert document["verdict"] in script.bounds
