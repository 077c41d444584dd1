"""The documentation site: pages made from the program's own data, the picture, the build."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.site_pages import ROOT, site_pages

import ridgeline
from ridgeline.cli.commands import COMMANDS
from ridgeline.diagnose.rules import all_rules
from ridgeline.diagnose.trace_rules import all_trace_rules
from ridgeline.hardware.catalogue import devices
from ridgeline.techniques import all_techniques


def generated(name: str) -> str:
    text: str = site_pages().generated_pages()[f"generated/{name}.md"]
    return text


def test_the_page_of_commands_has_each_with_its_options() -> None:
    page = generated("commands")
    assert all(f"\n### ridgeline {name}\n" in page for name in COMMANDS)
    assert "| `--global-batch` |" in page


def test_the_page_of_python_has_every_public_name() -> None:
    page = generated("python")
    assert all(re.search(rf"^::: ridgeline\S*\.{name}$", page, re.M) for name in ridgeline.__all__)


def test_the_catalogues_have_every_technique_cause_and_device() -> None:
    techniques = generated("catalogues/techniques")
    assert all(f"\n## {name}\n" in techniques for name in all_techniques())
    causes = [
        cause for rule in (*all_rules().values(), *all_trace_rules().values())
        for cause in rule.CAUSES
    ]  # fmt: skip
    assert all(f"| `{cause}` |" in generated("catalogues/rules") for cause in causes)
    assert all(f"\n## {one.name}\n" in generated("catalogues/devices") for one in devices())
    assert "| `w4a16` | 4-bit integers" in generated("catalogues/schemes")


def test_the_picture_of_the_house_shows_the_floors_of_the_contract() -> None:
    drawn = (ROOT / "docs/house.svg").read_text()
    rooms = re.findall(r'class="room"[^>]*>(\w+)<|(<rect)', drawn)
    shown = " ".join(room or "|" for room, _ in rooms)
    contract = " ".join(f"| {' '.join(floor)}" for floor in site_pages().floors())
    assert shown == contract, "python docs/site/pages.py draws it again"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site is built with ridgeline[docs]")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    fetched = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//")
    assert [page.name for page in pages if fetched.search(page.read_text())] == []
    assert "global-batch" in (tmp_path / "search/search_index.json").read_text()
