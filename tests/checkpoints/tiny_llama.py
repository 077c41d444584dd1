"""A tiny model on disk, and what a scheme makes of it, weight by weight."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ridgeline.checkpoints.compressed_writer import CompressedWriter
from ridgeline.compress.activations import activation_scales, round_activations
from ridgeline.compress.rounding import to_nearest
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.records.scheme_names import parse

IDS = torch.arange(24).view(2, 12) * 5 % 96


def tiny(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A Llama of 64 features with rows of very different sizes."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 96,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                parameter.mul_(torch.exp(torch.randn(parameter.shape[0], 1)))
                parameter[3] = 0
    return model.to(dtype).eval()


def saved(directory: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """The tiny model as a Hugging Face directory."""
    tiny(dtype, **changes).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def write(
    source: Path, out: Path, name: str, dtype: torch.dtype | None = None, **options: Any
) -> Any:
    """Save the model rounded to the scheme of that name, and give what it should compute.

    Several names, with spaces between, take turns from layer to layer.
    """
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    schemes = cycle(parse(one) for one in name.split())
    linears = {key: key for key, module in model.named_modules() if type(module) is nn.Linear}
    config = json.loads((source / "config.json").read_text())
    writer = CompressedWriter(out, config, source=source, linears=linears, **options)
    for key, tensor in model.state_dict().items():
        layer = key.removesuffix(".weight")
        if layer not in linears or layer == "lm_head":
            writer.dense(key, tensor)
            continue
        scheme = next(schemes)
        assert scheme.weights is not None
        seen = CalibrationStatistics(num_tokens=1, max_abs=torch.full((tensor.shape[1],), 3.0))
        inputs = activation_scales(scheme.activations, seen)
        weight = to_nearest(tensor, scheme.weights, layer)
        writer.quantised(layer, weight, inputs)
        with torch.no_grad():
            tensor.copy_(weight.dequantised(tensor.dtype))
        if inputs is not None:
            round_activations(model.get_submodule(layer), inputs)
    writer.close()
    return model


def logits(model: Any) -> torch.Tensor:
    """Of a few tokens."""
    with torch.no_grad():
        out: torch.Tensor = model(IDS).logits
    return out
