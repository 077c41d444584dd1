"""The model as torch.export sees it: a graph of operators without side effects, or a refusal."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from ridgeline.compress.vision.folding import fold_batch_norms, remove_identities, split_attention
from ridgeline.errors import InputError

_CURES = {
    "GuardOnDataDependent": "make it independent of the data (torch.where, a fixed count)",
    "DynamicOutputShape": "pad to a fixed count (torch.topk instead of nonzero or a mask)",
    "item": "keep the number a tensor",
}
_OTHERWISE = "keep that part out of the model that is quantised, or rewrite it without control flow"


def traced(model: nn.Module, batch: Tensor) -> fx.GraphModule:
    """The operators of a model in inference, batch normalisation folded; its weights are copies.

    Args:
        model: Called with one tensor. Not changed.
        batch: A batch to run it with; its size stays free where the model lets it.

    Raises:
        InputError: torch.export refuses: the user's line and a cure.
    """
    own = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    example = torch.cat([batch, batch])[:2] if len(batch) == 1 else batch[:2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = torch.export.export(
                own, (example,), dynamic_shapes=({0: torch.export.Dim.AUTO},)
            )
            if any(_changes_in_place(node) for node in exported.graph.nodes):
                exported = exported.run_decompositions({})
        except Exception as error:  # anything that the user's forward or the exporter raises
            raise InputError(_refusal(error)) from error
        graph = exported.module(check_guards=False)
    remove_identities(graph)
    fold_batch_norms(graph)
    split_attention(graph)
    return graph


def run_watched(graph: fx.GraphModule, batches: Iterable[Tensor], watch: Any) -> None:
    """Run batches; `watch(node, value)` sees each operator's result."""
    watcher = _Watcher(graph, watch)
    with torch.no_grad():
        for batch in batches:
            watcher.run(batch)


class _Watcher(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule, watch: Any) -> None:
        super().__init__(graph)
        self.watch = watch

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.watch(n, value)
        return value


def check_batches(batches: Sequence[Tensor]) -> None:
    """Refuse batches that ranges cannot be taken from.

    Raises:
        InputError: None at all, one that is no batch of images, numbers that are not finite.
    """
    if not batches:
        raise InputError("no calibration batches: ranges are taken from images; give at least one")
    for place, one in enumerate(batches):
        if not isinstance(one, Tensor) or one.ndim < 2 or not len(one):
            raise InputError(f"calibration batch {place}: not a tensor [images, channels, …]")
        if one.is_floating_point() and not bool(one.isfinite().all()):
            raise InputError(f"calibration batch {place}: holds infinite numbers or NaN")


def _changes_in_place(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _refusal(error: Exception) -> str:
    """One line: where in the user's code, what, and what to do."""
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    cure = next((one for key, one in _CURES.items() if key in type(error).__name__ + text[:2000]),
                _OTHERWISE)  # fmt: skip
    return f"{_place(error, text)}torch.export cannot follow it: {first[:200]}; {cure}"


def _place(error: Exception, text: str) -> str:
    """The innermost line outside of torch, from the exporter's message or the traceback."""
    own = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not _of_library(frame.filename)
    ]
    told = [line.strip() for line in text.splitlines() if line.strip().startswith('File "')]
    for line in reversed(told):
        name, _, rest = line[len('File "') :].partition('"')
        if not _of_library(name) and "line " in rest:
            return f"{name}:{rest.split('line ')[1].split(',')[0].split()[0]}: "
    return f"{own[-1][0]}:{own[-1][1]}: " if own else ""


def _of_library(filename: str) -> bool:
    parts = Path(filename).parts
    return "torch" in parts or "ridgeline" in parts or filename.startswith("<")
