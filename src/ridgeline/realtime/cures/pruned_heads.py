"""Heads that the present driving mode does not need are left out.

A parking head on the motorway computes for nobody. The author of a stage declares the modes that
need it, how the mode is read from its inputs, and what stands for its output elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.realtime.cures import CureCard, CureStage, Fit, option_text
from ridgeline.realtime.declared import hints_of
from ridgeline.realtime.rewriting.graph import WrappedStage, innermost, with_calls
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.graph import Call
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="pruned-heads",
    title="Heads only in the driving modes that need them",
    costs="A change of mode shows on the first frame that has it; results elsewhere are declared.",
    source="declared: ridgeline.realtime.declared.declare(…, modes=…, mode=…)",
    stage=CureStage.GRAPH,
    freedom=0.0,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """A stage declares its modes."""
    names = [name for name, code in pipeline.code.items() if hints_of(innermost(code.call)).modes]
    if not names:
        return Fit(reason="no stage declares the driving modes that need it")
    return Fit(({"stages": ", ".join(names)},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Ask for the mode before each call."""
    names = [name.strip() for name in option_text(options, "stages").split(",")]
    return with_calls(pipeline, _InModes, names)


class _InModes(WrappedStage):
    """A stage that runs in its modes."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._hints = hints_of(innermost(call))

    def __call__(self, *inputs: Any) -> Any:
        mode = self._hints.mode
        if mode is not None and mode(*inputs) not in self._hints.modes:
            return self._hints.otherwise
        return self.call(*inputs)
