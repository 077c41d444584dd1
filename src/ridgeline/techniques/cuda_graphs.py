"""Replay the step's kernels from CUDA graphs: the host launches one thing instead of thousands.

Through `torch.compile` with its `cudagraphs` backend: the operators are the eager ones, only
their launches are recorded. Shapes must not change from step to step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.anatomy import parts
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit, FirstOf, InsertBefore
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="cuda-graphs",
    title="CUDA graphs",
    cures=("tiny-operators", "host-python"),
    costs="Memory of the graphs' pools; a new graph for every new shape.",
    source="PyTorch documentation, CUDA semantics, CUDA graphs",
    equivalence="rounding",
    stage=Stage.GRAPH,
    slot="runtime",
)


def applies(context: Context) -> Applicability:
    """A GPU that waits for launches of many small kernels of fixed shapes."""
    profile = context.profile
    if context.device != "cuda":
        return Applicability(False, f"CUDA graphs need CUDA; the model is on {context.device}")
    if any(model.compiled for model in profile.models) or profile.settings.graph_compiles:
        return Applicability(False, "the script compiles; use its mode reduce-overhead")
    if profile.models[0].wrapper is not None:
        return Applicability(False, f"{profile.models[0].wrapper} communicates between kernels")
    if profile.small_operator_share < 0.1:
        share = profile.small_operator_share
        return Applicability(False, f"{share:.0%} of a step is in operators too small to launch")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """What is lost between small kernels mostly goes."""
    return amdahl(context.profile.small_operator_share, 1.1, 6.0)


def apply(points: Points, options: Options) -> Undo:
    """Replace the call of each outermost model."""
    captured: list[nn.Module] = []

    def capture(module: nn.Module) -> None:
        if any(part._compiled_call_impl is not None for part in parts(module)):
            return
        module._compiled_call_impl = _graphed_call(module)
        captured.append(module)
        if points.time_compiled_call is not None:
            points.time_compiled_call(module)
        points.changed(CARD.name, f"{len(captured)} module(s) run from CUDA graphs")

    points.on_model.append(capture)

    def undo() -> None:
        points.on_model.remove(capture)
        for module in captured:
            module._compiled_call_impl = None

    return undo


def _graphed_call(module: nn.Module) -> Any:
    import torch

    training = torch.is_grad_enabled()
    call = module._call_impl

    # Dynamo does not look into modules that torch itself defines: go through a function of ours.
    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    graphed = torch.compile(run, backend="cudagraphs")

    def choose(*args: Any, **kwargs: Any) -> Any:
        if training and not torch.is_grad_enabled():
            return call(*args, **kwargs)
        return graphed(*args, **kwargs)

    return choose


def edits(context: Context, options: Options) -> list[Edit]:
    """Compile the forward with that backend before the optimizer is made, or the loop."""
    code = '{model}.forward = torch.compile({model}.forward, backend="cudagraphs")'
    sites = [o.site for o in context.profile.optimizers if o.site is not None]
    places: list[Edit] = [InsertBefore(site=site, code=code) for site in sites[:1]]
    forward = context.profile.models[0].forward_site
    if forward is not None:
        places.append(InsertBefore(site=forward, code=code, outside_loops=True))
    return [FirstOf(edits=tuple(places))] if places else []
