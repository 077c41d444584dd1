"""Views of records whose commands draw them with something beside: here without it."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from ridgeline import quantity
from ridgeline.cost.pipeline_schedule import timeline_of
from ridgeline.records import StepProfile
from ridgeline.records.drill import DrillSheet
from ridgeline.records.estimate import Estimate
from ridgeline.records.plan import Plan
from ridgeline.records.queue_sharing import SharePlan
from ridgeline.records.queue_submission import QueueSubmission
from ridgeline.records.realtime_report import RealtimeReport
from ridgeline.records.realtime_run import RealtimeRun
from ridgeline.records.training_run import TrainingRun
from ridgeline.report import document as doc
from ridgeline.report.document import ReportDocument
from ridgeline.report.views.calc import calc_document
from ridgeline.report.views.compare import comparison_document
from ridgeline.report.views.doctor import profile_document
from ridgeline.report.views.drill import question_document
from ridgeline.report.views.plan_training import plan_document
from ridgeline.report.views.predict_training import estimate_document
from ridgeline.report.views.queue_questions import submission_document
from ridgeline.report.views.queue_sharing import queue_sharing_document
from ridgeline.report.views.realtime import realtime_document
from ridgeline.report.views.train import run_document

DEEPEST = 3
MOST_COLUMNS, MOST_ROWS, MOST_SIGNS = 8, 300, 20_000
"""What is shown of a document that has no view of its own."""


def calculation_view(found: Any) -> ReportDocument:
    """The result of a formula."""
    result = found.result
    if is_dataclass(result) and not isinstance(result, type):
        result = asdict(result)
    if isinstance(result, dict):
        return calc_document(found.formula, result)
    return calc_document(found.formula, {"": result}, measure=found.measure)


def comparison_view(found: Any) -> ReportDocument:
    """A comparison, without the history that it was appended to."""
    return comparison_document(found, None)


def estimate_view(found: Estimate) -> ReportDocument:
    """An estimate; its model and cluster are not in it."""
    return estimate_document([found], title="A training step", timeline=timeline_of(found))


def plan_view(found: Plan) -> ReportDocument:
    """A plan, without curves over numbers of devices."""
    return plan_document(found, timeline=timeline_of(found.best.estimate))


def profile_view(found: StepProfile) -> ReportDocument:
    """A measured step, diagnosed anew."""
    from ridgeline.diagnose.diagnosis import diagnose

    said = diagnose([found])
    return profile_document(found, said.findings, said.verdict)


def run_view(found: TrainingRun) -> ReportDocument:
    """A run, without the log of its folder."""
    return run_document(found, [], Path())


def realtime_run_view(found: RealtimeRun) -> ReportDocument:
    """A run of a pipeline, with its tables computed anew and no gate."""
    from ridgeline.realtime.summary import summarise_run

    return realtime_document(summarise_run(found), found)


def realtime_report_view(found: RealtimeReport) -> ReportDocument:
    """The tables of a run, without its frames."""
    return realtime_document(found, None)


def sharing_view(found: SharePlan) -> ReportDocument:
    """A plan of shared GPUs; the name of its file of workloads is not in it."""
    return queue_sharing_document(found, "Shared GPUs")


def submission_view(found: QueueSubmission) -> ReportDocument:
    """What becomes of a job in a queue; the name of its recipe is not in it."""
    return submission_document(found, "the job")


def drill_sheet_view(found: DrillSheet) -> ReportDocument:
    """The questions of a sheet, each with its evidence."""
    count = len(found.questions)
    blocks = [
        block
        for place, one in enumerate(found.questions, start=1)
        for block in question_document(one, place, count).blocks
    ]
    return ReportDocument("Drill", blocks)


def plain_view(found: dict[str, Any]) -> ReportDocument:
    """A document without a view of its own: its keys and values, lists of records as tables."""
    return ReportDocument("What it says", _plain("", found, 0))


def plain_list_view(found: list[dict[str, Any]]) -> ReportDocument:
    """A list of records without a view of their own."""
    return ReportDocument("What it says", [_records(found)])


def _plain(title: str, found: dict[str, Any], depth: int) -> list[doc.Block]:
    single = {key: value for key, value in found.items() if not isinstance(value, dict | list)}
    blocks: list[doc.Block] = []
    if single:
        blocks.append(
            doc.Values([(key, _word(value)) for key, value in single.items()], listed=True)
        )
    for key, value in found.items():
        name = f"{title} {key}".strip()
        if isinstance(value, dict) and value:
            inner = _plain(name, value, depth + 1) if depth < DEEPEST else [_text(value)]
            blocks.append(doc.Chapter(name, inner))
        elif isinstance(value, list) and value:
            told = _records(value) if all(isinstance(one, dict) for one in value) else _text(value)
            blocks.append(doc.Chapter(name, [told]))
    return blocks


def _records(found: list[dict[str, Any]]) -> doc.Block:
    """A table of what the records have in common and can be read in a cell."""
    plain = [key for key, value in found[0].items() if not isinstance(value, dict | list)][
        :MOST_COLUMNS
    ]
    if not plain:
        return _text(found)
    rows = [[_word(one.get(key)) for key in plain] for one in found[:MOST_ROWS]]
    return doc.DataTable([doc.words(key) for key in plain], rows)


def _text(found: object) -> doc.Block:
    """The text of a part, as JSON has it, cut where it gets long."""
    text = msgspec.json.format(msgspec.json.encode(found), indent=1).decode()
    return doc.Verbatim(text[:MOST_SIGNS])


def _word(value: object) -> str:
    if isinstance(value, float):
        return quantity.digits(value)
    return "–" if value is None else str(value)


def trace_view(path: Path) -> ReportDocument:
    """A profiler's trace, with every question answered."""
    from ridgeline.diagnose.trace_answers import rank_answers, trace_answers
    from ridgeline.report.views.trace_page import trace_page_document
    from ridgeline.trace.load import read_traces

    traces = read_traces(path, details=True)
    answers = [rank_answers(trace, "trace", len(traces)) for trace in traces]
    return trace_page_document(trace_answers(answers))
