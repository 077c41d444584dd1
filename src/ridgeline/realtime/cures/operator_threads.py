"""Another number of threads inside of each operator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ridgeline.realtime.cures import CureCard, CureStage, Fit, RunChoice, option_number
from ridgeline.realtime.results import ROUNDING
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="operator-threads",
    title="Threads inside of operators",
    costs="Cores that other stages and processes would use.",
    source="PyTorch documentation, CPU threading",
    stage=CureStage.SETTINGS,
    freedom=ROUNDING,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """The machine has another number of cores than operators use."""
    import torch

    now = torch.get_num_threads()
    found = [count for count in dict.fromkeys((seen.cores, 1)) if count != now]
    if not found:
        return Fit(reason=f"{now} thread(s) on {seen.cores} core(s): there is no other choice")
    return Fit(tuple({"threads": count} for count in found))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Set the number for the whole process."""
    import torch

    torch.set_num_threads(option_number(options, "threads", 1))
    return pipeline


def settings(choice: RunChoice, options: Options) -> RunChoice:
    """The same number in every process that calls stages."""
    return replace(choice, threads=option_number(options, "threads", 1))
