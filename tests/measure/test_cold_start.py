"""The bootstrap: scripts that start cold, as users start them, and are seen from torch's import on.

Each costs seconds of a core; what does not depend on the start is in `test_interception.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import zipapp
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.test_interception import FRAMEWORKS, KINDS, SCRIPTS, check_kind, command
from tests.warm_scripts import start_plainly

from ridgeline.errors import ScriptError
from ridgeline.measure.live.alone import judged
from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.live.crash import ScriptFailed
from ridgeline.measure.wire import Applied, Session
from ridgeline.tune.stack import ENTRY


@pytest.mark.slow
def test_a_hand_written_loop_is_seen_step_by_step() -> None:
    check_kind(KINDS["hand-written loop"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "accelerate",
        *(pytest.param(n, marks=pytest.mark.slow) for n in FRAMEWORKS if n != "accelerate"),
    ],
)
def test_frameworks_are_seen_without_a_line_of_theirs_changed(name: str) -> None:
    check_kind(replace(FRAMEWORKS[name], checkpointing=name == "transformers.Trainer"))


@pytest.mark.slow
def test_arguments_neighbours_and_changed_folders_work_as_always() -> None:
    with Conductor(command("elsewhere.py", "--name", "a b", "-x"), Session()) as run:
        assert len(run.steps(10)[0].steps) == 10


@pytest.mark.slow
def test_a_compiled_script_prints_and_compiles_what_it_does_alone(tmp_path: Path) -> None:
    alone = tmp_path / "alone.log"
    assert start_plainly(command("compiled.py", "wrapped", "100"), alone, tmp_path).wait() == 0
    with Conductor(command("compiled.py", "wrapped", "100"), Session()) as run:
        run.steps(10_000)
        assert run.output == alone.read_text().strip()


@pytest.mark.slow
def test_a_script_that_looks_for_torch_before_it_imports_it_is_seen(tmp_path: Path) -> None:
    """As transformers does on import, to know whether torch is installed."""
    script = tmp_path / "looks_first.py"
    looking = 'import importlib.util\nassert importlib.util.find_spec("torch") is not None\n'
    script.write_text(looking + (SCRIPTS / "plain_loop.py").read_text())
    with Conductor([str(script)], Session()) as run:
        assert len(run.steps(5)[0].steps) == 5


@pytest.mark.slow
def test_a_script_without_steps_is_named_as_such(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("import torch\nprint('hello')\n")
    with (
        pytest.raises(ScriptError, match="no optimizer step"),
        Conductor([str(script)], Session()) as run,
    ):
        run.steps(5)


def state_of(pid: int) -> str:
    """The letter that the kernel shows; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_frozen_script_ends_with_a_conductor_that_is_killed_and_had_little_of_ours(
    tmp_path: Path,
) -> None:
    script = tmp_path / "lists_modules.py"
    heavy = {"rich", "typer", "plotly", "libcst", "pandas", "transformers"}
    told = f"print('heavy', sorted({heavy!r} & set(sys.modules)), flush=True)\n"
    text = (SCRIPTS / "plain_loop.py").read_text()
    script.write_text(text.replace("    optimizer.step()\n", f"    optimizer.step()\n    {told}"))
    code = (
        "import sys, time\n"
        "from ridgeline.measure.live.conductor import Conductor\n"
        "from ridgeline.measure.wire import Session\n"
        f"with Conductor([{str(script)!r}, '100000000'], Session()) as run:\n"
        "    run.steps(3)\n"
        "    print(run.output.splitlines()[0], run.hellos[0].pid, sep='\\n', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as conductor:
        assert conductor.stdout is not None
        assert conductor.stdout.readline() == "heavy []\n"
        pid = int(conductor.stdout.readline())
        conductor.kill()
    deadline = time.monotonic() + 120
    while state_of(pid) not in ("", "Z"):
        assert time.monotonic() < deadline, "the frozen script outlived its conductor"


@pytest.fixture
def program(form: str, tmp_path: Path) -> Path:
    """What Python runs as a script, with modules beside it that are called as ours."""
    script = SCRIPTS / "own_modules" / "train.py"
    if form == "file":
        return script
    shutil.copytree(script.parent, tmp_path / "app")
    (tmp_path / "app" / script.name).rename(tmp_path / "app" / "__main__.py")
    if form == "folder":
        return tmp_path / "app"
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    return tmp_path / "app.pyz"


@pytest.mark.sweep("folder")
@pytest.mark.parametrize("form", ["file", "folder", "archive"])
def test_a_script_with_modules_called_as_ours_keeps_them_and_is_measured(program: Path) -> None:
    stack = [Applied(technique="bf16-autocast")]
    with Conductor([str(program)], Session(stack=stack), entry=ENTRY) as run:
        report = run.steps(5)[0]
    assert len(report.steps) == 5
    assert "bf16-autocast" in report.applied


@pytest.mark.slow
def test_the_run_that_compares_has_neither_our_agent_nor_its_libraries(tmp_path: Path) -> None:
    raises = 'raise RuntimeError("with it" if "msgspec" in sys.modules else "by itself")'
    (tmp_path / "train.py").write_text(f"import sys, torch\n{raises}\n")
    words = [str(tmp_path / "train.py")]
    with pytest.raises(ScriptFailed) as failed, Conductor(words, Session()) as run:
        run.begin()
    assert "with it" in str(failed.value)
    told = str(judged(words, failed.value, print))
    assert "(without ridgeline it fails too, but otherwise: RuntimeError: by itself)" in told
