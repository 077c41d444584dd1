"""Views of records whose commands draw them with something beside: here without it."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from ridgeline.cost.pipeline_schedule import timeline_of
from ridgeline.records import StepProfile
from ridgeline.records.estimate import Estimate
from ridgeline.records.plan import Plan
from ridgeline.records.training_run import TrainingRun
from ridgeline.report.document import ReportDocument
from ridgeline.report.views.calc import calc_document
from ridgeline.report.views.compare import comparison_document
from ridgeline.report.views.doctor import profile_document
from ridgeline.report.views.plan_training import plan_document
from ridgeline.report.views.predict_training import estimate_document
from ridgeline.report.views.train import run_document


def calculation_view(found: Any) -> ReportDocument:
    """The result of a formula."""
    result = found.result
    if is_dataclass(result) and not isinstance(result, type):
        result = asdict(result)
    return calc_document(found.formula, result if isinstance(result, dict) else {"": result})


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
    """A run, without the journal of its folder."""
    return run_document(found, [], Path())


def trace_view(path: Path) -> ReportDocument:
    """A profiler's trace, with every question answered."""
    from ridgeline.diagnose.trace_answers import rank_answers, trace_answers
    from ridgeline.report.views.trace_page import trace_page_document
    from ridgeline.trace.load import read_traces

    traces = read_traces(path, details=True)
    answers = [rank_answers(trace, "trace", len(traces)) for trace in traces]
    return trace_page_document(trace_answers(answers))
