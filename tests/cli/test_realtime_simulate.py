"""`ridgeline realtime simulate` as it is typed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.plan.realtime.timings import chain, drifting, run_of

from ridgeline.cli import main
from ridgeline.records.realtime_simulation import RealtimeSimulation
from ridgeline.records.store import write_record

COMMAND = ("realtime", "simulate")


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> RealtimeSimulation:
    assert main.run([*COMMAND, *words, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=RealtimeSimulation)


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    times = {"pre": drifting(1, 300, 0.01, 0.2), "backbone": drifting(2, 300, 0.05, 0.3)}
    run = run_of(chain(times, deadline=0.1, policy="drop-oldest"), 300, warmup_frames=10)
    write_record(tmp_path / "run.json", run)
    return str(tmp_path / "run.json")


def test_a_run_is_shown_beside_what_it_could_be(
    capsys: pytest.CaptureFixture[str], run_file: str
) -> None:
    found = simulated(
        capsys, run_file, "--what-if", "backbone x0.6", "--what-if", "rate=18Hz",
        "--what-if", "streams=2", "--what-if", "policy=latest-only",
    )  # fmt: skip
    (measured,) = found.measured
    assert measured.frames == found.frames == 290
    again, quicker = found.base.sinks[0].age, found.what_if[0].sinks[0].age
    assert measured.age is not None
    assert again is not None
    assert quicker is not None
    assert again.p50 == pytest.approx(measured.age.p50, rel=0.01)
    assert quicker.p50 < 0.8 * measured.age.p50
    assert len(found.what_if) == 4
    assert found.together is not None
    assert len(found.together.sinks) == 2


def test_the_answer_is_drawn_and_written(
    capsys: pytest.CaptureFixture[str], run_file: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = [run_file, "--what-if", "backbone x0.6", "--meet", "60ms", "--html", str(page)]
    assert main.run([*COMMAND, *words]) == 0
    shown = capsys.readouterr().out
    assert "measured" in shown
    assert "What 60.0 ms takes" in shown
    assert "backbone x0.6" in page.read_text()


def test_a_table_that_is_shipped_is_named_and_compared_with_its_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = simulated(capsys, "bevdet-r50", "--what-if", "device=a4000")
    assert found.base.sum_seconds == pytest.approx(found.published_total_seconds, rel=0.02)
    assert found.what_if[0].sum_seconds == pytest.approx(0.0138, rel=0.02)


@pytest.mark.slow
def test_a_pipeline_is_budgeted_before_it_exists(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(
        """
name = "front"
deadline = "40ms"
[[sensors]]
name = "camera"
rate = "30Hz"
[[stages]]
name = "backbone"
inputs = ["camera"]
time = {p50 = "20ms", p99 = "30ms"}
[[stages]]
name = "head"
inputs = [{source = "backbone", policy = "latest-only"}]
time = "6ms"
"""
    )
    found = simulated(capsys, str(tmp_path / "plan.toml"), "--meet", "30ms", "--max-miss", "1%")
    assert found.base.sinks[0].age is not None
    assert found.base.sinks[0].age.p50 == pytest.approx(0.026, rel=0.02)
    assert found.base.bound_by == "stage backbone"
    assert found.target is not None
    factors = {one.stage: one.factor for one in found.target.factors}
    assert factors["backbone"] is not None
    assert 0.7 < factors["backbone"] < 0.9


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing-here"], "no such file, and no table of ours"),
        (["nothing.json"], "nothing.json: no such file"),
        (["bevdet-r50", "--what-if", "image x2"], "no stage 'image'; there are preprocess"),
        (["bevdet-r50", "--frames", "0"], "--frames 0: at least 1 is needed"),
        (["bevdet-r50", "--what-if", "on_miss=degrade"], "no time of its cheaper call is known"),
        (["bevdet-r50", "--max-miss", "2"], "no share"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main.run([*COMMAND, *words]) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert "Traceback" not in shown
