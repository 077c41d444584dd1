"""Scripts that once made our own code raise inside of them, or might: each gets its verdict.

Every file of `scripts/hostile` runs to its end by itself. Under `ridgeline doctor` nothing of ours
may fail it, and what could not be read of it is one line each that names the place in our code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.measure.child.seeds import shifted_seed
from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.wire import Session

pytestmark = pytest.mark.usefixtures("warm")
HOSTILE = Path(__file__).parent / "scripts" / "hostile"
TELLING = {
    "none_entries", "meta_losses", "losses_on_two_devices", "hostile_module", "hostile_exceptions",
    "counts_every_step", "own_optimizers", "trains_in_a_fork", "raises_and_goes_on",
    "mixed_precision_switches",
}  # fmt: skip
"""The others run with the slow tests."""
UNREAD = {
    "fake_tensors": ["main_model.py", "seen_losses.py", "dispatch mode"],
    "tensor_subclass": [],
    "own_optimizers": ["facts.py", "facts.py", "live_memory.py", "unused_graphs.py"],
    "counts_every_step": ["dispatch mode"],
    "compiled_optimizer": ["no step of the script's optimizer"],
}
"""What is said of a script that could not be read in all; of the rest, nothing."""
NO_MODEL = {"complex_losses", "compiled_optimizer"}
SCRIPTS = [
    pytest.param(name, marks=() if name in TELLING else pytest.mark.slow)
    for name in sorted(path.stem for path in HOSTILE.glob("*.py"))
]


def examined(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = ["doctor", "--steps", "8", "--budget", "20", "--json", "--"]
    assert run([*arguments, str(HOSTILE / f"{name}.py")]) == 0
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    document: dict[str, Any] = json.loads(captured.out)
    return document


@pytest.mark.sweep("hostile_exceptions", "losses_on_two_devices")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_hostile_script_gets_its_verdict_and_what_was_not_read_is_said(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = examined(name, capsys)
    profile = document["profile"]
    assert document["verdict"]
    assert profile["steps"] >= 8
    of_the_machine = ("waited for a free core", "ran beside other work")
    said = [
        line for line in profile["warnings"] if not any(words in line for words in of_the_machine)
    ]
    expected = UNREAD.get(name, [])
    assert len(said) == len(expected), said
    assert all(any(words in line for line in said) for words in expected), said
    if name not in NO_MODEL:
        assert profile["models"]


def test_every_telling_script_is_there() -> None:
    assert {path.stem for path in HOSTILE.glob("*.py")} >= TELLING | set(UNREAD) | NO_MODEL


def test_seeds_given_by_name_are_shifted_and_stay_in_their_range() -> None:
    with Conductor([str(HOSTILE / "seeds_by_keyword.py")], Session(seed_offset=1009)) as other:
        shifted = other.steps(5)[0]
    with Conductor([str(HOSTILE / "seeds_by_keyword.py")], Session()) as alone:
        plain = alone.steps(5)[0]
    assert not shifted.warnings
    assert len(shifted.losses) == len(plain.losses) == 6
    assert shifted.losses != plain.losses


@pytest.mark.parametrize("limit", [2**32, 2**64])
def test_a_shifted_seed_stays_below_the_end_of_its_range(limit: int) -> None:
    assert shifted_seed(limit - 1, 1009) == limit - 1010
    assert shifted_seed(limit - 2000, 1009) == limit - 991


def test_a_technique_that_fails_is_named_and_the_script_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgeline.measure.wire import Applied
    from ridgeline.tune.stack import ENTRY

    script = tmp_path / "odd_groups.py"
    text = (HOSTILE / "own_optimizers.py").read_text()
    script.write_text(text.replace("hidden.param_groups = None", "hidden.param_groups = [None]"))
    stack = [Applied(technique="fused-optimizer"), Applied(technique="bf16-autocast")]
    with Conductor([str(script)], Session(stack=stack), entry=ENTRY) as run_:
        report = run_.steps(5)[0]
    assert len(report.steps) == 5
    assert list(report.applied) == ["bf16-autocast"]
    assert [line for line in report.warnings if "techniques/fused_optimizer.py:" in line]


def test_autocast_leaves_models_on_the_meta_device_alone() -> None:
    from ridgeline.measure.wire import Applied
    from ridgeline.tune.stack import ENTRY

    stack = [Applied(technique="bf16-autocast")]
    words = [str(HOSTILE / "meta_losses.py")]
    with Conductor(words, Session(stack=stack), entry=ENTRY) as run_:
        report = run_.steps(5)[0]
    assert "bf16-autocast" in report.applied
    assert report.warnings == []
