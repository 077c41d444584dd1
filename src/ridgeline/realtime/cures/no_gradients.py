"""Stages run without the book-keeping of gradients.

A model in `eval()` still records how to be differentiated: memory for every activation, and a
little time per operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.realtime.cures import CureCard, CureStage, Fit, option_text
from ridgeline.realtime.results import ROUNDING
from ridgeline.realtime.rewriting.graph import WrappedStage, with_calls
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="no-gradients",
    title="No gradients",
    costs="A stage that differentiates on purpose fails.",
    source="PyTorch documentation, Autograd mechanics, Locally disabling gradients",
    stage=CureStage.GRAPH,
    freedom=ROUNDING,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """The answer of a module remembers how to be differentiated."""
    stages = dict.fromkeys(one.stage for one in seen.modules if one.keeps_gradients)
    if not stages:
        return Fit(reason="no stage keeps gradients")
    return Fit(({"stages": ", ".join(stages)},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Call the stages under `no_grad`: what they keep for later frames stays an ordinary tensor."""
    names = [name.strip() for name in option_text(options, "stages").split(",")]
    return with_calls(pipeline, _WithoutGradients, names)


class _WithoutGradients(WrappedStage):
    """A stage under `no_grad`."""

    def __call__(self, *inputs: Any) -> Any:
        import torch

        with torch.no_grad():
            return self.call(*inputs)
