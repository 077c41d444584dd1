"""The doctor names the planted fault first, and finds nothing in the repaired twin.

The whole table takes some ten minutes on a quiet machine of two cores (`make test-all`); a script
whose losses explode runs with every test. Faults that cost time are shares of a step,
and another program that takes the cores changes them: run this on a quiet machine.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.warm_scripts import start_warm

from ridgeline.diagnose.doctor import Examination, doctor
from ridgeline.measure.live import conductor
from ridgeline.measure.live.windows import MeasurementPlan

FOLDER = Path(__file__).parent
TABLE: dict[str, list[dict[str, Any]]] = tomllib.loads((FOLDER / "planted.toml").read_text())
SCRIPTS = {Path(row["file"]).stem: row for row in TABLE["script"]}
CLEAN = {Path(row["file"]).stem: row for row in TABLE["clean"]}
QUICK = ("save_each_step", "exploding_loss")
"""Their faults are large, or no matter of time, so that a busy machine does not hide them."""
PLAN = MeasurementPlan(steps=12, warmup=4, budget_seconds=90.0)
SHORT = MeasurementPlan(steps=6, warmup=2, budget_seconds=60.0)
pytestmark = pytest.mark.alone
NEEDS_BF16 = {"fp32_matmul", "half_on_cpu"}


def examine(
    row: dict[str, Any], plan: MeasurementPlan = PLAN, *, repaired: bool = False
) -> Examination:
    command = [str(FOLDER / "planted" / row["file"]), "--steps", "200"]
    if repaired:
        command.append("--repaired")
    if row["launch"].startswith("torchrun"):
        command = ["torchrun", f"--nproc_per_node={row['launch'].split()[1]}", *command]
    return doctor(command, plan)


def causes(examination: Examination) -> list[str]:
    return [finding.cause for finding in examination.findings]


def has_fast_bf16() -> bool:
    return any(
        flag in Path("/proc/cpuinfo").read_text() for flag in ("avx512_bf16", "amx_bf16", "bf16 ")
    )


def needs(name: str) -> None:
    if name in NEEDS_BF16 and not has_fast_bf16():
        pytest.skip("this CPU multiplies bfloat16 no faster than float32")


def test_losses_that_explode_are_named_first_by_a_doctor_whose_script_starts_warm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That is no matter of time: a start without imports and a small model hide nothing."""
    monkeypatch.setattr(conductor, "start", start_warm)
    row = SCRIPTS["exploding_loss"]
    text = (FOLDER / "planted" / row["file"]).read_text()
    small = text.replace("width, batch_size = 1024, 2048", "width, batch_size = 128, 64")
    assert small != text
    (tmp_path / "exploding.py").write_text(small)
    found = doctor([str(tmp_path / "exploding.py"), "--steps", "200"], SHORT)
    assert causes(found)[:1] == [row["cause"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_named_first_in_a_quick_look(name: str) -> None:
    assert causes(examine(SCRIPTS[name], SHORT))[:1] == [SCRIPTS[name]["cause"]]


@pytest.mark.slow
def test_a_clean_script_is_left_alone_in_a_quick_look() -> None:
    assert causes(examine(CLEAN["clean_mlp"], SHORT)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SCRIPTS) - set(QUICK)))
def test_a_planted_fault_is_named_first(name: str) -> None:
    needs(name)
    assert causes(examine(SCRIPTS[name]))[:1] == [SCRIPTS[name]["cause"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_nothing_is_worth_doing_in_a_repaired_twin(name: str) -> None:
    assert causes(examine(SCRIPTS[name], repaired=True)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CLEAN) - {"clean_mlp"}))
def test_nothing_is_worth_doing_in_a_clean_script(name: str) -> None:
    assert causes(examine(CLEAN[name])) == []
