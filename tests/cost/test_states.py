"""States in place of keys and values: their size against transformers', and what they change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.models.test_hybrids import VARIANTS, keys_of

from ridgeline.cli.main import run
from ridgeline.cost.operators import model_operators
from ridgeline.cost.serving.kv_cache import bytes_per_token, kv_cache_bytes
from ridgeline.cost.state_scan import CONVOLUTION_BYTES, STATE_BYTES, layer_state_bytes
from ridgeline.models import load_model
from ridgeline.models.config import spec_from_config
from ridgeline.models.counts import active_parameter_count, embedding_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("family", ["qwen3_next", "falcon_h1", "mamba2", "lfm2", "jamba"])
def test_a_state_is_as_large_as_the_one_that_transformers_keeps(family: str) -> None:
    keys = keys_of(family, VARIANTS[family][0])
    config = transformers.AutoConfig.for_model(**keys)
    spec = spec_from_config(config.to_dict(), place="here", name=family)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        given = model(torch.tensor([[1, 2, 3, 4, 5, 6]]), use_cache=True)
    kept = given.cache_params if "cache_params" in given else given.past_key_values
    kind = next(layer for layer, kind in enumerate(spec.kinds) if kind.state)
    layer = kept.layers[kind]
    recurrent = sum(one.numel() for one in tensors(layer, "recurrent_states"))
    recent = sum(one.numel() for one in tensors(layer, "conv_states"))
    assert spec.state is not None
    # transformers keeps as many inputs as the convolution is wide; engines keep those before it.
    recent = recent * (spec.state.conv_width - 1) // spec.state.conv_width
    wanted = recurrent * STATE_BYTES + recent * CONVOLUTION_BYTES
    assert layer_state_bytes(spec.state) == wanted


def tensors(layer: Any, name: str) -> list[Any]:
    held = getattr(layer, name, None)
    found = list(held.values()) if isinstance(held, dict) else held
    found = found if isinstance(found, list | tuple) else [found]
    return [one for one in found if one is not None]


def test_what_a_sequence_keeps_does_not_grow_without_attention() -> None:
    mamba = load_model("Mamba2-2.7B")
    assert kv_cache_bytes(mamba, 100) == kv_cache_bytes(mamba, 100_000) > 0
    hybrid, dense = load_model("Qwen3-Next-80B-A3B"), load_model("Qwen3-30B-A3B")
    assert bytes_per_token(hybrid) == 12 * 2 * 2 * 256 * 2
    assert kv_cache_bytes(hybrid, 131_072) < kv_cache_bytes(dense, 131_072) / 3


@pytest.mark.parametrize(
    "name", ["Qwen3-Next-80B-A3B", "Nemotron-3-Nano-30B-A3B", "Kimi-Linear-48B-A3B", "GLM-5"]
)
def test_matmuls_of_a_layer_are_its_parameters(name: str) -> None:
    model = load_model(name)
    products = sum(
        one.count * one.flops / 2.0
        for one in model_operators(model, 1, 256, phase="decode")
        if one.kind == "matmul" and one.name not in ("q absorb", "value absorb")
    )
    ends = embedding_parameters(model)
    each = products / 256 / (active_parameter_count(model) - ends)
    # Absorbed up-projections, norms, convolutions and low ranks are no matmuls of a layer.
    assert 0.95 < each <= 1.0001


def predicted(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    arguments = ["predict", "serving", "--gpu", "H200", "--answer", "256", "--users", "8", "--json"]
    assert run([*arguments, *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_serving_is_predicted_with_states(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--weights", "fp8", "--tp", "8", "--model")
    short = predicted(capsys, "--prompt", "1024", *common, "Qwen3-Next-80B-A3B")
    long = predicted(capsys, "--prompt", "16000", *common, "Qwen3-Next-80B-A3B")
    assert short["state_bytes"] == long["state_bytes"] > 0
    assert short["cache_bytes_per_token"] == pytest.approx(long["cache_bytes_per_token"])
    chosen = predicted(capsys, "--prompt", "16000", *common, "GLM-5")
    assert chosen["state_bytes"] == 0
    # Attention reads 2,048 tokens of 16,000, its chooser 132 bytes of each.
    assert chosen["breakdown"]["cache"] < 3e-3


def test_states_are_split_by_their_own_heads(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "serving", "--model", "Nemotron-3-Nano-30B-A3B", "--gpu", "H100"]
    lengths = ["--prompt", "512", "--answer", "64", "--users", "1"]
    assert run([*arguments, *lengths, "--tp", "3"]) == 2
    assert "tp 3 does not divide the 32 heads" in capsys.readouterr().err


def test_training_is_predicted_with_states(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "training", "--cluster", "64xH100", "--global-batch", "64", "--json"]
    for name in ("Nemotron-H-8B", "Mamba2-2.7B", "LFM2-1.2B"):
        assert run([*arguments, "--seq", "8192", "--fsdp", "64", "--model", name]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["step_seconds"] > 0
        assert found["breakdown"]["attention"] > 0
