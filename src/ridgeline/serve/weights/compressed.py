"""Reads checkpoints in the compressed-tensors format into layers that stay compressed.

What `ridgeline compress` and llm-compressor write: `config.json` holds a `quantization_config` of
`quant_method` "compressed-tensors", the safetensors files one quantised weight as several tensors
(`stored.py`). transformers would read such a model too, but multiplies with dequantised copies.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn

from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library
from ridgeline.serve.weights.kv_scales import PARTS
from ridgeline.serve.weights.schemes import described, schemes_of
from ridgeline.serve.weights.stored import Stored, linear_from

QUANTISED = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
"""Tensors of a quantised layer besides its `weight`."""


def is_compressed(directory: str) -> bool:
    """Whether this is a compressed-tensors checkpoint."""
    return bool(described(directory))


def load_compressed(
    directory: str,
    dtype: torch.dtype,
    *,
    device: torch.device | str = "cpu",
    attention: str = "eager",
    trust_remote_code: bool = False,
) -> nn.Module:
    """The model, its quantised layers read into `linears.py`, all else in `dtype`.

    Tensor by tensor: never more than one layer lies in memory twice.

    Args:
        directory: Of the checkpoint.
        dtype: Of what is not quantised.
        device: Where everything goes.
        attention: transformers' name of the implementation.
        trust_remote_code: As transformers means it.

    Raises:
        InputError: A scheme that is not known, or tensors that do not fit the model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    schemes = schemes_of(directory)
    # Buffers are computed, not stored.
    with read_by_library(directory), init_empty_weights(include_buffers=False):
        about = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        del about.quantization_config
        model = AutoModelForCausalLM.from_config(
            about, dtype=dtype, attn_implementation=attention, trust_remote_code=trust_remote_code
        )
    tensors = Stored(directory)
    layers = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    for name, module in layers.items():
        scheme = schemes.of(name)
        if scheme is not None and not _is_tied_head(model, module, name, tensors):
            made = linear_from(tensors, name, scheme, torch.device(device), dtype)
            found, expected = [made.out_features, made.in_features], list(module.weight.shape)
            if found != expected:
                raise InputError(
                    f"{directory}: {name}.weight is {found}, config.json says {expected}"
                )
            _put(model, name, made)
    _read_dense(model, tensors, dtype, torch.device(device))
    if os.path.exists(os.path.join(directory, "generation_config.json")):
        with read_by_library(directory, what="generation_config.json"):
            model.generation_config = GenerationConfig.from_pretrained(directory)
    return model.to(device).eval().requires_grad_(requires_grad=False)


def _is_tied_head(model: Any, module: nn.Module, name: str, tensors: Stored) -> bool:
    """Then it has no tensors of its own."""
    head = model.get_output_embeddings()
    return module is head and not any(
        tensors.has(f"{name}.{part}") for part in ("weight", *QUANTISED)
    )


def _read_dense(model: Any, tensors: Stored, dtype: torch.dtype, device: torch.device) -> None:
    names = dict(model.named_parameters()) | dict(model.named_buffers())
    of_cache = PARTS if described(tensors.directory).get("kv_cache_scheme") else ()
    for name in tensors.unread():
        if name.endswith(of_cache):
            continue  # `calibrated_cache` reads them
        if name not in names:
            raise InputError(
                f"{tensors.directory}: {name} is no tensor of a {type(model).__name__}; its layout "
                "is not known here, so save the model uncompressed and use --weights"
            )
        stored = tensors.read(name).to(device)
        if stored.is_floating_point():
            stored = stored.to(dtype)
        if stored.shape != names[name].shape:
            raise InputError(
                f"{tensors.directory}: {name} is {list(stored.shape)}, "
                f"config.json says {list(names[name].shape)}"
            )
        parent, leaf = _parent(model, name)
        if leaf in parent._parameters:
            parent._parameters[leaf] = nn.Parameter(stored, requires_grad=False)
        else:
            parent._buffers[leaf] = stored
    model.tie_weights()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise InputError(f"{tensors.directory}: {name} is missing")


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, leaf = _parent(model, name)
    setattr(parent, leaf, module)


def _parent(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf
