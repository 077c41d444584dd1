"""The table of docs/tutorials/resnet-50-in-less-time.md, from the commands of that page.

`python -m tests.cli.vision_tutorial` writes the table again.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "resnet-50-in-less-time.md"
PROGRAM = "from ridgeline.cli.main import main; main()"
PUBLISHED = {
    "8xV100 fp32": (2855, 2817),
    "8xV100 fp16": (8322, 6174),
    "8xA100 fp16": (16_621, 11_439),
}
"""Cluster and precision → images per second of DeepLearningExamples and of Lambda's benchmark."""
IMAGES = 90 * 1.28e6
ROW = re.compile(r"^\| `--cluster.*\n", re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The words of the page's `predict training` commands that say a whole run."""
    lines = [line for line in page.splitlines() if line.startswith("ridgeline predict training")]
    return [shlex.split(line) for line in lines if "--epochs" in line]


def options(words: list[str]) -> str:
    """What tells one command of the page from another."""
    return " ".join(words[words.index("--cluster") : words.index("--images")])


def row(words: list[str]) -> str:
    """One command of the page and what it answers."""
    asked = [sys.executable, "-c", PROGRAM, *words[1:], "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    run = json.loads(done.stdout)["run"]
    low, high = (_time(end) for end in run["run_interval"])
    key = f"{words[words.index('--cluster') + 1]} {words[words.index('--precision') + 1]}"
    published = " and ".join(f"{IMAGES / rate / 3600:.1f} h" for rate in PUBLISHED.get(key, ()))
    return (
        f"| `{options(words)}` | {_time(run['run_seconds'])} | {low} – {high} |"
        f" ${run['usd']:.0f} | {published or '–'} |\n"
    )


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def main() -> None:
    """Put fresh rows in place of the old ones."""
    text = PAGE.read_text()
    rows = "".join(row(words) for words in commands(text))
    first = ROW.search(text)
    assert first is not None
    PAGE.write_text(text[: first.start()] + rows + ROW.sub("", text[first.start() :]))


if __name__ == "__main__":
    main()
