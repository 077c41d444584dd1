"""The model as torch.export sees it: a graph of operators without side effects, or a refusal."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from ridgeline.compress.vision.folding import fold_batch_norms, remove_identities, split_attention
from ridgeline.errors import InputError
from ridgeline.runtimes.capture.blame import blame


def traced(model: nn.Module, batch: Tensor) -> fx.GraphModule:
    """The operators of a model in inference, batch normalisation folded; its weights are copies.

    Args:
        model: Called with one tensor. Not changed.
        batch: A batch to run it with; its size stays free where the model lets it.

    Raises:
        ExportError: torch.export refuses: the user's line and a cure.
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
            raise blame(error, log="") from error
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
