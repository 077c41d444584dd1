"""Neurons, heads and layers that are really gone: smaller models which transformers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, OPTConfig, Qwen3Config

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.compress.pruning.report import sparsity
from ridgeline.compress.pruning.structured.prune import prune_units
from ridgeline.compress.pruning.structured.units import Heads, chosen_heads, kept_heads
from ridgeline.errors import InputError
from ridgeline.records.scheme import Criterion, Pruning, Structure
from ridgeline.records.scheme_names import parse

_SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "qwen3": Qwen3Config(**_SIZES, head_dim=8, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=50, n_embd=32, n_layer=3, n_head=4, n_positions=32),
    "opt": OPTConfig(
        vocab_size=50, hidden_size=32, ffn_dim=48, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=32, word_embed_proj_dim=32,
    ),
}  # fmt: skip
TOKENS = torch.randint(0, 50, (6, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        torch.manual_seed(2)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder / name)
    return folder


def loaded(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def loss(model: Any) -> float:
    with torch.no_grad():
        return float(model(TOKENS, labels=TOKENS).loss)


def out_of(
    models: Path, name: str, out: Path, structure: Structure, criterion: Criterion, share: float
) -> Any:
    pruning = Pruning(structure=structure, criterion=criterion, share=share)
    prune_units(models / name, pruning, out, TOKENS)
    return loaded(out)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("criterion", ["magnitude", "wanda", "taylor"])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_left_computes_as_if_the_others_were_zero(
    models: Path, tmp_path: Path, name: str, criterion: Criterion
) -> None:
    small = out_of(models, name, tmp_path / "out", "neurons", criterion, 0.5)
    whole = loaded(models / name)
    by_name = dict(small.named_modules())
    for path, module in whole.named_modules():
        leaf = path.rpartition(".")[2]
        if leaf in {"down_proj", "fc2"} or path.endswith("mlp.c_proj"):
            kept = by_name[path].weight
            turned = leaf == "c_proj"
            own, kept = (module.weight.T, kept.T) if turned else (module.weight, kept)
            stays = (own.T[:, None] == kept.T).all(-1).any(1)
            assert int(stays.sum()) == kept.shape[1] == own.shape[1] // 2
            own.data[:, ~stays] = 0.0
    torch.testing.assert_close(logits(small), logits(whole), rtol=1e-4, atol=1e-4)


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("criterion", ["magnitude", "wanda", "taylor"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_whole_groups_of_heads_go_and_the_cache_shrinks_with_them(
    models: Path, tmp_path: Path, name: str, criterion: Criterion
) -> None:
    small = out_of(models, name, tmp_path / "out", "heads", criterion, 0.5)
    assert (small.config.num_attention_heads, small.config.num_key_value_heads) == (2, 1)
    assert small.config.head_dim == 8
    whole = loaded(models / name)
    for own, cut in zip(whole.model.layers, small.model.layers, strict=True):
        matrix, kept = own.self_attn.o_proj.weight, cut.self_attn.o_proj.weight
        stays = (matrix.T[:, None] == kept.T).all(-1).any(1)
        assert stays.view(2, 16).all(-1).sum() == 1  # one group of two heads, whole
        matrix.data[:, ~stays] = 0.0
    torch.testing.assert_close(logits(small), logits(whole), rtol=1e-4, atol=1e-4)


def without(model: Any, going: dict[int, list[int]], dim: int) -> Any:
    """A model whose listed heads add nothing."""
    blocks = next(m for p, m in model.named_modules() if p.endswith(".layers"))
    for layer, heads in going.items():
        attention = blocks[layer].self_attn
        output = attention.o_proj if hasattr(attention, "o_proj") else attention.out_proj
        for head in heads:
            output.weight.data[:, head * dim : (head + 1) * dim] = 0.0
    return model


@pytest.mark.parametrize(
    ("name", "listed", "left"),
    [
        ("llama", "0.0+0.1+1.2+1.3+2.0+2.1", (2, 1)),  # a whole group of each layer
        ("qwen3", "0.0+0.2+1.1+1.2+2.0+2.3", (2, 2)),  # one head of each group
        ("llama", "0.0+0.1+2.3", (4, 2)),  # other numbers in other layers: zero
        ("llama", "0.0+1.0+2.0", (4, 2)),  # three of four do not divide into the groups
    ],
)
def test_listed_heads_go_and_the_others_compute_as_before(
    models: Path, tmp_path: Path, name: str, listed: str, left: tuple[int, int]
) -> None:
    pruning = parse(f"heads-{listed}").pruning
    assert pruning is not None
    kept = prune_units(models / name, pruning, tmp_path / "out")
    assert bool(kept.notices) == (left == (4, 2))
    small = loaded(tmp_path / "out")
    found = small.config.num_attention_heads, getattr(small.config, "num_key_value_heads", left[1])
    assert found == left
    going: dict[int, list[int]] = {}
    for layer, head in pruning.listed:
        going.setdefault(layer, []).append(head)
    whole = without(loaded(models / name), going, 8)
    torch.testing.assert_close(logits(small), logits(whole), rtol=1e-4, atol=1e-4)


def test_the_same_number_of_heads_goes_from_every_group_where_groups_cannot() -> None:
    heads = Heads(query=12, kv=2, dim=4)
    kept = kept_heads(heads, 1 / 3)
    assert (kept.query, kept.kv) == (8, 2)
    worth = torch.arange(48.0).flip(0)
    query, kv = chosen_heads(worth, heads, kept)
    assert query.tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert kv.tolist() == [0, 1]
    with pytest.raises(InputError, match=r"shares that are: 0\.167, 0\.333"):
        kept_heads(heads, 0.4)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("criterion", ["wanda", "taylor"])
@pytest.mark.parametrize("name", CONFIGS)
def test_layers_that_go_are_those_that_change_least(
    models: Path, tmp_path: Path, name: str, criterion: Criterion
) -> None:
    # The second block is made to do nothing at all.
    model = loaded(models / name)
    block = next(m for p, m in model.named_modules() if p.endswith((".layers.1", ".h.1")))
    for path, parameter in block.named_parameters():
        if any(part in path for part in ("o_proj", "down_proj", "c_proj", "out_proj", "fc2")):
            parameter.data.zero_()
    model.save_pretrained(tmp_path / "model")
    small = out_of(tmp_path, "model", tmp_path / "out", "layers", criterion, 1 / 3)
    if criterion == "wanda":
        torch.testing.assert_close(logits(small), logits(model), rtol=1e-4, atol=1e-4)
    else:  # without another block the loss of a random model may even fall
        assert loss(small) <= loss(model) + 1e-4
    assert small.config.num_hidden_layers == 2
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())


def test_pruned_twice_is_the_same_bit_for_bit_and_kept_tensors_are_as_they_were(
    models: Path, tmp_path: Path
) -> None:
    for out in ("a", "b"):
        out_of(models, "llama", tmp_path / out, "neurons", "wanda", 0.25)
    a, b, before = (CheckpointFiles(p) for p in (tmp_path / "a", tmp_path / "b", models / "llama"))
    assert a.names == b.names
    for name in a.names:
        assert torch.equal(a.read(name), b.read(name))
        if a.shape(name) == before.shape(name):
            assert torch.equal(a.read(name), before.read(name))


@pytest.mark.parametrize(
    ("name", "wanted", "message"),
    [
        ("llama", {"structure": "heads", "criterion": "sparsegpt", "share": 0.5}, "does not rank"),
        ("llama", {"structure": "layers", "criterion": "magnitude", "share": 0.4}, "flows through"),
        ("llama", {"structure": "layers", "criterion": "wanda", "share": 0.1}, "one at least"),
        ("llama", {"structure": "neurons", "criterion": "magnitude", "share": 0.99}, "leaves 0 of"),
        ("gpt2", {"structure": "heads", "criterion": "magnitude", "share": 0.5}, "GPT2Block"),
        ("llama", {"structure": "heads", "criterion": "wanda", "share": 0.3}, "shares that are"),
        (
            "llama",
            {"structure": "heads", "criterion": "magnitude", "share": 0.0, "listed": ((0, 4),)},
            r"head 0\.4: the model has layers 0 to 2 of heads 0 to 3",
        ),
        (
            "llama",
            {"structure": "neurons", "criterion": "wanda", "share": 0.5, "scope": "global"},
            "one width",
        ),
    ],
)
def test_what_cannot_be_pruned_is_refused(
    models: Path, tmp_path: Path, name: str, wanted: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        prune_units(models / name, Pruning(**wanted), tmp_path / "out", TOKENS)
    assert not (tmp_path / "out").exists()


def test_calibration_that_is_missing_is_said(models: Path, tmp_path: Path) -> None:
    pruning = Pruning(structure="neurons", criterion="wanda", share=0.5)
    with pytest.raises(InputError, match="--calibration"):
        prune_units(models / "llama", pruning, tmp_path / "out")


def test_zeros_are_counted_once_and_what_is_gone_is_no_zero(models: Path, tmp_path: Path) -> None:
    small = out_of(models, "qwen3", tmp_path / "out", "neurons", "magnitude", 0.5)
    for _, module in small.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not small.lm_head:
            module.weight.data[:, 1::2] = 0.0
    small.save_pretrained(tmp_path / "sparse")
    found = sparsity(tmp_path / "sparse", before=models / "qwen3")
    linears = sum(m.weight.numel() for p, m in small.named_modules() if p.endswith("_proj"))
    everything = sum(p.numel() for p in small.parameters())  # the head is the embedding
    before = sum(p.numel() for p in loaded(models / "qwen3").parameters())
    counts = found.counts
    assert (counts.matrix_weights, counts.parameters) == (linears, everything)
    assert counts.share_of_matrices == 0.5
    assert counts.zeros == counts.matrix_zeros == linears // 2
    assert counts.two_of_four == counts.matrices == len(found.layers)
    assert found.removed == before - everything == 3 * 3 * 24 * 32
    assert found.share_gone == (linears // 2 + found.removed) / before
    assert all(layer.two_of_four and layer.share == 0.5 for layer in found.layers)
