"""What `ridgeline realtime run` shows: the verdict, stages, paths, misses and who caused them."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.realtime_blame import CauseCount, MissCause
from ridgeline.records.realtime_report import (
    GateCheck,
    PathAges,
    RealtimeReport,
    SinkOutcome,
    StageLatency,
)
from ridgeline.records.realtime_run import RealtimeRun
from ridgeline.report import document as doc
from ridgeline.report.views.doctor import environment_section
from ridgeline.report.views.realtime_figures import ages_figure, worst_frames_figure

MOST_MISSES = 12
"""Misses that a terminal shows one by one; a page has all."""
MOST_FRAMES = 4
STAGES_NOTE = "Share: P99 over the stage's budget, or over the deadline where it has none."
FLATTERY_NOTE = (
    "At rate: the median at the frame rate over the one of a tight loop, which looks so many times"
    " better than what a frame meets."
)
PATHS_NOTE = "Age: from the sensor's stamp until the stage's output came out."


def realtime_document(report: RealtimeReport, run: RealtimeRun | None) -> doc.ReportDocument:
    """The gate first, then stages, paths and losses; the page adds the frames of the run."""
    shown: list[doc.Block] = [
        _lead(report),
        doc.Values([pair for sink in report.sinks for pair in _headline(sink, report)]),
        *_gate(report),
        _stages(report),
        _paths(report.paths),
        *_causes(report),
        *_losses(report),
        *_faults(report),
        doc.Only("page", [] if run is None else _figures(run)),
        *_steady(report),
        doc.Lines(report.notes, "warning"),
    ]
    if run is not None and run.environment is not None:
        shown.append(doc.Only("page", [environment_section(run.environment)]))
    return doc.ReportDocument(f"Real-time run of {report.pipeline}", shown)


def _lead(report: RealtimeReport) -> doc.Lead:
    rates = ", ".join(
        f"{one.name} at {quantity.digits(one.rate_hz)} Hz" if one.rate_hz else f"{one.name} unpaced"
        for one in report.shape.sensors
    )
    deadline = report.deadline_seconds
    within = "no deadline" if deadline is None else f"deadline {quantity.seconds(deadline)}"
    chip = None
    if report.gate is not None:
        passed = report.gate.passed
        chip = doc.Phrase("gate passed" if passed else "gate failed", "good" if passed else "bad")
    how = f"{report.executor}, {quantity.seconds(report.seconds)}"
    return doc.Lead(report.pipeline, f"{rates}; {within}; {how}", "Real-time run", chip)


def _headline(sink: SinkOutcome, report: RealtimeReport) -> list[tuple[str, doc.Words]]:
    """The figures to read first; with several sinks each says whose it is."""
    of = f"{sink.sink}: " if len(report.sinks) > 1 else ""
    shown: list[tuple[str, doc.Words]] = [(f"{of}frames", quantity.count(sink.frames))]
    if sink.age is not None:
        shown += [
            (f"{of}age P50", quantity.seconds(sink.age.p50.seconds)),
            (f"{of}age P99", quantity.seconds(sink.age.p99.seconds)),
            (f"{of}worst", quantity.seconds(sink.age.worst_seconds)),
        ]
    if sink.p99_over_p50 is not None:
        shown.append((f"{of}P99/P50", quantity.digits(sink.p99_over_p50)))
    if sink.miss_share is not None and report.deadline_seconds is not None:
        missed = sink.late + sink.dropped + sink.failed
        tone: doc.Tone = "bad" if missed else "good"
        share = quantity.percent(sink.miss_share, 2)
        shown.append((f"{of}misses", doc.Phrase(f"{quantity.count(missed)} ({share})", tone)))
    if sink.results_per_second is not None:
        shown.append((f"{of}results/s", quantity.digits(sink.results_per_second)))
    return shown


# -- the gate --------------------------------------------------------------------------------------


def _gate(report: RealtimeReport) -> list[doc.Block]:
    if report.gate is None:
        return []
    columns = (
        doc.words("limit"),
        doc.words("sink", "at"),
        *doc.figures("allowed", "found", "95 %"),
        doc.words("verdict", ""),
        doc.Column("note", "", "remark"),
    )
    table = doc.DataTable(columns, [_check(one) for one in report.gate.checks], lead=2)
    note = (
        "Constant stream: a fixed rate, and the 99.9th percentile of all frames."
        if report.gate.mode == "constant-stream"
        else ""
    )
    return [doc.Chapter("Gate", [table], note)]


def _check(one: GateCheck) -> tuple[doc.Cell, ...]:
    verdict = doc.Phrase("kept", "good") if one.passed else doc.Phrase("broken", "bad")
    bounds = None
    if one.low is not None or one.high is not None:
        bounds = f"{_in_unit(one, one.low)} … {_in_unit(one, one.high)}"
    return (
        one.limit,
        one.sink,
        _in_unit(one, one.allowed),
        _in_unit(one, one.found),
        bounds,
        verdict,
        one.note or None,
    )


def broken_limit(check: GateCheck) -> str:
    """A limit that was not kept, in words."""
    found = _in_unit(check, check.found) if check.found is not None else check.note
    return f"{check.limit} at {check.sink}: {found}, allowed {_in_unit(check, check.allowed)}"


def _in_unit(check: GateCheck, value: float | None) -> str:
    if value is None:
        return "–"
    if check.limit == "max-miss":
        return quantity.percent(value, 2)
    return quantity.digits(value) if check.limit == "p99-over-p50" else quantity.seconds(value)


# -- stages and paths ------------------------------------------------------------------------------


def _stages(report: RealtimeReport) -> doc.Chapter:
    columns = (
        doc.words("stage"),
        doc.Column("calls", wide=True),
        doc.Column("p50_seconds", "P50"),
        doc.Column("p99_seconds", "P99"),
        doc.Column("worst_seconds", "worst"),
        doc.Column("budget_seconds", "budget"),
        *doc.figures("share", "over"),
        doc.Column("wait_p99_seconds", "wait P99"),
        doc.Column("gpu_p50_seconds", "GPU P50"),
        doc.Column("enqueue_p50_seconds", "enqueue P50"),
        *doc.figures("at rate"),
        doc.words("instead"),
    )
    rows = [_stage(one) for one in report.stages]
    flattered = any(one.flattery is not None for one in report.stages)
    note = f"{STAGES_NOTE} {FLATTERY_NOTE}" if flattered else STAGES_NOTE
    return doc.Chapter("Stages", [doc.DataTable(columns, rows)], note)


def _stage(one: StageLatency) -> tuple[doc.Cell, ...]:
    times = one.seconds
    other = {"degraded": one.degraded, "held": one.held, "skipped": one.skipped}
    instead = ", ".join(f"{times_} {what}" for what, times_ in other.items() if times_)
    return (
        one.stage,
        None if times is None else times.count,
        None if times is None else times.p50.seconds,
        None if times is None else times.p99.seconds,
        None if times is None else times.worst_seconds,
        one.budget_seconds,
        None if one.share is None else _share(one.share),
        quantity.count(one.over_budget) if one.budget_seconds is not None else None,
        one.wait_p99_seconds,
        one.gpu_p50_seconds,
        one.enqueue_p50_seconds,
        None if one.flattery is None else quantity.ratio(one.flattery),
        instead or None,
    )


def _share(share: float) -> doc.Phrase:
    return doc.Phrase(quantity.percent(share), "bad" if share > 1 else "")


def _paths(paths: Sequence[PathAges]) -> doc.Chapter:
    columns = (
        doc.words("path"),
        doc.Column("results"),
        doc.Column("p50_seconds", "age P50"),
        doc.Column("p99_seconds", "age P99"),
        doc.Column("worst_seconds", "worst"),
        doc.Column("budget_seconds", "allowed"),
        *doc.figures("share", "over"),
    )
    rows = [_path(one) for one in paths]
    return doc.Chapter("Paths", [doc.DataTable(columns, rows)], PATHS_NOTE)


def _path(one: PathAges) -> tuple[doc.Cell, ...]:
    age, budget = one.age, one.budget_seconds
    share = None if age is None or not budget else age.p99.seconds / budget
    return (
        f"{one.sensor} → {one.stage}",
        None if age is None else age.count,
        None if age is None else age.p50.seconds,
        None if age is None else age.p99.seconds,
        None if age is None else age.worst_seconds,
        budget,
        None if share is None else _share(share),
        None if budget is None else quantity.count(one.over_budget),
    )


# -- what went wrong -------------------------------------------------------------------------------


def _causes(report: RealtimeReport) -> list[doc.Block]:
    if not report.misses:
        return []
    columns = (
        doc.words("guilty"),
        doc.words("cause"),
        doc.words("co-runner"),
        doc.Column("misses"),
        doc.Column("median_excess_seconds", "excess P50"),
        doc.Column("worst_excess_seconds", "worst"),
        doc.words("frames"),
    )
    counted = doc.DataTable(columns, [_cause(one) for one in report.causes], lead=2)
    advice = [f"{one.place}: {one.evidence}; {one.cure}" for one in report.causes if one.evidence]
    worst = sorted(report.misses, key=lambda one: -(one.over_seconds or float("inf")))
    blocks: list[doc.Block] = [
        counted,
        doc.Lines(advice, "dim"),
        doc.Only("terminal", [_misses(worst[:MOST_MISSES], _of_all(report))]),
        doc.Only("page", [_misses(report.misses, "Every miss")]),
    ]
    return [doc.Chapter("Misses", blocks)]


def _of_all(report: RealtimeReport) -> str:
    number = len(report.misses)
    return "Every miss" if number <= MOST_MISSES else f"The worst {MOST_MISSES} of {number}"


def _cause(one: CauseCount) -> tuple[doc.Cell, ...]:
    frames = ", ".join(map(str, one.frames[:MOST_FRAMES]))
    return (
        one.place,
        one.kind,
        one.co_runner or None,
        one.misses,
        one.median_excess_seconds,
        one.worst_excess_seconds,
        frames + (", …" if one.misses > MOST_FRAMES else ""),
    )


def _misses(misses: Sequence[MissCause], title: str) -> doc.DataTable:
    columns = (
        doc.Column("frame"),
        doc.words("sink"),
        doc.words("fate"),
        doc.Column("over_seconds", "over"),
        doc.words("guilty"),
        doc.words("cause"),
        doc.words("co-runner"),
        doc.Column("excess_seconds", "excess"),
        doc.Column("evidence", "evidence", "remark", only="page"),
    )
    rows = [
        (
            str(one.frame),
            one.sink,
            one.fate,
            one.over_seconds,
            one.place,
            one.kind if one.behind is None else f"{one.kind}, behind frame {one.behind}",
            one.co_runner or None,
            one.excess_seconds,
            one.evidence,
        )
        for one in misses
    ]
    return doc.DataTable(columns, rows, title, sortable=True, page_rows=1000)


def _losses(report: RealtimeReport) -> list[doc.Block]:
    if not report.losses:
        return []
    columns = (
        doc.words("where"),
        doc.words("reason"),
        doc.words("fate"),
        doc.Column("frames"),
        doc.words("sink"),
        doc.words("first"),
    )
    rows = [
        (one.place, one.reason, one.kind, one.frames, one.sink, f"frame {one.first_frame}")
        for one in report.losses
    ]
    return [doc.Chapter("Frames without a result", [doc.DataTable(columns, rows)])]


def _faults(report: RealtimeReport) -> list[doc.Block]:
    counted: dict[tuple[str, str], list[str]] = {}
    for one in report.sensor_faults:
        at = f"frame {one.frame} at {quantity.seconds(one.at_seconds)}"
        detail = f"{at}: {one.detail}" if one.detail else at
        counted.setdefault((one.sensor, one.kind), []).append(detail)
    if not counted:
        return []
    columns = (doc.words("sensor"), doc.words("fault"), doc.Column("times"), doc.words("first"))
    rows = [(sensor, kind, len(found), found[0]) for (sensor, kind), found in counted.items()]
    return [doc.Chapter("Sensors", [doc.DataTable(columns, rows)])]


def _steady(report: RealtimeReport) -> list[doc.Block]:
    if not report.steady:
        return []
    columns = (doc.words("measure"), doc.words("answer"), doc.words("detail", ""))
    rows = [
        (
            one.name,
            doc.Phrase("granted", "good") if one.granted else doc.Phrase("refused", "warning"),
            one.detail,
        )
        for one in report.steady
    ]
    return [doc.Chapter("Steadiness", [doc.DataTable(columns, rows)])]


def _figures(run: RealtimeRun) -> list[doc.Block]:
    """The frames over time, on pages."""
    return [
        doc.Chapter(title, doc.figure(name, plot, height), note)
        for title, name, plot, height, note in (
            ("Frames over time", "ages", ages_figure(run), 360,
             "Age of each result; a cross at zero is a frame that has none."),
            ("The worst frames", "worst", worst_frames_figure(run), 520,
             "Each row is a frame from its stamp on: calls in colour, waits between them empty."),
        )
        if plot is not None
    ]  # fmt: skip
