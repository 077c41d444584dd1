"""A checkpoint read layer by layer, each packed or quantised before the next is read.

transformers reads the whole model first, and its tensors are views of the mapped files: as long as
one norm still looks into a file, all of it stays mapped, and resident beside what was packed. Here
nothing looks into a file once it has been copied out, so that memory holds what the model keeps and
at most one layer as it was stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ridgeline.checkpoints.files import CheckpointFiles
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
from ridgeline.hardware.freed_memory import LARGE_BYTES, return_freed_memory
from ridgeline.models.folder import read_by_library
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.weights.experts import are_layers, open_experts, opened_pieces
from ridgeline.serve.weights.shrink import is_shrunk, shrink


def read_by_layer(
    config: EngineConfig, about: Any, dtype: torch.dtype, device: torch.device
) -> nn.Module | None:
    """The model with its linear layers as `shrink` makes them.

    Args:
        config: Of the engine.
        about: The model's configuration, as transformers reads it.
        dtype: The dtype of what is not quantised.
        device: Where everything goes.

    Returns:
        None where only transformers itself knows how to read the model: a hub id, other files than
        safetensors, code that comes with it, tensors that it keeps in float32 or stores in a way
        that is not known here.
    """
    directory = Path(config.model)
    if config.trust_remote_code or not directory.is_dir():
        return None
    with read_by_library(directory):
        model = empty_model(about, dtype=dtype, attention="eager")
    if model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict:
        return None
    try:
        checkpoint = CheckpointFiles(directory)
        settle_ties(model, checkpoint)
        pieces = stored_pieces(model, checkpoint)
    except InputError:  # transformers reads it, or says what is wrong
        return None
    if are_layers(config, dtype, device):
        pieces = opened_pieces(model, pieces, open_experts(model))
    filling = _Filling(model, checkpoint, pieces, device)
    tied = {name: other for name, other in first_names(model).items() if name != other}
    linear = {name for name, module in model.named_modules() if is_shrunk(module)}
    for target in pieces:
        if target.rpartition(".")[0] not in linear:
            filling.fill(target)
    for name, other in tied.items():
        parent, leaf = owner_of(model, name)
        parent._parameters[leaf] = model.get_parameter(other)
    shrink(model, config, fill=filling.fill_layer)
    for target in list(filling.left):
        filling.fill(target)
    return_freed_memory(checkpoint.read_bytes)
    read_generation_config(model, directory)
    return model.to(device)  # type: ignore[no-any-return]


class _Filling:
    """Gives parameters of a model their stored values, each once."""

    def __init__(
        self,
        model: nn.Module,
        checkpoint: CheckpointFiles,
        pieces: dict[str, list[StoredPiece]],
        device: torch.device,
    ) -> None:
        self._model = model
        self._checkpoint = checkpoint
        self._device = device
        self._returned = 0
        """The bytes that were read when freed memory was given back."""
        self.left = dict(pieces)
        """What has not been read yet."""

    def fill(self, target: str) -> None:
        """Read one parameter or buffer."""
        parent, leaf = owner_of(self._model, target)
        empty: torch.Tensor = getattr(parent, leaf)
        pieces = self.left.pop(target)
        values = torch.empty(empty.shape, dtype=empty.dtype)
        for piece in pieces:
            piece.placed(values).copy_(self._checkpoint.read(piece.source, piece.inside))
        set_tensor(parent, leaf, values.to(self._device))

    def fill_layer(self, name: str) -> None:
        """Read the parameters of one layer, as far as they are not read yet."""
        for leaf in ("weight", "bias"):
            if f"{name}.{leaf}" in self.left:
                self.fill(f"{name}.{leaf}")
        if self._checkpoint.read_bytes - self._returned >= LARGE_BYTES:
            return_freed_memory(self._checkpoint.read_bytes - self._returned)
            self._returned = self._checkpoint.read_bytes
