from __future__ import annotations

import filecmp
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ridgeline.compress.run import CompressionJob, stage
from ridgeline.errors import InputError
from ridgeline.records.scheme_names import parse


def _job(model, work, tokens, *names, **more):
    schemes = tuple(parse(name) for name in names)
    return CompressionJob(model=model, schemes=schemes, work=work, tokens=tokens, **more)


def _logits(model, tokens):
    with torch.no_grad():
        return model.eval()(tokens).logits


@pytest.mark.sweep("llama-gptq", "tied-awq")
@pytest.mark.parametrize("method", ["rtn", "gptq", "awq", "gptq-actorder"])
@pytest.mark.parametrize("kind", ["llama", "tied"])
def test_transformers_loads_what_is_saved_and_computes_what_was_emulated(
    tiny_model, tokens, tmp_path, kind, method
):
    staged = stage(_job(tiny_model(kind), tmp_path / "work", tokens, f"w4a16-{method}-g16"))
    expected = _logits(staged.emulated(), tokens)
    staged.save(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(_logits(loaded, tokens), expected, rtol=1e-4, atol=1e-4)
    assert not (tmp_path / "work").exists()
    assert len(staged.layers) == 14
    assert all(0.0 < layer.error < 0.2 for layer in staged.layers)


@pytest.mark.sweep("gptq-mixtral")
@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "qwen2moe", "gemma3", "opt"])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_every_architecture_loads_back(tiny_model, tokens, tmp_path, kind, method):
    staged = stage(_job(tiny_model(kind), tmp_path / "work", tokens, f"w4a16-{method}-g16"))
    expected = _logits(staged.emulated(), tokens)
    staged.save(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(_logits(loaded, tokens), expected, rtol=1e-3, atol=1e-3)
    uncompressed = AutoModelForCausalLM.from_pretrained(tiny_model(kind), dtype=torch.float32)
    assert not torch.allclose(_logits(uncompressed, tokens), expected, atol=1e-3)


def test_experts_are_saved_packed_and_transposed_layers_say_that_they_are_not(
    tiny_model, tokens, tmp_path
):
    for kind in ("mixtral", "gpt2"):
        job = _job(tiny_model(kind), tmp_path / f"{kind}.work", tokens, "w4a16-gptq-g16")
        staged = stage(job)
        told = [layer for layer in staged.layers if any("unpacked" in one for one in layer.notices)]
        assert len(told) == (0 if kind == "mixtral" else len(staged.layers))
        staged.save(tmp_path / kind)
    saved = load_file(tmp_path / "mixtral" / "model.safetensors")
    assert "model.layers.0.block_sparse_moe.experts.3.w1.weight_packed" in saved
    assert "model.layers.0.block_sparse_moe.gate.weight" in saved
    assert "quantization_config" not in json.loads((tmp_path / "gpt2" / "config.json").read_text())


@pytest.mark.sweep("w8a8-smoothquant", "fp8")
@pytest.mark.parametrize("name", ["w8a8-smoothquant", "w8a8-rtn", "fp8", "w8a8-static"])
def test_rounded_activations_are_emulated_as_transformers_computes_them(
    tiny_model, tokens, tmp_path, name
):
    staged = stage(_job(tiny_model("llama"), tmp_path / "work", tokens, name))
    expected = _logits(staged.emulated(), tokens)
    staged.save(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    difference = (_logits(loaded, tokens) - expected).norm() / expected.norm()
    assert float(difference) < 0.02  # a value on a border may go either way


@pytest.mark.sweep("w4a16-gptq-g16-kv8")
@pytest.mark.parametrize("name", ["kvfp8", "w4a16-gptq-g16-kv8"])
def test_a_rounded_cache_has_the_ranges_of_keys_and_values(tiny_model, tokens, tmp_path, name):
    staged = stage(_job(tiny_model("llama"), tmp_path / "work", tokens, name))
    model, seen = staged.emulated(), []
    value = model.model.layers[1].self_attn.v_proj
    value.register_forward_hook(lambda _m, _a, output: seen.append(output.abs().max()))
    _logits(model, tokens)
    staged.save(tmp_path / "out")
    saved = load_file(tmp_path / "out" / "model.safetensors")
    scale = saved["model.layers.1.self_attn.v_scale"].float()
    levels = {"kvfp8": 448.0, "w4a16-gptq-g16-kv8": 127.5}[name]
    assert float(scale) == pytest.approx(float(max(seen)) / levels, rel=0.01)
    assert "model.layers.0.self_attn.k_scale" in saved
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["kv_cache_scheme"]["num_bits"] == 8


@pytest.mark.slow
def test_half_precision_weights_are_saved_in_their_dtype(tiny_model, tokens, tmp_path):
    model = tiny_model("llama", torch.bfloat16)
    staged = stage(_job(model, tmp_path / "work", tokens, "w4a16-awq-g16"))
    staged.save(tmp_path / "out")
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert saved["model.layers.0.input_layernorm.weight"].dtype == torch.bfloat16
    assert saved["model.layers.0.mlp.up_proj.weight_scale"].dtype == torch.bfloat16
    given = load_file(model / "model.safetensors")
    assert torch.equal(saved["model.embed_tokens.weight"], given["model.embed_tokens.weight"])
    assert not torch.equal(
        saved["model.layers.0.input_layernorm.weight"],
        given["model.layers.0.input_layernorm.weight"],
    )


def test_the_same_job_gives_the_same_bytes(tiny_model, tokens, tmp_path):
    for name in ("one", "two"):
        job = _job(tiny_model("mixtral"), tmp_path / f"{name}.work", tokens, "w4a16-gptq-g16")
        stage(job).save(tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    _, differing, missing = filecmp.cmpfiles(
        tmp_path / "one", tmp_path / "two", names, shallow=False
    )
    assert (differing, missing) == ([], [])


def test_layers_can_have_schemes_of_their_own(tiny_model, tokens, tmp_path):
    eight, none = parse("w8a16-rtn-channel"), ()
    layers = {
        "model.layers.0.mlp.down_proj": (eight,),
        "model.layers.0.self_attn.q_proj": (eight,),  # beside k_proj, which has GPTQ
        "model.layers.1.self_attn.q_proj": none,
    }
    job = _job(tiny_model("llama"), tmp_path / "work", tokens, "w4a16-gptq-g16", of_layer=layers)
    staged = stage(job)
    schemes = {layer.name: layer.scheme for layer in staged.layers}
    assert schemes["model.layers.0.mlp.down_proj"] == "w8a16-rtn-channel"
    assert schemes["model.layers.1.self_attn.q_proj"] == ""
    assert schemes["model.layers.1.mlp.up_proj"] == "w4a16-gptq-g16"
    expected = _logits(staged.emulated(), tokens)
    staged.save(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(_logits(loaded, tokens), expected, rtol=1e-4, atol=1e-4)


def test_pruned_weights_stay_zero_when_they_are_rounded_after(tiny_model, tokens, tmp_path):
    staged = stage(
        _job(tiny_model("llama"), tmp_path / "work", tokens, "2:4-sparsegpt", "w8a16-gptq-channel")
    )
    weight = staged.emulated().model.layers[0].mlp.up_proj.weight
    kept = (weight != 0).unflatten(1, (-1, 4)).sum(-1)
    assert int(kept.max()) <= 2
    assert staged.layers[0].scheme == "2:4-sparsegpt + w8a16-gptq-channel"


@pytest.mark.slow
def test_a_head_of_its_own_is_compressed_where_no_scheme_ignores_it(tiny_model, tokens, tmp_path):
    from msgspec.structs import replace

    scheme = replace(parse("w8a16-gptq-channel"), ignore=())
    job = CompressionJob(
        model=tiny_model("llama"), schemes=(scheme,), work=tmp_path / "work", tokens=tokens
    )
    staged = stage(job)
    assert staged.layers[-1].name == "lm_head"
    expected = _logits(staged.emulated(), tokens)
    staged.save(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(_logits(loaded, tokens), expected, rtol=1e-4, atol=1e-4)
    tied = CompressionJob(
        model=tiny_model("tied"), schemes=(scheme,), work=tmp_path / "w2", tokens=tokens
    )
    assert all(layer.name != "lm_head" for layer in stage(tied).layers)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"])
def test_a_weight_that_is_not_a_number_is_refused_by_its_name(tiny_model, tokens, tmp_path, name):
    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    weights = load_file(model / "model.safetensors")
    weights[name][127 if "embed" in name else 3, 4] = float("nan")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=f"{re.escape(name)} has inf or NaN"):
        stage(_job(model, tmp_path / "work", tokens, "w4a16-rtn-g16"))


def test_a_group_that_does_not_divide_is_refused_before_any_work(tiny_model, tokens, tmp_path):
    with pytest.raises(InputError, match="q_proj: 32 input features are no multiple of a group of"):
        stage(_job(tiny_model("llama"), tmp_path / "work", tokens, "w4a16-gptq-g64"))
    assert not list((tmp_path).glob("work/block*"))


def test_a_scheme_that_looks_at_activations_needs_some(tiny_model, tmp_path):
    with pytest.raises(InputError, match="give a calibration text"):
        stage(_job(tiny_model("llama"), tmp_path / "work", None, "w4a16-gptq-g16"))


def test_a_model_that_is_compressed_already_is_refused(tiny_model, tokens, tmp_path):
    stage(_job(tiny_model("llama"), tmp_path / "work", None, "w4a16-rtn-g16")).save(
        tmp_path / "out"
    )
    with pytest.raises(InputError, match="compressed already"):
        stage(_job(tmp_path / "out", tmp_path / "work", tokens, "w4a16-rtn-g16"))


def test_the_folder_of_another_compression_is_not_touched(tiny_model, tokens, tmp_path):
    stage(_job(tiny_model("llama"), tmp_path / "work", tokens, "w4a16-rtn-g16"))
    with pytest.raises(InputError, match="blocks of another compression"):
        stage(_job(tiny_model("llama"), tmp_path / "work", tokens, "w8a16-rtn-g16"))


def test_a_config_that_does_not_fit_the_tensors_is_refused(tiny_model, tokens, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(InputError, match=r"\[64, 32\], which does not fit .* \[96, 32\]"):
        stage(_job(model, tmp_path / "work", tokens, "w4a16-rtn-g16"))
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(InputError, match=r"model\.layers\.2\.[a-z_.]+ is missing from its files"):
        stage(_job(model, tmp_path / "work", tokens, "w4a16-rtn-g16"))
    (model / "config.json").write_text(json.dumps({**config, "model_type": "nonsense"}))
    with pytest.raises(InputError, match=r"config\.json makes no causal language model"):
        stage(_job(model, tmp_path / "work", tokens, "w4a16-rtn-g16"))
