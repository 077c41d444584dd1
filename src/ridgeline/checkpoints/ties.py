"""Weights that config.json ties, where the files say otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ridgeline.checkpoints.files import StoredTensors
from ridgeline.checkpoints.names import StoredNames, first_names


def settle_ties(model: Any, checkpoint: StoredTensors) -> None:
    """Untie weights that config.json ties and for which the files have unlike values.

    transformers believes the files there, too (adapters that trained the head alone leave such).
    """
    tied = {name: other for name, other in first_names(model).items() if name != other}
    if not any(source.endswith(tuple(tied)) for source in checkpoint.names):
        return
    names = StoredNames(model)
    sources = {
        found[0]: source
        for source in checkpoint.names
        if (found := names.target(source)) is not None and found[1] is None
    }
    for name, other in tied.items():
        if not {name, other} <= sources.keys():
            continue
        values, others = (checkpoint.read(sources[one]) for one in (name, other))
        if values.shape == others.shape and not torch.equal(values, others):
            parent, _, leaf = name.rpartition(".")
            own = torch.empty_like(model.get_parameter(other))
            model.get_submodule(parent)._parameters[leaf] = nn.Parameter(own, requires_grad=False)
            model.config.tie_word_embeddings = False
