"""Compresses one block that is in memory.

    1. AWQ and SmoothQuant move scales from activations into weights; what can take a scale over is
       found by `watching/sharing.py`, and the block's output stays as it was.
    2. Stage by stage, in the order in which the block computes: what flows into a stage is gathered
       with everything before it compressed already (GPTQ's "true sequential"); its matrices are
       pruned and quantised.

Weights are float32 here, or bfloat16 where the block multiplies that; what is handed on has the
dtype of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import Matrix
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.activations import activation_scales, fields_of
from ridgeline.compress.finished import Finished, LayerDone
from ridgeline.compress.heap import large_blocks_used_again
from ridgeline.compress.methods import aqlm, awq, gptq, rtn, smoothquant
from ridgeline.compress.methods.rtn import Rounded, judged
from ridgeline.compress.pruning import weights as pruning
from ridgeline.compress.watching.capture import Matmul, cache_of, gather
from ridgeline.compress.watching.halfway import ForwardPass
from ridgeline.compress.watching.sharing import SharedInput, groups_of, stages_of, with_absorbers
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.records.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBlock:
    """A block and what is to become of it."""

    module: nn.Module
    matrices: tuple[Matrix, ...]
    dtypes: Mapping[str, torch.dtype]
    """The dtype that each matrix is stored in."""
    schemes: Mapping[str, tuple[Scheme, ...]]
    """The schemes of each matrix, in order; () leaves it as it is."""
    runs: tuple[ForwardPass, ...] = ()
    """Each puts a chunk of calibration through the block; none: nothing is looked at."""
    head_dim: int | None = None
    """The width of one attention head; None: not known."""
    importance: Mapping[str, Tensor] = field(default_factory=dict)
    """[out, in] by matrix, where a pruning wants it (Taylor)."""


RESCALING: dict[str, Any] = {"awq": awq, "smoothquant": smoothquant}
"""Methods that rescale first: `scale(weights, seen, scheme, channels)`."""

NOTICE = "nothing before it can take scales over: rounded without"


def multiplied_as_stored(
    matrices: Iterable[Matrix], schemes_of: Callable[[str], tuple[Scheme, ...]]
) -> frozenset[str]:
    """The names of parameters that a bfloat16 block can hold in bfloat16, as it multiplies them.

    They take half the memory then, and are not rounded anew for each chunk of calibration. Where a
    scheme rescales there are none: scales are multiplied into weights one after another there, and
    the result is rounded once.
    """
    found = tuple(matrices)
    schemes = [scheme for matrix in found for scheme in schemes_of(matrix.name)]
    if any(scheme.weights and scheme.method in RESCALING for scheme in schemes):
        return frozenset()
    return frozenset(matrix.piece.target for matrix in found if not matrix.kept)


def rescale(block: LoadedBlock) -> dict[str, str]:
    """Search and move scales in every group that a scheme wants it for.

    Returns:
        By matrix, a notice where it was not possible.
    """
    if all(_scheme(block, (matrix,)) is None for matrix in block.matrices):
        return {}
    with large_blocks_used_again():
        groups = with_absorbers(block.module, block.matrices, block.runs[0], block.head_dim)
    notices: dict[str, str] = {}
    wanted: dict[Matmul, tuple[int, frozenset[str]]] = {}
    for group in groups:
        for matmul, number in zip(group.matmuls, group.statistics, strict=True):
            scheme = _scheme(block, matmul)
            if scheme is None:
                continue
            if group.absorber is None:
                notices |= {matrix.name: NOTICE for matrix in matmul}
            else:
                wanted[matmul] = (number, RESCALING[scheme.method].NEEDS)
    with large_blocks_used_again():
        seen = gather(block.runs, block.matrices, wanted) if wanted else {}
    with large_blocks_used_again():
        for group in groups:
            _rescale(block, group, {matmul: seen[number] for matmul, (number, _) in wanted.items()})
    return notices


def _scheme(block: LoadedBlock, matmul: Matmul) -> Scheme | None:
    """The first one that rescales, of the matrices of a matmul."""
    for matrix in matmul:
        for scheme in block.schemes[matrix.name]:
            if scheme.weights and scheme.method in RESCALING:
                return scheme
    return None


def _rescale(
    block: LoadedBlock, group: SharedInput, seen: dict[Matmul, CalibrationStatistics]
) -> None:
    """Divide what is before a group, multiply its weights."""
    pairs = [
        (matrix, seen[matmul])
        for matmul in group.matmuls
        if matmul in seen and seen[matmul].num_tokens
        for matrix in matmul
        if not matrix.kept and block.schemes[matrix.name]
    ]
    scheme = _scheme(block, tuple(matrix for matrix, _ in pairs))
    if group.absorber is None or scheme is None:
        return
    weights = [matrix.weight.to(block.dtypes[matrix.name]) for matrix, _ in pairs]
    scale = RESCALING[scheme.method].scale(
        weights, [one for _, one in pairs], scheme, group.absorber.channels
    )
    group.absorber.divide(scale)
    for matrix in group.matrices:
        matrix.weight.mul_(scale)


METHODS: dict[str, Any] = {
    "rtn": rtn,
    "gptq": gptq,
    "awq": awq,
    "smoothquant": smoothquant,
    "aqlm": aqlm,
}

UNPACKED = "saved as rounded but unpacked (inputs as they are): GPT-2's layers have no packed form"

UNSEEN = "left as it is: the block computes with its weight by other ways than a layer's"
"""What is said of Mamba's step sizes, which a reader with packed layers could not compute."""


def compress_block(block: LoadedBlock) -> Finished:
    """All matrices of a block; the block then computes with the result.

    Raises:
        InputError: A scheme that does not fit a matrix.
    """
    result = Finished()
    if not block.runs:
        for matrix in block.matrices:
            _compress(block, (matrix,), CalibrationStatistics(num_tokens=0), result)
        return result
    notices = rescale(block)
    with large_blocks_used_again():
        groups = groups_of(block.matrices, block.runs[0])
    for stage in stages_of(groups):
        for matmuls in _passes(stage):
            wanted = {matmul: (number, _fields(block, matmul)) for matmul, number in matmuls}
            weights = frozenset(matmul[0].slice_pointer for matmul in wanted)
            _forget_beyond(block.runs, weights)
            with large_blocks_used_again():
                seen = gather([run.go_on for run in block.runs], block.matrices, wanted)
            for number, same in groupby(matmuls, key=lambda pair: pair[1]):
                matrices = [matrix for matmul, _ in same for matrix in matmul]
                for bundle in _bundles(block, matrices):
                    _compress(block, bundle, seen[number], result)
            _forget_beyond(block.runs, weights)  # of experts that were met before the last stop
    cached = {scheme.kv for found in block.schemes.values() for scheme in found if scheme.kv}
    for form in cached:
        result.cache |= cache_of(block.runs, block.matrices, form)
    result.layers = [_with_notice(layer, notices.get(layer.name)) for layer in result.layers]
    return result


def _forget_beyond(runs: tuple[ForwardPass, ...], weights: frozenset[int]) -> None:
    for run in runs:
        run.forget_beyond(weights)


def _passes(stage: tuple[SharedInput, ...]) -> list[list[tuple[Matmul, int]]]:
    """Products of a stage with the number of their statistics, as many at once as memory allows.

    Hessians that are held together take no more than the stage's weights, or are a single one.
    """
    numbered = [
        (matmul, number)
        for group in stage
        for matmul, number in zip(group.matmuls, group.statistics, strict=True)
        if not all(matrix.kept for matrix in matmul)
    ]
    limit = sum(matrix.weight.numel() for group in stage for matrix in group.matrices)
    passes: list[list[tuple[Matmul, int]]] = []
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


def _fields(block: LoadedBlock, matmul: Matmul) -> frozenset[str]:
    """What the schemes of a matmul look at; a sample of rows tells the error of any."""
    fields: set[str] = set()
    for matrix in matmul:
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
    """A weight on its way from pruning to quantisation."""

    weight: Tensor
    mask: Tensor | None = None
    error: float = 0.0
    notices: tuple[str, ...] = ()


def _compress(
    block: LoadedBlock, bundle: tuple[Matrix, ...], seen: CalibrationStatistics, result: Finished
) -> None:
    """Matrices with the same schemes and inputs: prune each, then round all of them."""
    bundle = tuple(matrix for matrix in bundle if not matrix.kept)
    if not bundle:
        return
    if block.runs and not seen.num_tokens and not any("expert" in one.name for one in bundle):
        result.layers += [_done(matrix, (), 0.0, (UNSEEN,)) for matrix in bundle]
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
            result.quantised[matrix.name] = (
                one.quantised,
                activation_scales(scheme.activations, seen),
            )
        else:
            notices = (*notices, UNPACKED)
        matrix.weight.copy_(one.quantised.dequantised())
        result.layers.append(_done(matrix, schemes, one.error, notices))


def _pruned(
    block: LoadedBlock, matrix: Matrix, schemes: tuple[Scheme, ...], seen: CalibrationStatistics
) -> _Part:
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


def _rounded(
    scheme: Scheme, parts: list[_Part], seen: CalibrationStatistics, name: str
) -> list[Rounded]:
    """Several parts go through GPTQ's walk as one matrix of all their rows (`_bundles`)."""
    if len(parts) == 1:
        (part,) = parts
        return [METHODS[scheme.method].quantise(part.weight, scheme, seen, part.mask, name)]
    masks = [part.mask for part in parts if part.mask is not None]
    weight = torch.cat([part.weight for part in parts])
    whole, notices = gptq.rounded(weight, scheme, seen, torch.cat(masks) if masks else None, name)
    found, start = [], 0
    for part in parts:
        rows = slice(start, start + len(part.weight))
        found.append(judged(part.weight, _rows(whole, rows), seen, notices))
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
