"""`ridgeline doctor -- script.py args…`: where the time goes, what bounds it, ranked cures.

`ridgeline doctor --trace FILES…` answers the same from profiler traces alone; it runs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from ridgeline.cli.durations import duration_option
from ridgeline.cli.show import Html, Json, output_file
from ridgeline.errors import InputError

_TIMED_SECONDS = 5.0
"""Enough for a median that is good to a few percent; the first verdict should not wait longer."""


def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- SCRIPT [ARGS]…",
            help="The script and its arguments, after --. With --trace: more traces.",
        ),
    ] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Judge profiler traces; several, folders, globs."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps to time. Default: 40, or those of five seconds; of uneven steps more."
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(help="Steps before them. Default: until the step time is steady."),
    ] = None,
    budget: Annotated[
        float, duration_option("Wall time in all; fewer steps are timed if need be.")
    ] = 120.0,
    window: Annotated[
        Literal["trace", "steps", "span"] | None,
        typer.Option(
            help="With --trace, what to judge: the GPU's work, whole profiler steps, or the work of"
            " host and GPU. Default: span where it is clearly longer than trace.",
        ),
    ] = None,
    json: Json = False,
    out: Annotated[Path | None, output_file("FILE.json", "Also write that document here.")] = None,
    html: Html = None,
) -> None:
    """Examine an unmodified script: where its time goes, what bounds it, what is worth doing."""
    if trace:
        _refuse_script_options(command or [], html=html)
        _judge_traces([*trace, *(command or [])], window or "auto", json=json, out=out)
        return
    if window is not None:
        raise InputError(f"--window {window}: traces have windows; give it with --trace FILE")
    if not command:
        raise InputError(
            "nothing to examine: give a SCRIPT (ridgeline doctor -- train.py) or traces "
            "(ridgeline doctor --trace FILE)"
        )
    from dataclasses import replace

    from ridgeline.cli.show import (
        progress,
        show_answer,
        told,
    )
    from ridgeline.diagnose.doctor import USUAL_PLAN
    from ridgeline.diagnose.doctor import doctor as examine
    from ridgeline.measure.live.command import resolve
    from ridgeline.measure.live.windows import MeasurementPlan
    from ridgeline.records.store import write_record
    from ridgeline.report.views.doctor import profile_document

    plan = replace(USUAL_PLAN, warmup=warmup, budget_seconds=budget)
    if steps is not None:
        plan = MeasurementPlan(steps=steps, warmup=warmup, budget_seconds=budget)
    resolve(command)
    with progress() as on_progress:
        examination = examine(command, plan, on_progress=on_progress)
    document = profile_document(examination.profile, examination.findings, examination.verdict)
    if out is not None:
        with told("--out", out):
            write_record(out, examination)
    show_answer(examination, document, json=json, html=html)


def _refuse_script_options(command: list[str], *, html: Path | None) -> None:
    if any(word.endswith(".py") or word.startswith("-") for word in command):
        raise InputError(f"--trace and a command ({command[0]}): give one or the other")
    if html is not None:
        raise InputError("--html with --trace: use `ridgeline trace report FILES --html FILE`")


def _judge_traces(files: list[str], window: str, *, json: bool, out: Path | None) -> None:
    from functools import partial

    from ridgeline.cli.show import show_answer, told
    from ridgeline.cli.trace_files import ask, named_files
    from ridgeline.diagnose.trace_facts import trace_facts
    from ridgeline.diagnose.trace_verdict import verdict_of
    from ridgeline.records.store import write_atomically
    from ridgeline.report.views.trace_summary import verdict_document

    paths = named_files(files)
    answers = ask(files, partial(trace_facts, window=window), details=True)
    facts = [fact for answer in answers for fact in answer]
    verdict = verdict_of(facts)
    judged = sorted({fact.summary.window for fact in facts})
    document = {"files": [str(path) for path in paths], "windows": judged, "verdict": verdict}
    if out is not None:
        with told("--out", out):
            write_atomically(out, msgspec.json.format(msgspec.json.encode(document), indent=1))
    show_answer(document, verdict_document(verdict), json=json)
