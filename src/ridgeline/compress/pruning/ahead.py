"""What prunings want to know of all layers before the first one is pruned.

Blocks are compressed one at a time, and two things cannot be told from one block: gradients (the
model must fit into memory with them), and one share over all layers together. For that the k-th
smallest score of all weights is found exactly without holding them at once. The bits of a float32
that is not negative rank as its value does, so two sweeps of counting, first by the upper 16 bits
and then by the lower ones, end at one number; a third counts what each layer loses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import Matrix, matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.pruning import weights
from ridgeline.errors import InputError
from ridgeline.models.folder import read_whole
from ridgeline.records.scheme import Scheme

Layers = Callable[[], Iterable[tuple[str, Tensor]]]
"""Name and scores of each layer, one after another, as often as it is called."""


def shares_by_layer(layers: Layers, share: float) -> dict[str, float]:
    """The share of each layer's weights that are among the lowest `share` of all.

    Of weights that tie with the last one to go, those of the first layers go.

    Raises:
        InputError: A layer would lose every weight.
    """
    total = sum(scores.numel() for _, scores in layers())
    removed = round(share * total)
    if not removed:
        return {name: 0.0 for name, _ in layers()}
    upper, before = _bucket(layers, removed, lambda bits: bits >> 16)
    lower, _ = _bucket(layers, removed - before, lambda bits: bits[bits >> 16 == upper] & 0xFFFF)
    return _shares(layers, removed, (upper << 16) | lower)


def _shares(layers: Layers, removed: int, threshold: int) -> dict[str, float]:
    counts = {}
    for name, scores in layers():
        bits = _bits(scores)
        below, equal = int((bits < threshold).sum()), int((bits == threshold).sum())
        counts[name] = (below, equal, scores.numel())
    ties = removed - sum(below for below, _, _ in counts.values())
    found = {}
    for name, (below, equal, size) in counts.items():
        taken = min(ties, equal)
        ties -= taken
        if below + taken == size:
            raise InputError(
                f"{name} would lose every weight under one share over all layers: prune fewer, or"
                " each layer by itself"
            )
        found[name] = (below + taken) / size
    return found


def _bucket(layers: Layers, rank: int, digit: Callable[[Tensor], Tensor]) -> tuple[int, int]:
    """The value of a 16-bit digit that the element of this rank has, and how many have less."""
    counts = torch.zeros(1 << 16, dtype=torch.int64)
    for _, scores in layers():
        counts += torch.bincount(digit(_bits(scores)), minlength=1 << 16).cpu()
    reached = counts.cumsum(0)
    found = int(torch.searchsorted(reached, rank))
    return found, int(reached[found] - counts[found])


def _bits(scores: Tensor) -> Tensor:
    return scores.detach().float().contiguous().view(torch.int32).reshape(-1)


_SEQUENCES = 8
"""Sequences that go through a whole model at once."""

GRADIENTS_IN = "float32"
"""The arithmetic of the model that gradients are taken through (`in_memory`), in words."""
Importance = dict[str, Tensor]
"""[out, in] float32 by the name of a matrix."""


def importance_of(model: Path, schemes: Iterable[Scheme], tokens: Tensor | None) -> Importance:
    """By gradients, where a scheme wants it; else empty.

    Raises:
        InputError: There is no calibration text, or experts lie in one tensor.
    """
    if not any(one.pruning is not None and one.pruning.criterion == "taylor" for one in schemes):
        return {}
    if tokens is None:
        raise InputError("taylor takes gradients over calibration text; give --calibration")
    skeleton = ModelSkeleton(CheckpointFiles(model))
    matrices = {matrix.piece.target: matrix for matrix in _matrices(skeleton)}
    if any(matrix.piece.expert is not None for matrix in matrices.values()):
        raise InputError(
            f"{model}: taylor is for models without experts, whose weights lie in one tensor;"
            " choose wanda, sparsegpt or magnitude"
        )
    whole = in_memory(model)
    for target in matrices:
        whole.get_parameter(target).requires_grad_()
    found = weights.importance_of(whole, tokens.split(_SEQUENCES), mean_loss, matrices)
    return {
        matrix.name: found[target].T if matrix.transposed else found[target]
        for target, matrix in matrices.items()
    }


def shares_in_layers(
    model: Path, schemes: tuple[Scheme, ...], importance: Importance
) -> dict[str, tuple[Scheme, ...]]:
    """The schemes of each layer, with its own part of a share that holds over all of them.

    Empty where no scheme has such a share.

    Raises:
        InputError: The criterion's scores cannot be compared between layers.
    """
    wanted = [one for one in schemes if one.pruning is not None and one.pruning.scope == "global"]
    if not wanted:
        return {}
    if len(wanted) > 1:
        raise InputError("one scheme at a time can prune all layers together; give `global` once")
    (scheme,) = wanted
    assert scheme.pruning is not None
    if scheme.pruning.criterion not in {"magnitude", "taylor"}:
        raise InputError(
            f"scheme {scheme.name!r}: {scheme.pruning.criterion} compares weights within a layer"
            " only; leave `global` out, or choose magnitude or taylor"
        )
    skeleton = ModelSkeleton(CheckpointFiles(model))
    matrices = [matrix for matrix in _matrices(skeleton) if not _ignores(scheme, matrix.name)]

    def scores() -> Iterator[tuple[str, Tensor]]:
        for matrix in matrices:
            if scheme.pruning is not None and scheme.pruning.criterion == "taylor":
                yield matrix.name, importance[matrix.name]
            else:
                yield (
                    matrix.name,
                    weights.magnitudes_of(skeleton.checkpoint.read(matrix.piece.source)),
                )

    shares = shares_by_layer(scores, scheme.pruning.share)
    found = {}
    for name, share in shares.items():
        own = msgspec.structs.replace(
            scheme, pruning=msgspec.structs.replace(scheme.pruning, share=share, scope="layer")
        )
        found[name] = tuple(own if one is scheme else one for one in schemes)
    return found


def in_memory(model: Path) -> nn.Module:
    """The whole model in float32, frozen."""
    import torch
    from transformers import AutoModelForCausalLM

    whole: nn.Module = read_whole(AutoModelForCausalLM, model, dtype=torch.float32)
    return whole.eval().requires_grad_(requires_grad=False)


def mean_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross entropy of the next token; tokens [sequences, length]."""
    logits = model(tokens, use_cache=False).logits[:, :-1].float()
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _matrices(skeleton: ModelSkeleton) -> Iterator[Matrix]:
    for number in range(len(skeleton.blocks)):
        for matrix in matrices_of(skeleton, number):
            if not matrix.kept:
                yield matrix


def _ignores(scheme: Scheme, layer: str) -> bool:
    return any(layer == name or layer.endswith(f".{name}") for name in scheme.ignore)
