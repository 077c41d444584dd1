"""Stages in threads or processes of their own, where a frame has branches that do not wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from ridgeline.realtime.cures import CureCard, CureStage, Fit, RunChoice, option_text
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="executor",
    title="Stages side by side",
    costs="A hand-over per edge; stages compete for cores and, in threads, for Python's lock.",
    source="docs/reference/realtime-run.md",
    stage=CureStage.RUN,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """Two stages could run at one time, on two cores."""
    if seen.cores < 2:
        return Fit(reason="one core")
    if len(pipeline.shape.stages) < 2:
        return Fit(reason="one stage")
    return Fit(({"executor": "threads"}, {"executor": "processes"}))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Nothing in the pipeline changes: see `settings`."""
    option_text(options, "executor")
    return pipeline


def settings(choice: RunChoice, options: Options) -> RunChoice:
    """The executor of the run."""
    name = cast("Literal['inline', 'threads', 'processes']", option_text(options, "executor"))
    return replace(choice, executor=name)
