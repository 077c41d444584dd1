"""Compressed-tensors checkpoints run compressed and compute what their weights say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.weights.compressed_writer import SCHEMES, packed, write
from transformers import LlamaConfig, LlamaForCausalLM

from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import integer
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.weights import FrozenLinear, is_compressed, load_compressed, shrink

IDS = torch.arange(24).view(2, 12) * 5 % 96


def tiny(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    torch.manual_seed(3)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**(sizes | changes))).to(dtype).eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_checkpoint_gives_the_logits_of_the_dequantised_model(
    name: str, tied: bool, tmp_path: Path
) -> None:
    expected = logits(write(tiny(tie_word_embeddings=tied), tmp_path, name))
    model = load_compressed(str(tmp_path), torch.float32)
    kept = [type(module) is torch.nn.Linear for module in model.modules()]
    assert sum(kept) == 1, "the ignored head alone stays"
    # Activations of w8a8 are rounded to 8 bits, as its scheme asks.
    tolerance = 3e-2 if name == "w8a8" else 2e-6
    assert (logits(model) - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("name", ["w4a16", "w8a8"])
def test_a_bf16_checkpoint_runs_in_bf16(name: str, tmp_path: Path) -> None:
    expected = logits(write(tiny(torch.bfloat16), tmp_path, name).float())
    found = logits(load_compressed(str(tmp_path), torch.bfloat16))
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max()


def test_compressed_layers_stay_when_the_rest_is_shrunk(tmp_path: Path) -> None:
    expected = logits(write(tiny(), tmp_path, "w4a16"))
    model = load_compressed(str(tmp_path), torch.float32)
    before = [m for m in model.modules() if isinstance(m, FrozenLinear)]
    rows = shrink(model, EngineConfig(model=str(tmp_path)))
    after = [m for m in model.modules() if isinstance(m, FrozenLinear)]
    assert set(before) < set(after)
    assert {row.what for row in rows} >= {
        "weights, int4 in groups of 32",
        "weights, float32 packed",
    }
    assert (logits(model) - expected).abs().max() <= 2e-6 * expected.abs().max()


def test_the_dequantised_weight_is_the_writers(tmp_path: Path) -> None:
    written = write(tiny(), tmp_path, "w4a16-asym").model.layers[1].mlp.down_proj.weight
    found = load_compressed(str(tmp_path), torch.float32).get_submodule(
        "model.layers.1.mlp.down_proj"
    )
    assert torch.equal(found.dequantised(), written)


def test_an_ignored_layer_is_read_as_it_is(tmp_path: Path) -> None:
    ignored = ("lm_head", "re:.*down_proj$")
    model = tiny()
    exact = tuple(name for name, _ in model.named_modules() if name.endswith("down_proj"))
    write(model, tmp_path, "w8a16", ignore=("lm_head", *exact))
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["ignore"] = list(ignored)
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_compressed(str(tmp_path), torch.float32)
    assert type(loaded.get_submodule(exact[0])) is torch.nn.Linear
    assert torch.allclose(logits(loaded), logits(model), atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_packed_unpacks(bits: int) -> None:
    levels = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (3, 64), dtype=torch.int8)
    assert torch.equal(integer.unpack(packed(levels, bits), bits, levels.shape[1]), levels)


def changed(directory: Path, **changes: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] |= changes
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transform_config": {"config_groups": {}, "x": 1}}, "rotated"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        (
            {
                "config_groups": {
                    "group_0": {"targets": ["Linear"], "format": "nvfp4-pack-quantized"}
                }
            },
            "nvfp4-pack-quantized",
        ),
    ],
    ids=["rotation", "sparse", "nvfp4"],
)
def test_what_cannot_run_is_refused_in_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tiny(), tmp_path, "w4a16")
    changed(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as refused:
        load_compressed(str(tmp_path), torch.float32)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"strategy": "tensor", "dynamic": False, "symmetric": False}, "symmetric=False"),
        ({"strategy": "channel", "dynamic": False}, "a scale per channel"),
        ({"num_bits": 4}, "4 bits, a scale per token"),
    ],
    ids=["affine", "by channel", "4 bits"],
)
def test_activations_that_cannot_be_rounded_are_refused_in_one_line(
    inputs: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tiny(), tmp_path, "w8a8")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] |= inputs
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message) as refused:
        load_compressed(str(tmp_path), torch.float32)
    assert "\n" not in str(refused.value)


def test_static_activations_need_their_scale(tmp_path: Path) -> None:
    write(tiny(), tmp_path, "w8a8")
    config = json.loads((tmp_path / "config.json").read_text())
    static = {"strategy": "tensor", "dynamic": False}
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] |= static
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"q_proj\.input_scale is missing"):
        load_compressed(str(tmp_path), torch.float32)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write(tiny(), tmp_path, "w4a16")
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("model.norm.weight", "model.layers.0.mlp.up_proj.weight_scale"):
        save_file({k: v for k, v in tensors.items() if k != name}, tmp_path / "model.safetensors")
        with pytest.raises(InputError, match=name):
            load_compressed(str(tmp_path), torch.float32)


def test_a_tensor_that_the_model_does_not_have_is_named(tmp_path: Path) -> None:
    write(tiny(), tmp_path, "w4a16")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"model.extra": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.extra"):
        load_compressed(str(tmp_path), torch.float32)


def test_only_compressed_tensors_count_as_compressed(tmp_path: Path) -> None:
    assert not is_compressed(str(tmp_path))
    tiny().config.save_pretrained(tmp_path)
    assert not is_compressed(str(tmp_path))
    write(tiny(), tmp_path, "fp8")
    assert is_compressed(str(tmp_path))
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "comp')
    with pytest.raises(InputError, match=r"config\.json: not JSON"):
        is_compressed(str(tmp_path))
