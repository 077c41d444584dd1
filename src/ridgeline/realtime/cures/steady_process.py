"""The measures against jitter of `--steady`: affinity, priority, collections in slack, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.realtime.cures import CureCard, CureStage, Fit, RunChoice
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="steady-process",
    title="A steady process",
    costs="Other processes on its cores wait; some measures need privileges.",
    source="docs/how-to/a-steady-process.md",
    stage=CureStage.RUN,
    watched="p99",
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """It can be tried on every pipeline."""
    return Fit(({},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Nothing in the pipeline changes: see `settings`."""
    return pipeline


def settings(choice: RunChoice, options: Options) -> RunChoice:
    """The run is steady."""
    return replace(choice, steady=True)
