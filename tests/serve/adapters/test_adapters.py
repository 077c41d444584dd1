"""Many LoRA adapters over one model, against PEFT's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from ridgeline.checkpoints.adapters import examine
from ridgeline.errors import InputError
from ridgeline.serve.adapters import linear
from ridgeline.serve.adapters.adapters import Adapters, NoRoom
from ridgeline.serve.adapters.linear import AdaptedLinear

# peft asks transformers by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
VOCAB = 128
TENSORS = "adapter_model.safetensors"
torch.set_num_threads(1)


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    ).eval()


def write(folder: Path, seed: int, build: Callable[[], PreTrainedModel] = llama, **wanted: Any):
    """An adapter with both sides random, as PEFT saves it."""
    from peft import LoraConfig, get_peft_model  # costs seconds, which other files need not pay

    settings = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], **wanted}
    model = get_peft_model(build(), LoraConfig(task_type="CAUSAL_LM", **settings))
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def expected(folder: Path, tokens: Tensor, build: Callable[[], PreTrainedModel] = llama) -> Tensor:
    from peft import PeftModel

    return PeftModel.from_pretrained(build(), folder).eval()(tokens).logits[0]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True, "r": 8},
    "all-linear": {"target_modules": "all-linear", "r": 3},
    "head": {"target_modules": ["lm_head", "down_proj"]},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"1.self_attn.v_proj": 3}},
    "expression": {"target_modules": r".*\.1\.mlp\..*_proj"},
}


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_output_is_that_of_peft(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path, 1, **KINDS[kind])
    model, tokens = llama(), torch.randint(0, VOCAB, (1, 9))
    adapters = Adapters(model, 2)
    index = adapters.load("one", examine(folder))
    for static in (False, True):
        adapters.use(torch.full((9,), index), static=static)
        torch.testing.assert_close(model(tokens).logits[0], expected(folder, tokens))


@torch.inference_mode()
def test_conv1d_of_gpt2_is_a_linear_layer_too(tmp_path: Path) -> None:
    folder = write(tmp_path, 1, gpt2, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    model, tokens = gpt2(), torch.randint(0, VOCAB, (1, 9))
    adapters = Adapters(model, 1)
    adapters.use(torch.full((9,), adapters.load("one", examine(folder))))
    torch.testing.assert_close(model(tokens).logits[0], expected(folder, tokens, gpt2))


def rows_alone(layer: AdaptedLinear, x: Tensor, indices: Tensor) -> Tensor:
    out = []
    for row, index in zip(x, indices.tolist(), strict=True):
        layer.use = linear.plan(torch.tensor([index]), static=False)
        out.append(layer(row[None])[0])
    return torch.stack(out)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("most", [0, linear.MOST_MASKED_TOKENS])
@torch.inference_mode()
def test_a_mixed_batch_is_each_token_alone_and_rows_without_adapter_are_untouched(
    static: bool, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "MOST_MASKED_TOKENS", most)
    model = llama()
    adapters = Adapters(model, 3)
    for seed, rank in enumerate((4, 2, 7), 1):
        adapters.load(f"a{seed}", examine(write(tmp_path / str(seed), seed, r=rank)))
    layer = model.model.layers[0].self_attn.q_proj
    assert isinstance(layer, AdaptedLinear)
    x, indices = torch.randn(20, 64), torch.randint(0, 4, (20,))
    alone = rows_alone(layer, x, indices)
    adapters.use(indices, static=static)
    mixed = layer(x)
    torch.testing.assert_close(mixed, alone)
    assert torch.equal(mixed[indices == 0], layer.base(x)[indices == 0])


@torch.inference_mode()
def test_no_adapter_at_all_is_the_model_itself_bit_for_bit(tmp_path: Path) -> None:
    model, tokens = llama(), torch.randint(0, VOCAB, (1, 9))
    plain = model(tokens).logits
    adapters = Adapters(model, 2)
    adapters.load("one", examine(write(tmp_path, 1)))
    for indices in (None, torch.zeros(9, dtype=torch.long)):
        adapters.use(indices)
        assert torch.equal(model(tokens).logits, plain)


@torch.inference_mode()
def test_the_head_sees_only_the_rows_whose_logits_are_wanted(tmp_path: Path) -> None:
    folder = write(tmp_path, 1, target_modules=["lm_head", "q_proj"])
    model, tokens = llama(), torch.randint(0, VOCAB, (1, 9))
    adapters = Adapters(model, 2)
    rows = torch.tensor([3, 8])
    adapters.use(torch.full((9,), adapters.load("one", examine(folder))), rows)
    got = model(tokens, logits_to_keep=rows).logits[0]
    torch.testing.assert_close(got, expected(folder, tokens)[rows])


def test_a_forward_of_another_length_is_an_error(tmp_path: Path) -> None:
    model = llama()
    adapters = Adapters(model, 2)
    adapters.use(torch.full((9,), adapters.load("one", examine(write(tmp_path, 1)))))
    with pytest.raises(RuntimeError, match="set for 9 tokens, the layer got 5"):
        model(torch.zeros(1, 5, dtype=torch.long))


@torch.inference_mode()
def test_the_least_recently_used_goes_and_comes_back_from_its_file(tmp_path: Path) -> None:
    model, tokens = llama(), torch.randint(0, VOCAB, (1, 9))
    adapters = Adapters(model, 2)
    folders = {name: write(tmp_path / name, i) for i, name in enumerate("abc")}
    adapters.load("a", examine(folders["a"]))
    adapters.load("b", examine(folders["b"]))
    adapters.index("a")
    adapters.load("c", examine(folders["c"]))
    assert adapters.loaded == ("a", "c")
    assert adapters.names == ("a", "b", "c")
    index = adapters.index("b", busy={"c"})
    assert adapters.loaded == ("c", "b")
    adapters.use(torch.full((9,), index))
    torch.testing.assert_close(model(tokens).logits[0], expected(folders["b"], tokens))


def test_busy_adapters_are_neither_evicted_nor_unloaded(tmp_path: Path) -> None:
    adapters = Adapters(llama(), 1)
    adapters.load("a", examine(write(tmp_path / "a", 1)))
    with pytest.raises(NoRoom, match="--max-adapters"):
        adapters.load("b", examine(write(tmp_path / "b", 2)), busy={"a"})
    assert adapters.names == ("a",)
    with pytest.raises(InputError, match="in use"):
        adapters.unload("a", busy={"a"})
    adapters.unload("a")
    assert adapters.names == adapters.loaded == ()
    with pytest.raises(InputError, match="there is no adapter a; loaded: none"):
        adapters.index("a")


def test_the_same_name_again_has_another_key_for_prefixes(tmp_path: Path) -> None:
    adapters = Adapters(llama(), 1)
    folder = write(tmp_path, 1)
    adapters.load("a", examine(folder))
    before = adapters.key("a")
    with pytest.raises(InputError, match="loaded already"):
        adapters.load("a", examine(folder))
    adapters.unload("a")
    adapters.load("a", examine(folder))
    assert adapters.key("a") != before
    assert adapters.key("") == ""


def test_memory_is_that_of_the_tensors_and_the_layout_version_says_when_they_move(
    tmp_path: Path,
) -> None:
    model = llama()
    adapters = Adapters(model, 3)
    assert adapters.memory() == []
    adapters.load("a", examine(write(tmp_path / "a", 1, r=4)))
    version = adapters.layout_version
    (row,) = adapters.memory()
    # 2 layers, q 64 → 64 and v 64 → 32, both sides of rank 4 in float32, 3 places
    assert row.bytes == 3 * 2 * (64 + 64 + 64 + 32) * 4 * 4
    adapters.load("b", examine(write(tmp_path / "b", 2, r=2)))
    assert adapters.layout_version == version
    adapters.load("c", examine(write(tmp_path / "c", 3, r=5)))
    assert adapters.layout_version > version


class Packed(nn.Module):
    """A linear layer that is no nn.Linear, as quantised ones are."""

    def __init__(self, of: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = of.in_features, of.out_features
        self.register_buffer("packed", of.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.packed)


@torch.inference_mode()
def test_layers_of_another_class_are_adapted_as_well(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    model, tokens = llama(), torch.randint(0, VOCAB, (1, 9))
    for layer in model.model.layers:
        layer.self_attn.q_proj = Packed(layer.self_attn.q_proj)
    adapters = Adapters(model, 1)
    adapters.use(torch.full((9,), adapters.load("one", examine(folder))))
    torch.testing.assert_close(model(tokens).logits[0], expected(folder, tokens))


def change(folder: Path, **settings: Any) -> Path:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"peft_type": "LOHA"}, "peft_type LOHA"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
        ({"lora_bias": True}, "lora_bias"),
        ({"target_parameters": ["experts.up"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"of_the_future": "on"}, "of_the_future"),
    ],
)
def test_other_kinds_are_refused_by_name(
    settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = change(write(tmp_path, 1), **settings)
    with pytest.raises(InputError, match=says) as caught:
        examine(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_broken_directories_are_refused_in_one_line(tmp_path: Path) -> None:
    adapters = Adapters(llama(), 1)
    with pytest.raises(InputError, match=r"no adapter_config\.json"):
        adapters.load("one", examine(tmp_path))
    folder = write(tmp_path / "one", 1)
    save_file({"base_model.model.lm_head.weight": torch.ones(2, 2)}, folder / TENSORS)
    with pytest.raises(InputError, match="save_embedding_layers=False"):
        adapters.load("one", examine(folder))
    (folder / TENSORS).write_bytes(b"garbage")
    with pytest.raises(InputError, match="cannot be read"):
        adapters.load("one", examine(folder))
    (folder / TENSORS).unlink()
    with pytest.raises(InputError, match=r"no adapter_model\.safetensors"):
        adapters.load("one", examine(folder))
    assert adapters.names == adapters.loaded == ()


def test_an_adapter_of_another_model_is_refused_before_anything_changes(tmp_path: Path) -> None:
    model = llama()
    adapters = Adapters(model, 1)
    folder = write(tmp_path / "gpt2", 1, gpt2, target_modules=["c_attn"], fan_in_fan_out=True)
    with pytest.raises(InputError, match="made for another model"):
        adapters.load("one", examine(folder))
    folder = write(tmp_path / "wide", 1)
    path = folder / TENSORS
    tensors = load_file(path)
    save_file({n: t[:, :7].contiguous() if "lora_A" in n else t for n, t in tensors.items()}, path)
    with pytest.raises(InputError, match="as 7 → 64, but it is 64 → 64"):
        adapters.load("two", examine(folder))
    assert not any(isinstance(m, AdaptedLinear) for m in model.modules())


@torch.inference_mode()
def test_a_file_that_has_changed_is_not_half_another_adapter(tmp_path: Path) -> None:
    adapters = Adapters(llama(), 1)
    first = write(tmp_path / "a", 1)
    adapters.load("a", examine(first))
    adapters.load("b", examine(write(tmp_path / "b", 2)))
    write(first, 3)
    with pytest.raises(InputError, match="has changed since it was loaded; unload the adapter"):
        adapters.index("a")
    adapters.unload("a")
    adapters.load("a", examine(first))
    assert adapters.loaded == ("a",)


@torch.inference_mode()
def test_an_adapter_for_which_memory_ends_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = llama(), torch.randint(0, VOCAB, (1, 9))
    adapters = Adapters(model, 2)
    index = adapters.load("small", examine(write(tmp_path / "small", 1, r=2)))
    large = examine(write(tmp_path / "large", 2, r=6))
    put, calls = AdaptedLinear.put, 0

    def limited(self: AdaptedLinear, slot: int, pair: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise MemoryError
        return put(self, slot, pair)

    monkeypatch.setattr(AdaptedLinear, "put", limited)
    with pytest.raises(MemoryError):
        adapters.load("large", large)
    monkeypatch.undo()
    assert adapters.names == adapters.loaded == ("small",)
    for name in ("small", "large"):
        if name == "large":
            index = adapters.load("large", large)
        adapters.use(torch.full((9,), index))
        torch.testing.assert_close(model(tokens).logits[0], expected(tmp_path / name, tokens))


def test_numbers_beyond_the_dtype_are_refused(tmp_path: Path) -> None:
    folder = change(write(tmp_path, 1), lora_alpha=1e300)
    with pytest.raises(InputError, match="lora_alpha"):
        Adapters(llama(), 1).load("one", examine(folder))
