"""Compressed checkpoints, read into layers that stay compressed; codebooks (AQLM) as numbers.

What `ridgeline compress` and llm-compressor write (`checkpoints/compressed_tensors.py`).
No kernel here multiplies by codebooks, so these lie in memory as numbers, in the dtype of the rest.
transformers would read such a model too, but multiplies with dequantised copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.compressed_tensors import (
    LayerFormat,
    WeightReader,
    quantisation_of,
    read_weight,
)
from ridgeline.checkpoints.files import StoredTensors
from ridgeline.checkpoints.layers import place_module
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.checkpoints.skeleton import (
    StoredPiece,
    empty_model,
    owner_of,
    read_generation_config,
    set_tensor,
    stored_pieces,
)
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import fp4, mx
from ridgeline.models.folder import read_by_library
from ridgeline.serve.weights.experts import open_experts, opened_pieces
from ridgeline.serve.weights.layers import int4_layer, int8_layer, w8a8_layer
from ridgeline.serve.weights.linears import FrozenLinear
from ridgeline.serve.weights.shrink import is_shrunk


def is_compressed(directory: str) -> bool:
    """Whether this is a compressed checkpoint that is read here."""
    return bool(quantisation_of(directory))


def load_compressed(
    directory: str,
    dtype: torch.dtype,
    *,
    device: torch.device | str = "cpu",
    attention: str = "eager",
    trust_remote_code: bool = False,
) -> nn.Module:
    """Read the model, its quantised layers into `linears.py`, all else in `dtype`.

    Tensor by tensor: never more than one layer lies in memory twice.

    Args:
        directory: The checkpoint.
        dtype: The dtype of what is not quantised.
        device: Where everything goes.
        attention: transformers' name of the implementation.
        trust_remote_code: As transformers means it.

    Raises:
        InputError: A scheme that is not known, or tensors that do not fit the model.
    """
    from transformers import AutoConfig

    reader = WeightReader(Path(directory))
    for _, group in reader.layers.groups:
        _int8_activations(group)  # refused before anything is read
    with read_by_library(directory):
        about = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        del about.quantization_config
        model = empty_model(
            about, dtype=dtype, attention=attention, trust_remote_code=trust_remote_code
        )
    device = torch.device(device)
    pieces = stored_pieces(model, reader)
    if device.type == "cpu":
        pieces = opened_pieces(model, pieces, open_experts(model))
    compressed = {
        name: layers
        for name, module in model.named_modules()
        if is_shrunk(module) and (layers := _kept_compressed(reader, pieces.get(f"{name}.weight")))
    }
    for name, layers in compressed.items():
        place_module(model, name, linear_from(reader, layers, device, dtype))
    for target, parts in pieces.items():
        if target.rpartition(".")[0] not in compressed:
            _fill(model, target, parts, reader, device)
    model.tie_weights()  # type: ignore[attr-defined]
    read_generation_config(model, Path(directory))
    return model.to(device).eval().requires_grad_(requires_grad=False)  # type: ignore[no-any-return]


def _kept_compressed(reader: WeightReader, pieces: list[StoredPiece] | None) -> list[str] | None:
    """The stored names of a layer that kernels multiply by as it is compressed; None: as numbers.

    They are several where the rows of one matrix are stored apart, as an expert's gate and up are.
    """
    if pieces is None:  # a tied head
        return None
    layers = [piece.source.removesuffix(".weight") for piece in pieces]
    whole = all(piece.expert is None and piece.inside is None for piece in pieces)
    cut = len(pieces) == 1 and pieces[0].rows is not None
    if not whole or cut or not all(map(reader.is_quantised, layers)):
        return None
    formats = [reader.format_of(layer) for layer in layers]
    alike = all(
        (one.weights, one.activations) == (formats[0].weights, formats[0].activations)
        for one in formats
    )
    if not alike or formats[0].weights.kind == "codebook":
        return None
    fixed = _int8_activations(formats[0]) == "fixed"
    steps = {_step(reader.tensors, f"{layer}.input_scale") for layer in layers} if fixed else ()
    return None if len(steps) > 1 else layers


def _fill(
    model: nn.Module,
    target: str,
    pieces: list[StoredPiece],
    reader: WeightReader,
    device: torch.device,
) -> None:
    """Give the model a parameter or buffer as numbers: what is dense, and codebooks."""
    owner, leaf = owner_of(model, target)
    empty: Tensor = getattr(owner, leaf)
    values = torch.empty(empty.shape, dtype=empty.dtype)
    for piece in pieces:
        place = piece.placed(values)
        if piece.inside is not None:
            place.copy_(reader.tensors.read(piece.source, piece.inside))
            continue
        found = reader.read(piece.source)
        place.copy_(found if isinstance(found, Tensor) else found.dequantised(empty.dtype))
    set_tensor(owner, leaf, values.to(device))


def linear_from(
    reader: WeightReader, names: list[str], device: torch.device, dtype: torch.dtype
) -> FrozenLinear:
    """Read the layer whose rows are stored under these names, for activations of `dtype`.

    Raises:
        InputError: Tensors are missing, or what they hold is not supported.
    """
    tensors, found = reader.tensors, reader.format_of(names[0])
    levels, scales, zeros = _together([read_weight(tensors, name, found) for name in names])
    levels, scales = levels.to(device), scales.to(device)
    zeros = None if zeros is None else zeros.to(device)
    biased = len(names) == 1 and f"{names[0]}.bias" in tensors
    bias = tensors.read(f"{names[0]}.bias").to(device) if biased else None
    plain = found.weights.bits == 8 and scales.shape[1] == 1 and zeros is None
    activations = _int8_activations(found)
    if activations != "wide" and plain and device.type == "cpu":
        step = _step(tensors, f"{names[0]}.input_scale") if activations == "fixed" else None
        return w8a8_layer(levels, scales, bias, step, dtype)
    # Other activations stay wide here, whatever they were to be quantised to.
    int4 = found.weights.kind == "int" and found.weights.bits <= 4
    made = int4_layer if int4 else int8_layer
    return made(levels, scales, zeros, bias, dtype)


def _together(weights: list[Quantised]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Levels, scales and zero points of weights one behind the other, the last two by output."""
    levels, scales, zeros = [], [], []
    for weight in weights:
        part, own = _multiplied(weight)
        levels.append(part)
        scales.append(own.expand(len(part), -1))
        if weight.zeros is not None:
            zeros.append(weight.zeros.expand(len(part), -1))
    return (
        torch.cat(levels),
        torch.cat(scales).contiguous(),
        torch.cat(zeros).contiguous() if zeros else None,
    )


def _multiplied(weight: Quantised) -> tuple[Tensor, Tensor]:
    """Levels and scales that kernels multiply: the former in 8 bits, the latter as numbers."""
    kind, levels, scales = weight.format.kind, weight.levels, weight.scales
    half = 1.0
    if kind in {"mxfp4", "nvfp4"}:
        # Twice an E2M1 number is a whole one, up to 12: int8 levels, and half the scale.
        levels, half = (2 * fp4.value(levels)).to(torch.int8), 0.5
    if kind in {"mxfp4", "mxfp8"}:
        return levels, (mx.powers_of_two(scales) * half).bfloat16()  # exact: powers of two
    if kind == "nvfp4":
        assert weight.global_scale is not None
        return levels, scales.float() / weight.global_scale * half
    return levels, scales


def _step(tensors: StoredTensors, name: str) -> float:
    """What all activations of a layer are divided by."""
    step = tensors.read(name)
    if step.numel() != 1 or not 0 < float(step) < float("inf"):
        raise InputError(
            f"{tensors.directory}: {name} is of {list(step.shape)}, not one number above 0"
        )
    return float(step)


def _int8_activations(found: LayerFormat) -> Literal["wide", "by token", "fixed"]:
    """Whether activations are quantised to int8 too, beside integer weights, and by whose scale."""
    about = found.activations
    if not about or found.weights.kind != "int":
        return "wide"
    share, dynamic = about.get("strategy", "token"), bool(about.get("dynamic"))
    known: dict[Any, Literal["by token", "fixed"]] = {
        ("token", True): "by token",
        ("tensor", False): "fixed",
    }
    plain = about.get("num_bits") == 8 and about.get("type", "int") == "int"
    if (share, dynamic) not in known or not plain or not about.get("symmetric", True):
        raise InputError(
            f"{found.where}: input_activations of {about.get('num_bits')} bits, a scale per {share}"
            f", dynamic={dynamic}, symmetric={about.get('symmetric', True)}, are not supported; "
            "known are symmetric 8-bit integers, dynamic per token or static per tensor"
        )
    return known[share, dynamic]
