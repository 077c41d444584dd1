"""The budget of a tuning job is kept: nothing is begun that cannot end in time."""

import textwrap
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.realtime.cures import CureStage
from ridgeline.realtime.tuning import budget
from ridgeline.realtime.tuning.budget import TimeBudget
from ridgeline.realtime.tuning.figures import TimedFrames, figures_of
from ridgeline.realtime.tuning.measured import measure, round_seconds
from ridgeline.realtime.tuning.sides import SideProcess
from ridgeline.realtime.tuning.wire import SideOpened, TimeFrames

OPENED = SideOpened(
    frame_seconds=0.5, period_seconds=0.1, deadline_seconds=0.2, quality={}, threads=1, name="slow"
)


class PatientSide(SideProcess):
    """A side that says what a block took, and takes no time itself."""

    def __init__(self) -> None:
        self.orders: list[TimeFrames] = []

    def ask(self, order: Any, kind: type[Any], *, until: float | None = None) -> Any:
        self.orders.append(order)
        return kind(
            latencies=[0.5] * order.frames,
            stage_seconds={"stage": 0.5},
            delivered=order.frames,
            sent=order.frames,
            seconds=1.0,
        )


def test_no_round_is_begun_that_ends_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, one, other = [0.0], PatientSide(), PatientSide()
    once = round_seconds("p50", 0.5)
    assert once == pytest.approx(2 * 11 * 0.5)

    def clock() -> float:
        now[0] += once / 2
        return now[0]

    monkeypatch.setattr("ridgeline.realtime.tuning.measured.monotonic", clock)
    found = measure(
        one, other, watched="p50", period_seconds=0.5, bar=1.0, until=3.9 * once,
        on_progress=lambda _: None, rounds=12,
    )  # fmt: skip
    assert 0 < len(found.a_rounds) < 4
    assert now[0] <= 3.9 * once
    none = measure(
        one, other, watched="p50", period_seconds=0.5, bar=1.0, until=now[0] + once,
        on_progress=lambda _: None,
    )  # fmt: skip
    assert none.a_rounds == []


def test_a_cure_is_not_started_where_the_quickest_start_would_end_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(budget, "monotonic", lambda: now[0])
    time = TimeBudget(120.0, _began=100.0)
    time.note_opening(30.0)
    time.note_opening(25.0)
    assert not time.late_for(CureStage.RUN, 4.0)
    now[0] += 0.85 * 120 - 28
    assert time.late_for(CureStage.RUN, 4.0)
    assert not time.late_for(CureStage.RUN, 2.0)
    time.proof_seconds = 60.0
    assert time.end_of(CureStage.RUN) == pytest.approx(100 + 0.6 * 120)
    assert time.end_of(CureStage.RUN) > time.end_of(next(iter(CureStage)))


def test_figures_of_a_slow_pipeline_take_shorter_blocks() -> None:
    timed = TimedFrames([0.5, 0.6], [{"stage": 0.5}])
    amply, hardly = PatientSide(), PatientSide()
    for side, seconds in ((amply, 1000.0), (hardly, 12.0)):
        figures_of(side, OPENED, {}, timed, unhurried_seconds=0.6, seconds=seconds)
    assert [order.frames for order in amply.orders] == [40, 80]
    assert sum(order.frames for order in hardly.orders) * OPENED.frame_seconds <= 12.0
    nothing = PatientSide()
    figures_of(nothing, OPENED, {}, None, unhurried_seconds=0.6, seconds=-3.0)
    assert [order.frames for order in nothing.orders] == [8, 8, 8]


HESITANT = textwrap.dedent(
    '''
    """A pipeline that takes long to be made."""

    import time

    from ridgeline.realtime.pipeline import Pipeline

    time.sleep(60)
    pipeline = Pipeline("hesitant")
    '''
)


@pytest.mark.slow
def test_a_pipeline_that_takes_longer_than_the_budget_to_start_is_refused_in_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hesitant.py"
    path.write_text(HESITANT)
    began = monotonic()
    words = ["realtime", "tune", str(path), "--out", str(tmp_path / "out"), "--budget", "3s"]
    assert run(words) == 2
    assert monotonic() - began < 20
    assert "--budget 3 s: the pipeline took longer" in capsys.readouterr().err
