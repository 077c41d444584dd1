"""Every `ridgeline` command that the documents show is one that the program understands."""

from __future__ import annotations

import pkgutil
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.site_pages import site_pages

from ridgeline.cli.commands import COMMANDS
from ridgeline.cli.program import load_command

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
RETIRED = ROOT / "docs" / "retired.md"
TORCH_NAME = re.compile(r"`(torch(?:\.\w+)+)`")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


def shown_commands(page: Path) -> list[list[str]]:
    """Words of the `ridgeline …` lines in a page's code blocks, comments left out."""
    found = []
    for block in FENCE.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True) if is_command(line) else []
            if ">" in words:  # the shell's business
                words = words[: words.index(">")]
            if words:
                found.append(words[1:])
    return found


def is_command(line: str) -> bool:
    """A command that could be typed: a synopsis has brackets or dots in it."""
    shown = line.removeprefix("$ ")
    return shown.startswith("ridgeline ") and "…" not in shown and "[" not in shown


SHOWN = [(page.relative_to(ROOT).as_posix(), words) for page in PAGES
         for words in shown_commands(page)]  # fmt: skip


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(("page", "words"), SHOWN, ids=[f"{p}: {' '.join(w)}" for p, w in SHOWN])
def test_a_command_in_the_documents_parses(page: str, words: list[str]) -> None:
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    assert name in COMMANDS, f"{page} shows a command that does not exist"
    rest = words[len(name.split()) :]
    if rest not in (["--help"], ["-h"]):
        load_command(name).make_context(name, rest)


def test_the_documents_show_every_command() -> None:
    shown = {" ".join(words) for _, words in SHOWN}
    missing = [name for name in COMMANDS if not any(line.startswith(name) for line in shown)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_in_the_documents_lead_somewhere(page: Path) -> None:
    targets = [target for target, _ in LINK.findall(page.read_text()) if "://" not in target]
    made = {(ROOT / "docs" / place).resolve() for place in site_pages().generated_pages()}
    gone = [one for one in targets if not (page.parent / one).exists()]
    assert [one for one in gone if (page.parent / one).resolve() not in made] == []


def test_the_first_page_is_short_and_its_figures_are_measured_ones() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    ledger = text.partition("Technique  ")[2].partition("```")[0]
    measured = (ROOT / "docs/performance.md").read_text()
    shown = re.findall(r"^[✓–].*?([\d.]+)×\s+\[([\d.]+), ([\d.]+)\]", ledger, re.MULTILINE)
    assert len(shown) == 3
    for multiplier, low, high in shown:
        assert f"| {multiplier} | {low} – {high} |" in measured


def test_the_diff_on_the_first_page_applies_to_the_example(tmp_path: Path) -> None:
    diff = (ROOT / "README.md").read_text().partition("```diff\n")[2].partition("```")[0]
    shutil.copy(ROOT / "examples/train_gpt.py", tmp_path)
    patch = f"--- a/train_gpt.py\n+++ b/train_gpt.py\n{diff}"
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=tmp_path, check=True)
    compile((tmp_path / "train_gpt.py").read_text(), "train_gpt.py", "exec")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_to_be_taken_is_in_torch_and_what_was_removed_is_not() -> None:
    rows = [line.split("|") for line in RETIRED.read_text().splitlines() if line.startswith("| ")]
    taken = {name for row in rows for name in TORCH_NAME.findall(row[3])}
    removed = {name for row in rows if "removed" in row[2] for name in TORCH_NAME.findall(row[1])}
    assert len(taken) > 10
    assert removed
    assert not {name for name in taken if not resolves(name)}
    assert not {name for name in removed if resolves(name)}


def resolves(name: str) -> bool:
    """Whether a dotted name leads to something."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
