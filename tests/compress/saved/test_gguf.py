"""GGUF files are what the gguf package reads, with llama.cpp's own rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoints.tiny_llama import saved, write

from ridgeline.compress.saved.gguf import export
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import ggml

LIBRARY = Path(__file__).parents[3] / "examples/models/library"
TYPE = gguf.GGMLQuantizationType


def tensors_of(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def values(tensor: Any) -> torch.Tensor:
    return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_blocks_are_those_of_the_gguf_package(kind: str) -> None:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(64, 128, generator=made) * torch.exp(torch.randn(64, 1, generator=made))
    x[3] = 0
    encode = ggml.encode_q8_0 if kind == "q8_0" else ggml.encode_q4_0
    expected = gguf.quants.quantize(x.numpy(), getattr(TYPE, kind.upper()))
    assert np.array_equal(encode(x).numpy(), expected)


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(("kind", "error"), [("q8_0", 1 / 254), ("q4_0", 1 / 8), ("f16", 5e-4)])
def test_a_trained_model_comes_back(kind: Any, error: float, tmp_path: Path) -> None:
    export(LIBRARY, tmp_path / "model.gguf", kind)
    found = tensors_of(tmp_path / "model.gguf")
    source = load_file(LIBRARY / "model.safetensors")
    assert len(found) == len(source)
    down = source["model.layers.1.mlp.down_proj.weight"]
    read = values(found["blk.1.ffn_down.weight"])
    assert (read - down).abs().max() <= 1.01 * error * down.abs().max()
    assert found["blk.1.ffn_down.weight"].tensor_type.name.lower() == kind
    norm = values(found["output_norm.weight"])
    assert torch.equal(norm, source["model.norm.weight"])
    # Rows of queries lie in pairs: row 1 was row head_dim / 2.
    query = values(found["blk.0.attn_q.weight"])
    expected = source["model.layers.0.self_attn.q_proj.weight"]
    assert (query[1] - expected[32]).abs().max() <= 1.01 * error * expected.abs().max()


def test_metadata_says_the_sizes_and_the_tokens(tmp_path: Path) -> None:
    export(LIBRARY, tmp_path / "model.gguf", "q8_0")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    said = {name: field.contents() for name, field in fields.items()}
    assert said["general.architecture"] == "llama"
    assert said["llama.block_count"] == 4
    assert said["llama.attention.head_count"] == 2
    assert said["llama.rope.dimension_count"] == 64
    assert said["tokenizer.ggml.pre"] == "gpt-2"
    assert len(said["tokenizer.ggml.tokens"]) == 2048
    assert said["tokenizer.ggml.tokens"][0] == "<|begin|>"
    assert said["tokenizer.ggml.token_type"][0] == gguf.TokenType.CONTROL


@pytest.mark.parametrize(("kind", "name"), [("q4_0", "w4a16-g32"), ("q8_0", "w8a8")])
def test_integers_that_a_method_chose_keep_their_levels(
    kind: Any, name: str, tmp_path: Path
) -> None:
    model = write(LIBRARY, tmp_path / "compressed", name)
    export(tmp_path / "compressed", tmp_path / "model.gguf", kind)
    read = values(tensors_of(tmp_path / "model.gguf")["blk.2.ffn_up.weight"])
    promised = model.model.layers[2].mlp.up_proj.weight.detach()
    # Only the scale is rounded, to float16.
    assert torch.allclose(read, promised, rtol=2**-11, atol=0)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "tiny")
    with pytest.raises(InputError, match="no tokenizer"):
        export(source, tmp_path / "model.gguf", "q8_0")
    config = source / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"mamba"'))
    with pytest.raises(
        InputError, match="GGUF export knows llama, mistral, qwen2, qwen3, not mamba"
    ):
        export(source, tmp_path / "model.gguf", "q8_0")
    assert not (tmp_path / "model.gguf").exists()
