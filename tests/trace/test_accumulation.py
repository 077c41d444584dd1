"""Steps that add up passes: gradients sent after each of them, or after the last alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.trace.simulated.kineto import write_run
from tests.trace.simulated.run import simulate
from tests.trace.simulated.truth import Case, truth_of

from ridgeline.cli.main import run
from ridgeline.trace.communication.accumulation import synced_passes
from ridgeline.trace.load import load_traces
from ridgeline.trace.windows import views

CASE = Case(workload="ddp", gpu="h100", faults={"synced-passes": 1},
            options={"ranks": 2, "passes": 3, "steps": 2, "layers": 2, "tokens": 512,
                     "sequence": 512, "link": "network"})  # fmt: skip


@pytest.mark.parametrize("steps", [True, False])
def test_gradients_of_every_pass_are_worth_those_sent_too_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: bool
) -> None:
    """Steps are told apart by the profiler's ranges, or by the optimizer's."""
    case = replace(CASE, steps=steps)
    made = simulate(case.program(), case.seed)
    write_run(made, tmp_path, case.schema())
    assert run(["trace", "summary", "--json", str(tmp_path)]) == 0
    first = json.loads(capsys.readouterr().out)["verdict"][0]
    assert first["cause"] == "communication-bound"
    assert "adds up 3 passes" in first["summary"]
    assert "no_sync()" in first["cure"]
    assert first["worth_us"] == pytest.approx(truth_of(case, made).worth_us, rel=0.1)


@pytest.mark.parametrize("passes", [1, 3])
def test_gradients_that_are_sent_once_a_step_are_not_sent_too_often(
    tmp_path: Path, passes: int
) -> None:
    case = replace(CASE, faults={}, options={**CASE.options, "passes": passes})
    path, _ = write_run(simulate(case.program(), case.seed), tmp_path, case.schema())
    (view,) = views(load_traces([path])[0], "span")
    assert synced_passes(view) is None
