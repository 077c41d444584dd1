"""Mistakes planted one at a time, and what `kernels check` finds of them, in one process for all.

`mutants.toml` has mistakes of the small kernels in `sound/`, `own_mutants.toml` those of our own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from ridgeline.kernels.check import conduct

HERE = Path(__file__).parent
KERNELS = Path(conduct.__file__).parents[1]
OWN: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "own_mutants.toml").read_text())
SMALL: list[dict[str, str]] = tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]
EXAMPLE_OF = {
    "flash_forward": "flash_attention",
    "flash_backward": "flash_attention",
    "weight_kernels": "weight_only",
    "attention_kernels": "paged_attention",
    "cache_write": "paged_attention",
    "tiles": "paged_attention",
}
"""A file of kernels → the example that launches them, where the names differ."""
_INSTEAD = """
import importlib.util
import sys
import ridgeline.kernels.triton

_spec = importlib.util.spec_from_file_location("ridgeline.kernels.triton.{name}", {path!r})
_module = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
ridgeline.kernels.triton.{name} = _module
_spec.loader.exec_module(_module)
"""


def plant_small(mutant: dict[str, str], folder: Path) -> Path:
    """A small kernel's file with one mistake in it."""
    text = (HERE / "sound" / f"{mutant['file']}.py").read_text()
    assert text.count(mutant["old"]) == 1, mutant["name"]
    folder.mkdir(exist_ok=True)
    file = folder / f"{mutant['file']}.py"
    file.write_text(text.replace(mutant["old"], mutant["new"]))
    return file


def plant_own(kernel: str, mistake: str, folder: Path) -> Path:
    """The launches of our own kernels, whose file is replaced by a copy with a mistake."""
    old, new = OWN[kernel][mistake]
    text = (KERNELS / "triton" / f"{kernel}.py").read_text()
    assert text.count(old) == 1, mistake
    folder.mkdir(exist_ok=True)
    planted = folder / f"planted_{kernel}.py"
    planted.write_text(text.replace(old, new))
    for table in (KERNELS / "triton").glob("*.csv"):  # read beside the file of the kernels
        shutil.copy(table, folder)
    name = EXAMPLE_OF.get(kernel, kernel)
    example = (conduct.EXAMPLES / f"{name}.py").read_text()
    first = "from __future__ import annotations\n"
    assert example.count(first) == 1
    file = folder / f"{name}.py"
    instead = _INSTEAD.format(name=kernel, path=str(planted))
    file.write_text(example.replace(first, first + instead))
    return file


def judge(files: list[Path]) -> dict[Path, list[str]]:
    """The causes of the findings of each file; where it cannot be judged, that in words."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.check.many", *map(str, files)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(one["file"]): one.get("causes") or [one["error"]] for one in answers}
