"""The tutorials, run as they stand: every command in a shell, every Python block as a script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""Language and text: none is a shell's, `python` is a script, `text` shows what comes out."""
STAYS = ("ridgeline serve ", "ridgeline studio")
"""Commands that do not end by themselves."""
ENDS = {"--max-loss": {3}, "ridgeline compare": {0, 3}, "--max-miss 1%": {3},
        "--check mine": {0, 3}}  # fmt: skip
"""A word of a command → how it may end, where that is not 0."""
MADE = {
    "first-ledger": "ridgeline-tune/report.html",
    "compress-a-model": "mixed/report.html",
    "resnet-50-in-less-time": "plan.html",
    "mend-a-kernel": "check.html",
    "ten-minutes": "map.html",
    "meet-a-deadline": "ridgeline-realtime/tuned.py",
}


def by_name(page: Path) -> str:
    return page.stem


def play(page: Path, folder: Path) -> None:
    """Run the blocks of a page one after the other in one folder, a repository with examples."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for language, block in BLOCK.findall(page.read_text()):
        lines = [] if language else block.splitlines()
        commands = [["bash", "-c", line] for line in lines if not line.startswith(STAYS)]
        if language == "python":
            commands = [[sys.executable, "-c", block]]
        for command in commands:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            meant = next((ENDS[word] for word in ENDS if word in command[-1]), {0})
            assert done.returncode in meant, f"{command[-1]}\n{done.stdout}{done.stderr}"
    assert (folder / MADE.get(page.stem, "recipe.toml")).exists()
    assert not (folder / "w3").exists(), "what lost too much was saved"


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=by_name)
def test_a_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    play(page, tmp_path)
