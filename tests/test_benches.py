"""Every benchmark starts: those with a rehearsal run it, the others explain themselves or import.

Nobody runs them between two releases, and a name that moved would be found where a GPU is paid for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted((ROOT / "bench").rglob("*.py"))
    if "scripts" not in path.parts  # run in environments of the peers
}
REHEARSED = {
    "bench/gpu/realtime.py": ("| as written |", "| steady |", "- granted: warm-up"),
    "bench/gpu/serve.py": ("| attention, decode, ", "| attention, prompt of "),
    "bench/gpu/vision.py": ("| torch.compile |", "| AOTInductor |"),
}
"""What has a rehearsal → words of its rows."""
EXPLAINED = [name for name, text in SCRIPTS.items() if "ArgumentParser(" in text]
IMPORTED = [name for name in SCRIPTS if name not in EXPLAINED]
IMPORT = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='bench')"

pytestmark = pytest.mark.slow


def run(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def test_the_folder_is_read_as_it_is() -> None:
    assert {name for name, text in SCRIPTS.items() if '"--rehearse"' in text} == set(REHEARSED)
    assert len(EXPLAINED) > 30


@pytest.mark.parametrize("name", REHEARSED)
def test_a_rehearsal_runs_to_its_end(name: str) -> None:
    printed = run(str(ROOT / name), "--rehearse").stdout
    assert [words for words in REHEARSED[name] if words not in printed] == []
    assert "not begun" not in printed


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_benchmark_explains_itself(name: str) -> None:
    assert run(str(ROOT / name), "--help").stdout.startswith("usage: ")


@pytest.mark.parametrize("name", IMPORTED)
def test_a_benchmark_without_options_imports(name: str, tmp_path: Path) -> None:
    folder = ROOT / Path(name).parent
    run("-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {IMPORT}", str(ROOT / name),
        folder=tmp_path)  # fmt: skip
    assert list(tmp_path.iterdir()) == []
