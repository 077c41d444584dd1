"""A causal language model without weights, and where each stored tensor belongs in it.

transformers 5 keeps experts as 3-D parameters but stores them one by one, under other names
(`names.py`); a `StoredPiece` says which part of which parameter a stored tensor is, or which part
of a stored tensor an expert's matrix is (`experts.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.experts import are_turned, one_by_one, own_name, owner_of_own_name
from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.names import StoredNames, tied_names
from ridgeline.checkpoints.ties import settle_ties
from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library
from ridgeline.records.input_file import without_collection


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPiece:
    """A stored tensor, which is all of a parameter or buffer, or a part of it."""

    source: str
    """The tensor's name in the files."""
    target: str
    """The name of the parameter or buffer in the model."""
    expert: int | None = None
    """The place along the parameter's first dimension."""
    rows: tuple[int, int] | None = None
    """The first and last + 1 of the output rows that it fills; None: all."""
    inside: int | None = None
    """The place along the stored tensor's first dimension; None: it is all of that tensor."""
    transposed: bool = False
    """Whether it is stored as the transpose of what the model has."""
    turned: bool = False
    """Whether an expert's matrix is saved alone as [out, in], where the model has [in, out]."""

    @property
    def saved_name(self) -> str:
        """The name of the compressed tensor.

        It is that in the files, with the base model's prefix where only that is left out (GPT-2),
        and an expert's own where the files have all of them in one tensor.
        """
        if self.is_cut:
            assert self.expert is not None
            return own_name(self.target, self.expert)
        return self.target if self.target.endswith(f".{self.source}") else self.source

    def of(self, parameter: Tensor) -> Tensor:
        """The view of the parameter that this piece fills."""
        whole = parameter if self.expert is None else parameter[self.expert]
        return whole if self.rows is None else whole[self.rows[0] : self.rows[1]]

    @property
    def is_cut(self) -> bool:
        """Whether it is one expert of a stored tensor that has all of them."""
        return self.expert is not None and self.inside is not None

    def saved(self, parameter: Tensor) -> Tensor:
        """The view of the parameter that is saved under `saved_name`."""
        return self.of(parameter).mT if self.turned else self.of(parameter)

    def placed(self, parameter: Tensor) -> Tensor:
        """The view of the parameter that has the shape of what the piece is stored as."""
        return self.of(parameter.mT if self.transposed else parameter)


class StoredShapes(Protocol):
    """Which weights a directory has, dense or compressed."""

    @property
    def directory(self) -> Path:
        """The folder that holds them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of them, unpacked."""


class ModelSkeleton:
    """The model on the meta device; blocks get their weights for as long as they are needed.

    Weights are float32, whatever they are stored in, but those that are asked for as stored.

    Raises:
        InputError: config.json and tensors do not fit, or the architecture is not known.
    """

    def __init__(self, checkpoint: CheckpointFiles) -> None:
        self.checkpoint = checkpoint
        self.model = _without_weights(checkpoint)
        settle_ties(self.model, checkpoint)
        self.prefix, self.blocks = _blocks_of(self.model, checkpoint)
        self.pieces = {
            target: one_by_one(owner_of(self.model, target)[0], pieces, len(self.value(target)))
            if self.value(target).ndim == 3
            else pieces
            for target, pieces in stored_pieces(self.model, checkpoint).items()
        }

    def block_prefix(self, block: int) -> str:
        """What the names of all tensors of that block begin with, with its dot."""
        return f"{self.prefix}.{block}."

    def is_outside(self, target: str) -> bool:
        """Whether this parameter belongs to no block."""
        return not target.startswith(f"{self.prefix}.")

    def load(self, targets: list[str], as_stored: Collection[str] = ()) -> None:
        """Give these parameters and buffers their stored values, as float32.

        Args:
            targets: Their names in the model.
            as_stored: Those among them that keep the dtype of the files.
        """
        for target in targets:
            parent, leaf = owner_of(self.model, target)
            current = self.value(target)
            dtype = torch.float32 if current.is_floating_point() else current.dtype
            if target in as_stored:
                dtype = self.checkpoint.dtype(self.pieces[target][0].source)
            values = torch.empty(current.shape, dtype=dtype)
            for piece in self.pieces[target]:
                piece.placed(values).copy_(self.checkpoint.finite(piece.source, piece.inside))
            set_tensor(parent, leaf, values)

    def size(self, piece: StoredPiece) -> int:
        """The numbers that a piece has."""
        return piece.of(self.value(piece.target)).numel()

    def block_targets(self, block: int) -> list[str]:
        """The names of the parameters and buffers of one block."""
        prefix = self.block_prefix(block)
        return [target for target in self.pieces if target.startswith(prefix)]

    def value(self, target: str) -> Tensor:
        """The tensor that a parameter or buffer is now."""
        parent, leaf = owner_of(self.model, target)
        found = getattr(parent, leaf)
        assert isinstance(found, Tensor)
        return found

    def load_block(self, block: int, as_stored: Collection[str] = ()) -> nn.Module:
        """Give one block its weights, all or some of them as `load` does."""
        self.load(self.block_targets(block), as_stored)
        module = self.blocks[block]
        assert isinstance(module, nn.Module)
        return module

    def unload(self, targets: list[str]) -> None:
        """Take the values away again."""
        for target in targets:
            parent, leaf = owner_of(self.model, target)
            set_tensor(parent, leaf, self.value(target).to("meta"))

    def unload_block(self, block: int) -> None:
        """Take the values of one block away again."""
        self.unload(self.block_targets(block))


def set_tensor(parent: nn.Module, leaf: str, values: Tensor) -> None:
    """Set a parameter or buffer of a module."""
    if leaf in parent._parameters:
        parent._parameters[leaf] = nn.Parameter(values, requires_grad=False)
    else:
        parent._buffers[leaf] = values


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a tensor or a module of that name, and its own last part."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def empty_model(
    config: Any,
    *,
    dtype: torch.dtype,
    attention: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """Build a causal language model of transformers with its parameters on the meta device.

    Buffers are computed and not stored, so they are real; for parameters no value is drawn.

    Args:
        config: The model's configuration; a `quantization_config` must not be in it.
        dtype: The dtype of the parameters.
        attention: transformers' name of the implementation; None: its own choice.
        trust_remote_code: As transformers means it.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    chosen = {} if attention is None else {"attn_implementation": attention}
    with no_init_weights(), init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=trust_remote_code, **chosen
        )
    model.tie_weights()  # each registration above made a parameter of its own
    return model


def is_read_packed(model: Any) -> bool:
    """Whether transformers can read this model with linear layers that have no `weight`.

    Some families' `_init_weights` asks every layer for it, also where all was read (Mamba, Falcon,
    StarCoder; transformers 5.23).
    """
    bare = empty_model(model.config, dtype=torch.float32)
    for module in list(bare.modules()):
        if isinstance(module, nn.Linear):
            del module._parameters["weight"]
    try:
        bare.initialize_weights()
    except AttributeError:
        return False
    return True


def read_generation_config(model: Any, directory: Path) -> None:
    """Give a model of transformers what its folder says of generation, where it says something."""
    from transformers import GenerationConfig

    if (directory / "generation_config.json").exists():
        with read_by_library(directory, what="generation_config.json"):
            model.generation_config = GenerationConfig.from_pretrained(directory)


@without_collection()  # what libraries make as they are loaded stays
def _without_weights(checkpoint: CheckpointFiles) -> Any:
    from transformers import AutoConfig

    where = checkpoint.directory
    if checkpoint.config.get("quantization_config"):
        raise InputError(f"{where}: it is compressed already; start from the uncompressed model")
    with read_by_library(where, what="config.json makes no causal language model"):
        config = AutoConfig.from_pretrained(where)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{where}: models of the family {config.model_type} have an encoder; only causal "
            "language models are compressed block by block"
        )
    with read_by_library(where, what="config.json makes no causal language model"):
        config._experts_implementation = "eager"  # a matmul per expert, which can be watched
        model = empty_model(config, dtype=torch.float32)
    return model.eval().requires_grad_(requires_grad=False)


def _blocks_of(model: nn.Module, checkpoint: CheckpointFiles) -> tuple[str, nn.ModuleList]:
    """The longest list of modules that lies in no other such list."""
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module)
    }
    outermost = [
        name
        for name in lists
        if not any(name.startswith(f"{other}.") for other in lists if other != name)
    ]
    if not outermost:
        raise InputError(
            f"{checkpoint.directory}: {type(model).__name__} has no list of blocks, so it cannot "
            "be compressed block by block"
        )
    longest = max(outermost, key=lambda name: len(lists[name]))
    return longest, lists[longest]


def stored_pieces(model: Any, checkpoint: StoredShapes) -> dict[str, list[StoredPiece]]:
    """For each parameter and stored buffer, what fills it; a tied one stands under one name.

    Raises:
        InputError: The files do not fit the model, or how they store a tensor is not known.
    """
    names = StoredNames(model)
    found: dict[str, list[StoredPiece]] = defaultdict(list)
    for source in checkpoint.names:
        piece = _piece(source, names, model, checkpoint)
        if piece is not None:
            found[piece.target].append(piece)
    tied = tied_names(model)
    for target, empty in names.wanted.items():
        if target in tied and target not in found:
            continue
        if target not in found:
            raise InputError(f"{checkpoint.directory}: {target} is missing from its files")
        found[target] = _laid_out(found[target], checkpoint)
        _check_shape(target, tuple(empty.shape), found[target], checkpoint)
    for target in tied:
        found.pop(target, None)
    return dict(found)


def _piece(source: str, names: StoredNames, model: Any, checkpoint: StoredShapes) -> Any:
    """Where a stored tensor belongs; None: transformers ignores it too."""
    from transformers.core_model_loading import Concatenate, MergeModulelist

    found = names.target(source)
    if found is None and (own := owner_of_own_name(source, names.wanted)) is not None:
        turned = are_turned(owner_of(model, own[0])[0])
        return StoredPiece(source=source, target=own[0], expert=own[1], transposed=turned)
    if found is None:
        ignored = model._keys_to_ignore_on_load_unexpected or ()
        if any(re.search(pattern, source) for pattern in ignored):
            return None
        raise InputError(
            f"{checkpoint.directory}: {source} is no tensor of the model that config.json describes"
        )
    target, pattern = found
    if pattern is None:
        return StoredPiece(source=source, target=target)
    rule = names.converter_of[pattern]
    kinds = [type(step) for step in rule.operations]
    number = re.search(pattern.replace("*.", r"(\d+)\."), names.renamed(source))
    of_experts = kinds in ([MergeModulelist], [MergeModulelist, Concatenate]) and number
    if not of_experts and (kinds != [Concatenate] or rule.operations[0].dim):
        raise InputError(
            f"{checkpoint.directory}: how {source} is stored is not known here, so this "
            "architecture cannot be read tensor by tensor"
        )
    # The position among the parts of one expert, until `_laid_out` knows how long each is.
    part = rule.source_patterns.index(pattern)
    rows = (part, part) if Concatenate in kinds else None
    expert = int(number.group(1)) if number and of_experts else None
    return StoredPiece(source=source, target=target, expert=expert, rows=rows)


def _laid_out(pieces: list[StoredPiece], checkpoint: StoredShapes) -> list[StoredPiece]:
    """In order, with the rows that each part of an expert fills."""
    placed: list[StoredPiece] = []
    next_row: dict[int | None, int] = defaultdict(int)
    for piece in sorted(pieces, key=lambda piece: (piece.expert or 0, piece.rows or (0, 0))):
        if piece.rows is None:
            placed.append(piece)
            continue
        start = next_row[piece.expert]
        stop = next_row[piece.expert] = start + checkpoint.shape(piece.source)[0]
        placed.append(replace(piece, rows=(start, stop)))
    return placed


def _check_shape(
    target: str, expected: tuple[int, ...], pieces: list[StoredPiece], checkpoint: StoredShapes
) -> None:
    empty = torch.empty(expected, device="meta")
    filled = 0
    for piece in pieces:
        shape = checkpoint.shape(piece.source)
        inside = piece.expert is None or piece.expert < expected[0]
        if not inside or tuple(piece.placed(empty).shape) != shape:
            raise InputError(
                f"{checkpoint.directory}: {piece.source} is {list(shape)}, which does not fit "
                f"{target}, {list(expected)} by config.json"
            )
        filled += piece.of(empty).numel()
    if filled != empty.numel():
        raise InputError(f"{checkpoint.directory}: parts of {target} are missing from its files")
