"""The model as torch.export sees it: a graph of operators without side effects, or a refusal."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from ridgeline.compress.vision.batches import (
    Batch,
    free_batch,
    inputs_of,
    part_of,
    rows_of,
    together,
)
from ridgeline.compress.vision.folding import fold_batch_norms, remove_identities, split_attention
from ridgeline.compress.vision.in_place import without_writes
from ridgeline.errors import ExportError, InputError
from ridgeline.runtimes.capture.blame import blame
from ridgeline.runtimes.capture.fixed_sizes import where_fixed
from ridgeline.runtimes.capture.states import StateSnapshot


def traced(model: nn.Module, batch: Batch) -> fx.GraphModule:
    """The operators of a model in inference, batch normalisation folded; its weights are copies.

    Args:
        model: Called with the tensors of a batch. Not changed.
        batch: A batch to run it with; its size stays free where the model lets it.

    Raises:
        ExportError: torch.export refuses: the user's line and a cure.
    """
    own = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
    example = part_of(together([batch, batch]) if rows_of(batch) == 1 else batch, slice(2))
    first = part_of(batch, slice(1))
    alone = not _takes(own, example) and _takes(own, first)
    before = StateSnapshot(model)
    if not alone:
        graph = _exported(own, example, free_batch(own, example, torch.export.Dim.AUTO))
        # `len(x)` and the like keep the number two
        alone = not _takes(graph, first) and _takes(own, first)
    if alone:
        graph = _exported(own, first, None)
        graph.meta[_ALONE] = True
    kept = before.take_back()
    if kept:
        raise ExportError(
            f"a hook of the model keeps {kept[0]}, which no copy of the model can read; compress "
            "what `ridgeline export --to torch-export --fix size` writes (.pt2)",
            kind="changes-state",
        )
    remove_identities(graph)
    fold_batch_norms(graph)
    split_attention(graph)
    return graph


_ALONE = "one image at a time"
"""In a graph's `meta`: it was traced for one image, and may answer wrongly to more."""


def _exported(own: nn.Module, example: Batch, shapes: Any) -> fx.GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = torch.export.export(own, inputs_of(example), dynamic_shapes=shapes)
            graph = exported.module(check_guards=False)
            if not without_writes(graph):
                graph = exported.run_decompositions({}).module(check_guards=False)
        except Exception as error:  # anything that the user's forward or the exporter raises
            raise blame(error, log="") from error
        return graph


def why_alone(model: nn.Module, image: Batch) -> str:
    """Why a model that was traced takes no batch: its line, where it is known.

    Args:
        model: As for `traced`.
        image: One to run it with.
    """
    own = copy.deepcopy(model).eval()
    pair = together([image, image])
    if not _takes(own, pair):
        return "forward takes no batch of two"
    free = free_batch(own, pair, torch.export.Dim.AUTO)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(own, inputs_of(pair), dynamic_shapes=free)
        except Exception:  # what was traced for one image need not be for two
            return "its operators follow from the size of the batch"
    place = where_fixed(program, 2)
    if place is None:
        return "its operators follow from the size of the batch"
    return f"{place} makes a number of the batch, as len(x) does; x.shape[0] stays free"


def batches_for(graph: fx.GraphModule, batches: Sequence[Batch]) -> Sequence[Batch]:
    """The batches as they are, or image by image where a traced graph takes one alone."""
    if not graph.meta.get(_ALONE):
        return batches
    return [
        part_of(batch, slice(place, place + 1))
        for batch in batches
        for place in range(rows_of(batch))
    ]


def _takes(model: nn.Module, batch: Batch) -> bool:
    try:
        with torch.no_grad():
            model(*inputs_of(batch))
    except Exception:  # whatever the user's forward raises; the exporter's blame says it
        return False
    return True


def run_watched(graph: fx.GraphModule, batches: Iterable[Batch], watch: Any) -> None:
    """Run batches; `watch(node, value)` sees each operator's result."""
    watcher = _Watcher(graph, watch)
    with torch.no_grad():
        for batch in batches:
            watcher.run(*inputs_of(batch))


class _Watcher(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule, watch: Any) -> None:
        super().__init__(graph)
        self.watch = watch

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.watch(n, value)
        return value


def check_batches(batches: Sequence[Batch]) -> None:
    """Refuse batches that ranges cannot be taken from.

    Raises:
        InputError: None at all, one that is no batch of images, numbers that are not finite.
    """
    if not batches:
        raise InputError("no calibration batches: ranges are taken from images; give at least one")
    for place, batch in enumerate(batches):
        _check_images(place, inputs_of(batch)[0])
        for one in inputs_of(batch)[1:]:
            if one.is_floating_point() and not bool(one.isfinite().all()):
                raise InputError(f"calibration batch {place}: holds infinite numbers or NaN")


def _check_images(place: int, one: Tensor) -> None:
    if not isinstance(one, Tensor) or one.ndim < 2 or not len(one):
        raise InputError(f"calibration batch {place}: not a tensor [images, channels, …]")
    if one.is_floating_point() and not bool(one.isfinite().all()):
        raise InputError(f"calibration batch {place}: holds infinite numbers or NaN")
