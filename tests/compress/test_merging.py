"""An adapter added to weights gives the model that peft computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from ridgeline.checkpoints.compressed_writer import CompressedWriter
from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.compress.merging import merge
from ridgeline.compress.rounding import to_nearest
from ridgeline.errors import InputError
from ridgeline.records.scheme_names import parse

# peft asks transformers for a property that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
LLAMA = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
GPT2 = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
TOKENS = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))


def written(folder: Path, config: Any = LLAMA, **lora: Any) -> tuple[Path, Path, torch.Tensor]:
    """A model, an adapter that changes it, and the logits of both together."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder / "model")
    settings = {"target_modules": "all-linear", "r": 4, "lora_alpha": 16} | lora
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name or "magnitude" in name:
            parameter.data += 0.05 * torch.randn_like(parameter)
    adapted.save_pretrained(folder / "adapter")
    with torch.no_grad():
        return folder / "model", folder / "adapter", adapted(TOKENS).logits


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    "lora",
    [
        {},
        {"use_rslora": True, "alpha_pattern": {"mlp.up_proj": 3}, "rank_pattern": {"q_proj": 2}},
        {"use_dora": True},
        {"config": GPT2, "fan_in_fan_out": True, "target_modules": ["c_attn", "c_proj", "c_fc"]},
    ],
    ids=["lora", "rslora, patterns", "dora", "gpt-2"],
)
def test_the_merged_model_is_the_adapted_one(tmp_path: Path, lora: dict[str, Any]) -> None:
    model, adapter, expected = written(tmp_path, **lora)
    merged = merge(model, adapter, tmp_path / "out")
    assert all(layer.change > 0 and layer.error == 0 for layer in merged)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.no_grad():
        found = loaded(TOKENS).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", ["w4a16-g32", "w4a16-g32-asym", "w8a8", "fp8a16", "mxfp4a16"])
def test_merged_into_few_bits_is_rounded_again_by_the_same_scheme(
    tmp_path: Path, name: str
) -> None:
    model, adapter, _ = written(tmp_path)
    quantise(model, tmp_path / "rounded", name)
    merged = merge(tmp_path / "rounded", adapter, tmp_path / "out")
    assert all(0 < layer.error < 0.3 for layer in merged)
    before, after = CheckpointFiles(tmp_path / "rounded"), CheckpointFiles(tmp_path / "out")
    assert after.config == before.config
    assert {n: after.shape(n) for n in after.names} == {n: before.shape(n) for n in before.names}
    assert all(after.read(n).dtype == before.read(n).dtype for n in after.names)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.no_grad():
        assert bool(loaded(TOKENS).logits.isfinite().all())
    changed = [n for n in after.names if not torch.equal(after.read(n), before.read(n))]
    assert len(changed) >= len(merged)


def quantise(model: Path, out: Path, name: str) -> None:
    from ridgeline.checkpoints.quantised import ActivationScales

    scheme = parse(name)
    assert scheme.weights is not None
    checkpoint = CheckpointFiles(model)
    linears = [n.removesuffix(".weight") for n in checkpoint.names if "_proj" in n]
    names = {name: name for name in (*linears, "lm_head")}
    writer = CompressedWriter(out, checkpoint.config, source=model, linears=names)
    inputs = None if scheme.activations is None else ActivationScales(format=scheme.activations)
    for stored in checkpoint.names:
        layer = stored.removesuffix(".weight")
        weight = checkpoint.read(stored)
        if layer in linears:
            writer.quantised(layer, to_nearest(weight, scheme.weights, layer), inputs)
        else:
            writer.dense(stored, weight)
    writer.close()


def test_an_adapter_of_another_model_or_kind_is_refused(tmp_path: Path) -> None:
    model, adapter, _ = written(tmp_path)
    larger = LlamaConfig(**LLAMA.to_dict() | {"intermediate_size": 48})
    AutoModelForCausalLM.from_config(larger).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="trained on another model"):
        merge(tmp_path / "other", adapter, tmp_path / "out")
    deeper = LlamaConfig(**LLAMA.to_dict() | {"num_hidden_layers": 1})
    AutoModelForCausalLM.from_config(deeper).save_pretrained(tmp_path / "shallow")
    with pytest.raises(InputError, match="does not have"):
        merge(tmp_path / "shallow", adapter, tmp_path / "out")
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"peft_type": "IA3"}))
    with pytest.raises(InputError, match="type IA3"):
        merge(model, adapter, tmp_path / "out")
    with pytest.raises(InputError, match=r"has no adapter_config\.json"):
        merge(model, tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()
