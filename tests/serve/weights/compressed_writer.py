"""Writes a model as llm-compressor would, in the formats that compressed-tensors 0.19 has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SCHEMES: dict[str, dict[str, Any]] = {
    "w4a16": {"format": "pack-quantized", "bits": 4, "group": 32},
    "w4a16-asym": {"format": "pack-quantized", "bits": 4, "group": 32, "symmetric": False},
    "w4a16-channel": {"format": "pack-quantized", "bits": 4},
    "w8a16": {"format": "pack-quantized", "bits": 8},
    "w8a16-group": {"format": "pack-quantized", "bits": 8, "group": 32},
    "w8a16-asym": {"format": "pack-quantized", "bits": 8, "symmetric": False},
    "w8-int": {"format": "int-quantized", "bits": 8},
    "w8a8": {"format": "int-quantized", "bits": 8, "activations": 8},
    "fp8": {"format": "float-quantized", "bits": 8, "kind": "float", "activations": 8},
    "fp8-block": {"format": "float-quantized", "bits": 8, "kind": "float", "block": 32},
}


def write(model: Any, directory: Path, name: str, *, ignore: tuple[str, ...] = ("lm_head",)) -> Any:
    """Save `model` compressed; its linear layers now hold the dequantised weights."""
    scheme = SCHEMES[name]
    tensors = {}
    tied = bool(model.config.tie_word_embeddings)
    for path, tensor in model.state_dict().items():
        if not (tied and path == "lm_head.weight"):
            tensors[path] = tensor.clone()
    for path, module in model.named_modules():
        if type(module) is nn.Linear and path not in ignore:
            stored, dequantised = _stored(module.weight.detach(), scheme)
            del tensors[f"{path}.weight"]
            tensors |= {f"{path}.{part}": tensor for part, tensor in stored.items()}
            module.weight.data = dequantised.to(module.weight.dtype)
    directory.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(directory)
    about = json.loads((directory / "config.json").read_text())
    about["quantization_config"] = config_of(name, ignore)
    (directory / "config.json").write_text(json.dumps(about))
    save_file(
        {path: t.contiguous() for path, t in tensors.items()}, directory / "model.safetensors"
    )
    return model


def config_of(name: str, ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
    scheme = SCHEMES[name]
    kind = scheme.get("kind", "int")
    block = scheme.get("block")
    weights = {
        "num_bits": scheme["bits"],
        "type": kind,
        "symmetric": scheme.get("symmetric", True),
        "group_size": scheme.get("group"),
        "block_structure": [block, block] if block else None,
    }
    inputs = {"num_bits": 8, "type": kind, "dynamic": True, "strategy": "token", "symmetric": True}
    group = {
        "format": scheme["format"],
        "input_activations": inputs if "activations" in scheme else None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": scheme["format"],
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.19.0",
    }


def _stored(weight: Tensor, scheme: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of one weight and the weight that they stand for."""
    outputs, depth = weight.shape
    bits, block = scheme["bits"], scheme.get("block")
    group = block or scheme.get("group", depth)
    wide = weight.float().unflatten(1, (-1, group))
    largest = wide.abs().amax(2)
    if block:
        largest = largest.unflatten(0, (-1, block)).amax(1)
    if scheme.get("kind") == "float":
        scales = (largest / 448).to(weight.dtype)
        whole = _per_output(scales, outputs)[..., None].float()
        levels = (wide / whole).clamp(-448, 448).to(torch.float8_e4m3fn)
        quantised = levels.flatten(1)
        return {"weight": quantised, "weight_scale": scales}, (levels.float() * whole).flatten(1)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    if scheme.get("symmetric", True):
        scales = (largest / ((high - low) / 2)).to(weight.dtype)
        zeros = torch.zeros_like(scales)
    else:
        top, bottom = wide.amax(2).clamp_min(0), wide.amin(2).clamp_max(0)
        scales = ((top - bottom) / (high - low)).to(weight.dtype)
        zeros = (low - bottom / scales.float()).round().clamp(low, high)
    step, zero = scales.float()[..., None], zeros.float()[..., None]
    levels = (wide / step + zero).round().clamp(low, high)
    dequantised = ((levels - zero) * step).flatten(1)
    quantised = levels.flatten(1).to(torch.int8)
    if scheme["format"] == "int-quantized":
        return {"weight": quantised, "weight_scale": scales}, dequantised
    stored = {
        "weight_packed": packed(quantised, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([outputs, depth]),
    }
    if not scheme.get("symmetric", True):
        stored["weight_zero_point"] = packed(zeros.to(torch.int8).T, bits).T.contiguous()
    return stored, dequantised


def _per_output(scales: Tensor, outputs: int) -> Tensor:
    return scales.repeat_interleave(outputs // scales.shape[0], 0)


def packed(levels: Tensor, bits: int) -> Tensor:
    """[rows, n] int8 as [rows, n · bits / 32] int32, the first lowest."""
    per_word = 32 // bits
    unsigned = (levels.long() + 2 ** (bits - 1)).unflatten(1, (-1, per_word))
    words = (unsigned << torch.arange(0, 32, bits)).sum(2)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
