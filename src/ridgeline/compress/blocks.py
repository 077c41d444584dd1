"""Compresses one block that is in memory.

    1. AWQ and SmoothQuant move scales from inputs into weights (`rescaling.py`).
    2. Stage by stage, in the order in which the block computes: what flows into a stage is gathered
       with everything before it compressed already (GPTQ's "true sequential"); its matrices are
       pruned and rounded.

Weights are float32 here; what is handed on has the dtype of the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import torch
from torch import Tensor

from ridgeline.checkpoints.layers import Matrix
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.inputs import fields_of, inputs_of
from ridgeline.compress.methods import awq, gptq, rtn, smoothquant
from ridgeline.compress.methods.rounded import Rounded, judged
from ridgeline.compress.pruning import weights as pruning
from ridgeline.compress.rescaling import rescale
from ridgeline.compress.streaming.finished import Finished, LayerDone
from ridgeline.compress.streaming.loaded_block import LoadedBlock
from ridgeline.compress.watching.cache import cache_of
from ridgeline.compress.watching.capture import gather
from ridgeline.compress.watching.products import Product
from ridgeline.compress.watching.seen import Seen
from ridgeline.compress.watching.sharing import Group, groups_of, stages_of
from ridgeline.records.scheme import Scheme

METHODS: dict[str, Any] = {"rtn": rtn, "gptq": gptq, "awq": awq, "smoothquant": smoothquant}

UNPACKED = "saved as rounded but unpacked (inputs as they are): GPT-2's layers have no packed form"


def compress_block(block: LoadedBlock) -> Finished:
    """All matrices of a block; the block then computes with the result.

    Raises:
        InputError: A scheme that does not fit a matrix.
    """
    result = Finished()
    if not block.runs:
        for matrix in block.matrices:
            _compress(block, (matrix,), Seen(num_tokens=0), result)
        return result
    notices = rescale(block)
    for stage in stages_of(groups_of(block.matrices, block.runs[0])):
        for products in _passes(stage):
            wanted = {product: (number, _fields(block, product)) for product, number in products}
            seen = gather(block.runs, block.matrices, wanted)
            for number, same in groupby(products, key=lambda pair: pair[1]):
                matrices = [matrix for product, _ in same for matrix in product]
                for bundle in _bundles(block, matrices):
                    _compress(block, bundle, seen[number], result)
    cached = {scheme.kv for found in block.schemes.values() for scheme in found if scheme.kv}
    for form in cached:
        result.cache |= cache_of(block, form)
    result.layers = [_with_notice(layer, notices.get(layer.name)) for layer in result.layers]
    return result


def _passes(stage: tuple[Group, ...]) -> list[list[tuple[Product, int]]]:
    """Products of a stage with the number of their statistics, as many at once as memory allows.

    Hessians that are held together take no more than the stage's weights, or are a single one.
    """
    numbered = [
        (product, number)
        for group in stage
        for product, number in zip(group.products, group.statistics, strict=True)
        if not all(matrix.kept for matrix in product)
    ]
    limit = sum(matrix.weight.numel() for group in stage for matrix in group.matrices)
    passes: list[list[tuple[Product, int]]] = []
    size = limit
    for _, same in groupby(sorted(numbered, key=lambda pair: pair[1]), key=lambda pair: pair[1]):
        found = list(same)
        more = found[0][0][0].weight.shape[1] ** 2
        if size + more > limit:
            passes.append([])
            size = 0
        size += more
        passes[-1] += found
    return passes


def _fields(block: LoadedBlock, product: Product) -> frozenset[str]:
    """What the schemes of a product look at; a sample of rows tells the error of any."""
    fields: set[str] = set()
    for matrix in product:
        for scheme in block.schemes[matrix.name]:
            if scheme.weights is not None:
                fields |= METHODS[scheme.method].NEEDS
            if scheme.activations is not None:
                fields |= fields_of(scheme.activations)
            if scheme.pruning is not None:
                fields |= pruning.NEEDS[scheme.pruning.criterion]
    return frozenset(fields or {"rows"})


def _bundles(block: LoadedBlock, matrices: list[Matrix]) -> Iterator[tuple[Matrix, ...]]:
    """Matrices of one input; together where GPTQ can walk through their stacked rows at once."""
    rounded = [matrix for matrix in matrices if not matrix.kept]
    for (schemes, _), found in groupby(
        rounded, key=lambda matrix: (block.schemes[matrix.name], block.dtypes[matrix.name])
    ):
        bundle = tuple(found)
        form = next((scheme.weights for scheme in schemes if scheme.weights), None)
        walked = any(scheme.method == "gptq" for scheme in schemes)
        if walked and form is not None and form.share != "tensor" and form.kind != "nvfp4":
            yield bundle
        else:
            yield from ((matrix,) for matrix in bundle)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A weight on its way from pruning to rounding."""

    weight: Tensor
    mask: Tensor | None = None
    error: float = 0.0
    notices: tuple[str, ...] = ()


def _compress(block: LoadedBlock, bundle: tuple[Matrix, ...], seen: Seen, result: Finished) -> None:
    """Matrices with the same schemes and inputs: prune each, then round all of them."""
    bundle = tuple(matrix for matrix in bundle if not matrix.kept)
    if not bundle:
        return
    schemes = block.schemes[bundle[0].name]
    parts = [_pruned(block, matrix, schemes, seen) for matrix in bundle]
    scheme = next((one for one in schemes if one.weights is not None), None)
    if scheme is None:
        for matrix, part in zip(bundle, parts, strict=True):
            matrix.weight.copy_(part.weight)
            result.layers.append(_done(matrix, schemes, part.error, part.notices))
        return
    rounded = _rounded(scheme, parts, seen, bundle[0].name)
    for matrix, part, one in zip(bundle, parts, rounded, strict=True):
        notices = (*part.notices, *one.notices)
        if matrix.can_be_saved_packed:
            result.quantised[matrix.name] = (one.quantised, inputs_of(scheme.activations, seen))
        else:
            notices = (*notices, UNPACKED)
        matrix.weight.copy_(one.quantised.dequantised())
        result.layers.append(_done(matrix, schemes, one.error, notices))


def _pruned(block: LoadedBlock, matrix: Matrix, schemes: tuple[Scheme, ...], seen: Seen) -> _Part:
    part = _Part(weight=matrix.weight.to(block.dtypes[matrix.name], copy=True))
    for scheme in schemes:
        if scheme.pruning is None:
            continue
        importance = block.importance.get(matrix.name)
        found = pruning.prune(part.weight, scheme.pruning, seen, importance)
        part = _Part(
            weight=found.weight,
            mask=found.mask if part.mask is None else found.mask & part.mask,
            error=found.error,
            notices=(*part.notices, *found.notices),
        )
    return part


def _rounded(scheme: Scheme, parts: list[_Part], seen: Seen, name: str) -> list[Rounded]:
    """Rounded as one matrix of all their rows, then taken apart again."""
    masks = [part.mask for part in parts if part.mask is not None]
    weight = torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight
    whole: Rounded = METHODS[scheme.method].quantise(
        weight, scheme, seen, torch.cat(masks) if masks else None, name
    )
    if len(parts) == 1:
        return [whole]
    found, start = [], 0
    for part in parts:
        rows = slice(start, start + len(part.weight))
        own = _rows(whole.quantised, rows)
        found.append(judged(part.weight, own, seen, whole.notices))
        start = rows.stop
    return found


def _rows(of: Quantised, rows: slice) -> Quantised:
    return Quantised(
        format=of.format,
        levels=of.levels[rows],
        scales=of.scales[rows],
        zeros=None if of.zeros is None else of.zeros[rows],
    )


def _done(
    matrix: Matrix, schemes: tuple[Scheme, ...], error: float, notices: tuple[str, ...]
) -> LayerDone:
    names = " + ".join(scheme.name for scheme in schemes)
    return LayerDone(name=matrix.name, scheme=names, error=error, notices=notices)


def _with_notice(layer: LayerDone, notice: str | None) -> LayerDone:
    if notice is None:
        return layer
    return msgspec.structs.replace(layer, notices=(notice, *layer.notices))
