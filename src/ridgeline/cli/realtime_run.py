"""`ridgeline realtime run pipeline.py` runs a pipeline at its frame rate and judges the frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.durations import duration_option, parse_share
from ridgeline.cli.show import Html, Json, output_file
from ridgeline.realtime.execute import ExecutorName
from ridgeline.realtime.executors.processes import OnDeath

if TYPE_CHECKING:
    from ridgeline.realtime.gate import GateLimits
    from ridgeline.realtime.run import RunSettings
    from ridgeline.records.realtime_report import RealtimeReport
    from ridgeline.records.realtime_run import RealtimeRun

_GATE = "The gate: exit 3 when broken"


def realtime_run(
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE.py[:NAME]", help="The file that declares the pipeline, and its name."
        ),
    ],
    deadline: Annotated[
        float | None, duration_option("Age a result may have. Default: the pipeline's own.")
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(
            help="Frames of the first sensor after warm-up. Default: 500; 10000 of a constant"
            " stream."
        ),
    ] = None,
    warmup: Annotated[int, typer.Option(help="Leading frames that statistics leave out.")] = 10,
    executor: Annotated[
        ExecutorName,
        typer.Option(help="Who calls the stages: one thread, or a thread or process for each."),
    ] = "inline",
    on_death: Annotated[
        OnDeath,
        typer.Option(help="What a stage's process that dies does: begin anew, or end the run."),
    ] = "restart",
    steady: Annotated[
        bool,
        typer.Option("--steady", help="Take measures against jitter, and say what is refused."),
    ] = False,
    tight_frames: Annotated[
        int, typer.Option(help="Frames of a tight loop for comparison, at most --frames; 0: none.")
    ] = 100,
    max_miss: Annotated[
        float | None,
        typer.Option(
            parser=parse_share,
            metavar="SHARE",
            help="Share of frames without a result in time, as 0.1%.",
            rich_help_panel=_GATE,
        ),
    ] = None,
    p99_over_p50: Annotated[
        float | None,
        typer.Option(help="Most that P99 of the age may be of P50.", rich_help_panel=_GATE),
    ] = None,
    worst: Annotated[float | None, duration_option("Age of the worst result, at most.")] = None,
    mean: Annotated[float | None, duration_option("Mean age of results, at most.")] = None,
    constant_stream: Annotated[
        bool,
        typer.Option(
            "--constant-stream",
            help="The 99.9th percentile at a fixed rate, of 10000 frames or more, as MLPerf"
            " Automotive.",
            rich_help_panel=_GATE,
        ),
    ] = False,
    budgets: Annotated[
        bool,
        typer.Option(
            "--budgets",
            help="P99 of every stage and path that has a budget within it.",
            rich_help_panel=_GATE,
        ),
    ] = False,
    out: Annotated[Path | None, output_file("FILE", "Write every call and fate: run.json.")] = None,
    trace: Annotated[
        Path | None, output_file("FILE", "Write a trace of every frame for ui.perfetto.dev.")
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Run a pipeline at its frame rate: stages, paths, misses with their cause, drops.

    With a limit (--max-miss, --p99-over-p50, --worst, --mean, --constant-stream, --budgets) it is
    a gate.
    """
    from ridgeline.cli.show import show_answer
    from ridgeline.realtime.gate import GateLimits, judged_report
    from ridgeline.realtime.run import RunSettings
    from ridgeline.report.views.realtime import realtime_document

    limits = GateLimits(
        max_miss=max_miss,
        p99_over_p50=p99_over_p50,
        worst_seconds=worst,
        mean_seconds=mean,
        constant_stream=constant_stream,
        budgets=budgets,
    )
    settings = RunSettings(
        frames=limits.usual_frames if frames is None else frames,
        warmup=warmup,
        executor=executor,
        on_death=on_death,
        steady=steady,
        tight_frames=tight_frames,
    )
    run = _run(pipeline, deadline, settings, limits)
    _write(run, out, trace)
    report = judged_report(run, limits)
    show_answer(report, realtime_document(report, run), json=json, html=html)
    if run.interrupted:
        raise typer.Exit(130)
    _raise_nothing_came(report)
    _raise_broken(report)


def _run(
    pipeline: str, deadline_seconds: float | None, settings: RunSettings, limits: GateLimits
) -> RealtimeRun:
    from ridgeline.cli.show import progress
    from ridgeline.realtime.run import declared_pipeline, run_paced

    declared = declared_pipeline(pipeline, deadline_seconds)
    limits.check_fits(declared.shape, settings.frames)
    with progress() as on_progress:
        return run_paced(
            declared,
            settings,
            again=lambda: declared_pipeline(pipeline, deadline_seconds),
            on_progress=on_progress,
        )


def _write(run: RealtimeRun, out: Path | None, trace: Path | None) -> None:
    from ridgeline.cli.show import told
    from ridgeline.realtime.frame_trace import write_frame_trace
    from ridgeline.records.store import write_record

    if out is not None:
        with told("--out", out):
            write_record(out, run)
    if trace is not None:
        with told("--trace", trace):
            write_frame_trace(trace, run)


def _raise_nothing_came(report: RealtimeReport) -> None:
    from ridgeline.errors import InputError

    if report.misses and not any(sink.delivered + sink.late for sink in report.sinks):
        first = report.misses[0]
        raise InputError(
            f"{report.pipeline}: not one frame came through: {first.place}: {first.evidence}"
        )


def _raise_broken(report: RealtimeReport) -> None:
    from ridgeline.errors import Regression
    from ridgeline.report.views.realtime import broken_limit

    if report.gate is not None and not report.gate.passed:
        broken = [broken_limit(one) for one in report.gate.checks if not one.passed]
        raise Regression(f"{report.pipeline}: {'; '.join(broken)}")
