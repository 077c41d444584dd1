"""A rank's share of a checkpoint, read slice by slice: no rank ever holds more than its share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import place_module
from ridgeline.checkpoints.names import first_names
from ridgeline.checkpoints.skeleton import (
    StoredPiece,
    empty_model,
    owner_of,
    read_generation_config,
    set_tensor,
    stored_pieces,
)
from ridgeline.checkpoints.ties import settle_ties
from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library
from ridgeline.serve.tensor_parallel.group import RankLine
from ridgeline.serve.tensor_parallel.layers import (
    GatheredLinear,
    SplitEmbedding,
    SummedLinear,
    add_up_outputs,
    keep_own_experts,
)
from ridgeline.serve.tensor_parallel.plan import (
    RankPlace,
    TensorCut,
    TensorPlan,
    check_heads,
    plan_of,
)
from ridgeline.serve.weights.row_peaks import note_row_peaks


def check_cuts(
    config: Any,
    directory: Path,
    size: int,
    *,
    trust_remote_code: bool,
    whole_experts: bool = False,
) -> None:
    """Find out, without reading a weight, whether a model can be cut over so many ranks.

    Raises:
        InputError: The ranks do not divide it, or the family has no plan.
    """
    check_heads(config, size)
    model = _without_weights(config, directory, torch.float32, trust_remote_code=trust_remote_code)
    plan = plan_of(model, whole_experts=whole_experts)
    for name, parameter in model.named_parameters():
        cut = plan.cut(name, parameter.ndim)
        if cut is not None:
            cut.per_rank(parameter.shape[cut.dim], size, name)


def load_share(
    config: Any,
    directory: Path,
    dtype: torch.dtype,
    group: RankLine,
    *,
    trust_remote_code: bool = False,
    whole_experts: bool = False,
    weights: bool = True,
    scaled_by_row: bool = False,
) -> nn.Module:
    """One rank's share of a model, which answers as the whole model does once all ranks compute.

    Args:
        config: The model's, as transformers reads it.
        directory: The checkpoint.
        dtype: The dtype of the parameters.
        group: The ranks.
        trust_remote_code: As transformers means it.
        whole_experts: Deal a mixture's experts out whole.
        weights: Read them; without, parameters have the share's shapes on the meta device.
        scaled_by_row: Note the row peaks of shares of the inputs: they are to be rounded by them.

    Raises:
        InputError: What `check_cuts` would have said, or tensors do not fit.
    """
    model = _without_weights(config, directory, dtype, trust_remote_code=trust_remote_code)
    plan = plan_of(model, whole_experts=whole_experts)
    first = first_names(model)
    words = words_of(model, plan)
    if weights:
        checkpoint = CheckpointFiles(directory)
        noted = {}
        for target, pieces in stored_pieces(model, checkpoint).items():
            share = share_of(model, target, pieces, checkpoint, plan, group.place)
            if scaled_by_row:
                noted[target] = peaks_of(model, target, pieces, checkpoint, plan, group.place)
            set_tensor(*owner_of(model, target), share)
        note_peaks(model, noted)
    else:
        cut_parameters(model, plan, group)
    for name, other in first.items():
        if name != other:  # tied: one tensor under two names
            parent, leaf = owner_of(model, name)
            parent._parameters[leaf] = model.get_parameter(other)
    place_shares(model, plan, group, words)
    read_generation_config(model, directory)
    if not weights:
        return model  # type: ignore[no-any-return]
    check_all_read(model)
    return model.to(group.device)  # type: ignore[no-any-return]


def _without_weights(
    config: Any, directory: Path, dtype: torch.dtype, *, trust_remote_code: bool
) -> Any:
    with read_by_library(directory, what="config.json makes no causal language model"):
        model = empty_model(
            config, dtype=dtype, attention="eager", trust_remote_code=trust_remote_code
        )
    settle_ties(model, CheckpointFiles(directory))
    return model


def words_of(model: nn.Module, plan: TensorPlan) -> dict[str, int]:
    """The outputs of modules that are cut along what they answer with, maybe unevenly."""
    return {
        name: len(module.weight)  # type: ignore[arg-type]
        for name, module in model.named_modules()
        if plan.style(name) in ("embedding_rowwise", "colwise_gather_output")
    }


def cut_parameters(model: nn.Module, plan: TensorPlan, group: RankLine) -> None:
    """Give a model's parameters the shapes of this rank's share, without values."""
    for name, parameter in list(model.named_parameters()):
        cut = plan.cut(name, parameter.ndim)
        if cut is not None:
            shape = _share_shape(parameter, cut, group.place, name)
            set_tensor(*owner_of(model, name), parameter.new_empty(shape, device="meta"))


def _share_shape(whole: Tensor, cut: TensorCut, place: RankPlace, name: str) -> list[int]:
    shape = list(whole.shape)
    shape[cut.dim] = cut.parts * cut.per_rank(shape[cut.dim], place.size, name)
    return shape


def share_of(
    model: nn.Module,
    target: str,
    pieces: list[StoredPiece],
    checkpoint: CheckpointFiles,
    plan: TensorPlan | None,
    place: RankPlace,
) -> Tensor:
    """What this rank has of a parameter or buffer; without a plan all of it."""
    parent, leaf = owner_of(model, target)
    whole: Tensor = getattr(parent, leaf)
    cut = None if plan is None else plan.cut(target, whole.ndim)
    shape = list(whole.shape) if cut is None else _share_shape(whole, cut, place, target)
    values = torch.zeros(shape, dtype=whole.dtype)
    for piece in pieces:
        if piece.expert is not None and cut is not None and cut.dim == -whole.ndim:
            mine = piece.expert - place.rank * len(values)
            if 0 <= mine < len(values):
                rows = slice(None) if piece.rows is None else slice(*piece.rows)
                values[mine][rows].copy_(checkpoint.read(piece.source))
            continue
        into = values if piece.expert is None else values[piece.expert]
        if piece.rows is None:
            _copy(piece.source, into, checkpoint, cut, place)
            continue
        first, last = piece.rows
        if cut is not None and cut.dim == -2:  # this piece is one of the parts, dealt out by itself
            first, last = first // place.size, last // place.size
            _copy(piece.source, into[first:last], checkpoint, TensorCut(-2), place)
        else:
            _copy(piece.source, into[first:last], checkpoint, cut, place)
    return values


def _copy(
    source: str, into: Tensor, checkpoint: CheckpointFiles, cut: TensorCut | None, place: RankPlace
) -> None:
    """Fill a tensor with this rank's ranges of a stored one; what is left stays zero."""
    if cut is None:
        into.copy_(checkpoint.read(source))
        return
    shape = checkpoint.shape(source)
    dim = len(shape) + cut.dim
    ranges = cut.ranges(shape[dim], place.size, place.rank, source)
    at = 0
    for first, last in ranges:
        into.narrow(dim, at, last - first).copy_(checkpoint.part(source, dim, first, last))
        at += last - first


def peaks_of(
    model: nn.Module,
    target: str,
    pieces: list[StoredPiece],
    checkpoint: CheckpointFiles,
    plan: TensorPlan | None,
    place: RankPlace,
) -> Tensor | None:
    """The row peaks [..., outputs] of a weight of which ranks have some inputs; others: None.

    They are read, and not asked of the other ranks, because one whose share is kept packed does
    not have them any more.
    """
    owner, leaf = owner_of(model, target)
    num_dims = getattr(owner, leaf).ndim
    cut = None if plan is None else plan.cut(target, num_dims)
    if cut is None or cut.dim != -1 or num_dims < 2 or getattr(owner, "is_transposed", False):
        return None
    found: Tensor | None = None
    for rank in range(place.size):
        share = share_of(model, target, pieces, checkpoint, plan, RankPlace(rank, place.size))
        peaks = share.abs().amax(-1)
        found = peaks if found is None else torch.maximum(found, peaks)
    return found


def note_peaks(model: nn.Module, found: dict[str, Tensor | None]) -> None:
    """Note row peaks by the names of their weights."""
    for target, peaks in found.items():
        if peaks is not None:
            note_row_peaks(*owner_of(model, target), peaks)


def place_shares(
    model: nn.Module, plan: TensorPlan, group: RankLine, words: dict[str, int]
) -> None:
    """Put around each share what makes it answer as the whole."""
    for name, module in list(model.named_modules()):
        style = plan.style(name)
        if plan.sums_experts(name):
            if plan.whole_experts:
                keep_own_experts(module, group)
            add_up_outputs(module, group)
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        else:
            # Only gradients care for the padding, which may lie beyond this rank's words.
            module.num_embeddings, module.padding_idx = len(module.weight), None
        if style == "embedding_rowwise":
            place_module(model, name, SplitEmbedding(module, group, len(module.weight)))
        elif style == "colwise_gather_output":
            place_module(model, name, GatheredLinear(module, group, words[name]))
        elif style in ("rowwise", "rowwise_split_input"):
            if group.rank and isinstance(module, nn.Linear):
                module.bias = None
            takes_all = style == "rowwise_split_input"
            place_module(model, name, SummedLinear(module, group, takes_all=takes_all))


def check_all_read(model: nn.Module) -> None:
    """Raise `InputError` for a parameter that the checkpoint did not have."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise InputError(f"{name} is missing from the files of the checkpoint")
