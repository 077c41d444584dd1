"""The tutorial's Python and commands, run one after the other as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ridgeline.cli.main import run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorials/compress-a-model.md"
FENCE = re.compile(r"^```(python)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    codes = {}
    for kind, block in FENCE.findall(PAGE.read_text()):
        if kind:
            exec(compile(block, PAGE.name, "exec"), {})  # noqa: S102 - the page's own example
            continue
        for line in block.splitlines():
            words = shlex.split(line)[1:]
            if words[0] != "serve":  # would not end
                codes[line] = run(words)
    assert set(codes.values()) == {0, 3}
    assert [line for line, code in codes.items() if code] == [
        line for line in codes if "--max-loss" in line
    ]
    assert (tmp_path / "mixed/report.html").exists()
    assert not (tmp_path / "w3").exists()
