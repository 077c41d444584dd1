"""What a real-time run shows: in a terminal, and on the page with the deadline as a line."""

from __future__ import annotations

import msgspec
from tests.realtime.recorded import recorded_run
from tests.report.drawn import drawn

from ridgeline.realtime.gate import GateLimits, judged_report
from ridgeline.records.realtime_blame import MissCause
from ridgeline.records.realtime_run import Collection, RealtimeRun, SensorFault, SteadyMeasure
from ridgeline.report.page import draw_page
from ridgeline.report.views.realtime import broken_limit, realtime_document
from ridgeline.report.views.realtime_figures import ages_figure, worst_frames_figure

LIMITS = GateLimits(max_miss=0.001, worst_seconds=0.2)


def shown(run: RealtimeRun, limits: GateLimits = LIMITS) -> str:
    return drawn(realtime_document(judged_report(run, limits), run), 120)


def test_the_terminal_shows_stages_paths_misses_and_losses() -> None:
    text = shown(recorded_run(400, slow={80: 0.05}, dropped=[100, 101], failed=[7], warmup=3))
    assert "gate failed" in text
    assert "front camera: camera at 25.0 Hz; deadline 33.0 ms" in text
    gate, _, rest = text.partition("Stages")
    assert [word in gate for word in ("max-miss", "1.01 %", "broken", "kept")] == [True] * 4
    stages, _, rest = rest.partition("Paths")
    assert "backbone" in stages
    assert "88 %" in stages
    paths, _, rest = rest.partition("Misses")
    assert "camera → detect" in paths
    misses, _, losses = rest.partition("Frames without a result")
    assert "detect" in misses
    assert "camera -> backbone" in losses
    assert "frame 100" in losses


def test_a_co_runner_stands_beside_the_guilty_stage() -> None:
    run = recorded_run(100, slow={80: 0.05})
    report = judged_report(run, LIMITS)
    [miss] = report.misses
    hog = MissCause(**{**msgspec.structs.asdict(miss), "co_runner": "hog (4711)"})
    text = drawn(realtime_document(msgspec.structs.replace(report, misses=[hog]), run), 120)
    row = next(line for line in text.splitlines() if "hog (4711)" in line)
    assert "80" in row
    assert "detect" in row


def test_only_the_worst_of_many_misses_are_listed_and_the_page_has_all() -> None:
    run = recorded_run(300, slow=dict.fromkeys(range(0, 300, 10), 0.05))
    document = realtime_document(judged_report(run, LIMITS), run)
    assert "The worst 12 of 30" in drawn(document, 120)
    page = draw_page(document)
    assert "Every miss" in page
    assert page.count(">late<") == 30


def test_faults_measures_and_notes_are_shown() -> None:
    run = msgspec.structs.replace(
        recorded_run(20),
        sensor_faults=[
            SensorFault(sensor="camera", kind="gap", frame=4, at_seconds=0.2, detail="2 missing"),
            SensorFault(sensor="camera", kind="gap", frame=9, at_seconds=0.4),
        ],
        steady=[SteadyMeasure(name="fifo", granted=False, detail="needs CAP_SYS_NICE")],
        collections=[Collection(started=0.0, ended=0.1, generation=2, thread="plan")],
        notes=["plan was restarted"],
    )  # fmt: skip
    text = shown(run)
    assert "frame 4 at 200 ms: 2 missing" in text
    assert "refused" in text
    assert "needs CAP_SYS_NICE" in text
    assert "plan was restarted" in text


def test_the_deadline_is_a_line_in_both_plots() -> None:
    run = recorded_run(60, slow={30: 0.05}, dropped=[40])
    ages, worst = ages_figure(run), worst_frames_figure(run)
    assert ages is not None
    assert worst is not None
    assert [(one["y0"], one["y1"]) for one in ages["layout"]["shapes"]] == [(33.0, 33.0)]
    assert [(one["x0"], one["x1"]) for one in worst["layout"]["shapes"]] == [(33.0, 33.0)]
    results, lost = ages["data"]
    assert len(results["x"]) == 59
    assert lost["text"] == ["frame 40, camera -&gt; backbone: oldest"]
    assert worst["layout"]["yaxis"]["categoryarray"][-1] == "frame 30"
    assert [one["name"] for one in worst["data"]] == ["backbone", "detect", "plan"]


def test_a_long_run_keeps_its_slow_frames_in_the_plot() -> None:
    figure = ages_figure(recorded_run(10_000, slow={5001: 0.05}))
    assert figure is not None
    [results] = figure["data"]
    assert len(results["x"]) <= 4000
    assert "5001" in results["text"]


def test_names_of_users_are_no_markup_on_the_page() -> None:
    run = recorded_run(10)
    calls = [msgspec.structs.replace(run.calls[0], stage="detect"), *run.calls[1:]]
    named = msgspec.structs.replace(
        run, shape=msgspec.structs.replace(run.shape, name="<b>front</b>"), calls=calls
    )
    page = draw_page(realtime_document(judged_report(named, GateLimits()), named))
    assert "<b>front</b>" not in page
    assert "&lt;b&gt;front&lt;/b&gt;" in page


def test_a_run_without_any_result_is_shown() -> None:
    nothing = recorded_run(5, failed=range(5))
    report = judged_report(nothing, LIMITS)
    assert "gate failed" in drawn(realtime_document(report, nothing), 120)
    assert report.gate is not None
    assert [broken_limit(one) for one in report.gate.checks] == [
        "max-miss at plan: 100.00 %, allowed 0.10 %",
        "worst at plan: no result came out, allowed 200 ms",
    ]
    assert worst_frames_figure(nothing) is None
