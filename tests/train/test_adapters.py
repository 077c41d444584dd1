"""Adapters: what is trained, what it starts from, and that peft can load and merge it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.processes import run_ranks
from tests.train.tiny_models import write_config
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from ridgeline.compress.merging import merge
from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipeRun,
)
from ridgeline.records.recipe_compression import RecipeAdapter
from ridgeline.train.adapters import RankAllocation, adapt, save_adapter
from ridgeline.train.batch import Batch
from ridgeline.train.four_bit import NF4, FourBitLinear, dequantise, quantise
from ridgeline.train.loss import next_token
from ridgeline.train.model import fill, skeleton
from ridgeline.train.optimizers.build import build_optimizer
from ridgeline.train.ranks import Ranks, join, leave

KINDS = ("lora", "qlora", "dora", "adalora")
STEPS = 12


def recipe_of(base: str, kind: str, layout: Layout | None = None, **adapter: Any) -> Recipe:
    return Recipe(
        model=RecipeModel(config=base, checkpoint=base),
        data=RecipeData(seq=8),
        layout=layout or Layout(precision="fp32", compiled=False),
        optimizer=RecipeOptimizer(learning_rate=1e-2, final_learning_rate=1e-3, warmup_steps=0),
        adapter=RecipeAdapter(kind=kind, rank=4, alpha=8.0, **adapter),  # type: ignore[arg-type]
        run=RecipeRun(steps=STEPS),
    )


def batch_of(seed: int = 0) -> Batch:
    tokens = torch.randint(0, 96, (2, 9), generator=torch.Generator().manual_seed(seed))
    places = torch.arange(8).expand(2, 8)
    return Batch(input_ids=tokens[:, :-1], labels=tokens[:, 1:], position_ids=places)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    folder = tmp_path_factory.mktemp("adapters") / "base"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def ranks() -> Any:
    yield join(Layout())
    leave()


def adapted(recipe: Recipe, ranks: Ranks) -> Any:
    model = adapt(skeleton(recipe), recipe)
    fill([model], recipe, ranks)
    return model


def train(model: Any, recipe: Recipe, ranks: Ranks) -> list[float]:
    optimizer, allocation = build_optimizer([model], recipe, ranks), RankAllocation.of([model])
    losses = []
    for step in range(STEPS):
        loss = next_token()(model, batch_of())
        losses.append(loss.item())
        (loss / 16).backward()
        if allocation:
            allocation.before_update(0)
        optimizer.step()
        if allocation:
            allocation.after_update(step, moved=True)
        optimizer.zero_grad()
    return losses


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_adapter_learns_and_what_is_saved_can_be_merged(
    base: str, ranks: Ranks, tmp_path: Path, kind: str
) -> None:
    recipe = recipe_of(base, kind)
    model = adapted(recipe, ranks)
    plain = AutoModelForCausalLM.from_pretrained(base)
    tokens = batch_of().input_ids
    with torch.no_grad():
        start, own = model(input_ids=tokens).logits, plain(input_ids=tokens).logits
    # Four bits leave an error; every other adapter starts as the model that it adapts.
    torch.testing.assert_close(start, own, rtol=0, atol=0.2 if kind == "qlora" else 1e-5)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    assert all("lora_" in n for n, p in model.named_parameters() if p.requires_grad)
    losses = train(model, recipe, ranks)
    assert losses[-1] < losses[0] - 1.0
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)

    save_adapter(model, tmp_path, ranks)
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of names that transformers has deprecated
        merged: Any = PeftModel.from_pretrained(_unquantised(plain, model), str(tmp_path))
        merged = merged.merge_and_unload()
    with torch.no_grad():
        torch.testing.assert_close(
            merged(input_ids=tokens).logits, model(input_ids=tokens).logits, rtol=1e-4, atol=1e-5
        )
    if kind in {"lora", "dora"}:
        merge(Path(base), tmp_path, tmp_path / "merged")
        ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
        with torch.no_grad():
            found, wanted = ours(input_ids=tokens).logits, merged(input_ids=tokens).logits
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def _unquantised(plain: Any, model: Any) -> Any:
    """The base as the adapter saw it: with four bits, the weights that they stand for."""
    for name, module in model.named_modules():
        if isinstance(module, FourBitLinear):
            plain.get_submodule(name.removesuffix(".base_layer")).weight.data = module.weight
    return plain


def test_adalora_comes_down_to_its_budget(base: str, ranks: Ranks) -> None:
    recipe = recipe_of(base, "adalora")
    model = adapted(recipe, ranks)
    train(model, recipe, ranks)
    kept = sum(int((p != 0).sum()) for n, p in model.named_parameters() if "lora_E" in n)
    # Seven linear layers in each of two blocks, of rank 4 on average; they started with 6.
    assert kept == 4 * 14


def test_the_orthogonality_gradient_is_that_of_the_formula(base: str, ranks: Ranks) -> None:
    model = adapted(recipe_of(base, "adalora"), ranks)
    allocation = RankAllocation.of([model])
    assert allocation is not None
    allocation.before_update(0)
    matrices = {n: p for n, p in model.named_parameters() if "lora_A" in n or "lora_B" in n}
    away = []
    for name, matrix in matrices.items():
        product = matrix @ matrix.T if "lora_A" in name else matrix.T @ matrix
        away.append(torch.linalg.matrix_norm(product - torch.eye(6)))
    expected = torch.autograd.grad(0.5 * torch.stack(away).mean(), list(matrices.values()))
    for matrix, gradient in zip(matrices.values(), expected, strict=True):
        torch.testing.assert_close(matrix.grad, gradient)


def test_a_four_bit_base_takes_four_and_a_quarter_bits_a_weight(base: str, ranks: Ranks) -> None:
    model = adapted(recipe_of(base, "qlora"), ranks)
    layers = [module for module in model.modules() if isinstance(module, FourBitLinear)]
    assert len(layers) == 14
    bits = 8 * sum(p.nbytes for layer in layers for p in layer.parameters())
    assert bits == 4.25 * sum(layer.in_features * layer.out_features for layer in layers)
    assert model.get_output_embeddings().weight.dtype is torch.float32


def test_codes_are_those_of_torchaos_nf4() -> None:
    from torchao.quantization import NF4Tensor

    torch.manual_seed(0)
    weight = torch.randn(32, 128)
    packed, scales = quantise(weight, 64)
    theirs = NF4Tensor.from_tensor(weight, 64, 64)
    same = packed.flatten() == theirs.quantized_data
    # bf16 scales move a number across the border between two codes now and then.
    assert float(same.float().mean()) > 0.97
    error = (dequantise(packed, scales, torch.float32) - weight).norm() / weight.norm()
    assert float(error) < 1.05 * float(
        (theirs.get_original_weight() - weight).norm() / weight.norm()
    )
    exact = torch.tensor(NF4).repeat(4)[None] * 3.0
    torch.testing.assert_close(dequantise(*quantise(exact, 64), torch.float32), exact)


def test_the_gradient_through_four_bits_is_that_of_the_weight_they_stand_for() -> None:
    torch.manual_seed(0)
    layer = FourBitLinear(nn.Linear(32, 16))
    x = torch.randn(3, 5, 32, requires_grad=True)
    out = layer(x)
    expected = nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(out, expected)
    direction = torch.randn_like(out)
    (mine,) = torch.autograd.grad(out, x, direction)
    (theirs,) = torch.autograd.grad(expected, x, direction)
    torch.testing.assert_close(mine, theirs)


def test_named_targets_alone_are_adapted_and_unknown_ones_named(base: str, ranks: Ranks) -> None:
    model = adapted(recipe_of(base, "lora", targets=("q_proj", "v_proj")), ranks)
    trained = {
        n.split(".lora_")[0].rpartition(".")[2]
        for n, p in model.named_parameters()
        if p.requires_grad
    }
    assert trained == {"q_proj", "v_proj"}
    wrong = recipe_of(base, "lora", targets=("query",))
    with pytest.raises(InputError, match=r"linear layers of this model: .*q_proj"):
        adapt(skeleton(wrong), wrong)


@pytest.mark.parametrize(
    ("kind", "layout", "message"),
    [
        ("lora", Layout(tp=2), "layout: tp = 2 with adapter.kind lora"),
        ("qlora", Layout(pp=2), "layout: pp = 2 with adapter.kind qlora"),
        ("adalora", Layout(dp=2, fsdp=2, zero=3, global_batch=2), "needs them whole"),
    ],
)
def test_layouts_that_adapters_do_not_train_with_are_refused(
    base: str, kind: str, layout: Layout, message: str
) -> None:
    recipe = recipe_of(base, kind, layout)
    with pytest.raises(InputError, match=message):
        adapt(skeleton(recipe), recipe)


def test_layers_of_gpt2_that_are_stored_transposed_are_adapted_too(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, "gpt2"))
    recipe = recipe_of(config, "lora")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's: it sets fan_in_fan_out by itself
        model = adapt(skeleton(recipe), recipe)
    assert any("c_attn.lora_A" in name for name, _ in model.named_parameters())


def train_in_layouts(argument: dict[str, Any]) -> list[list[float]]:
    """Losses of a few steps of every kind and layout, on the same two micro-batches."""
    from ridgeline.train.parallel.plain import PlainPasses
    from ridgeline.train.parallel.sharding import shard, share_gradients

    courses = []
    for kind, layout in argument["cases"]:
        recipe = recipe_of(argument["base"], kind, layout)
        ranks = join(layout, timeout_seconds=60)
        model = adapt(skeleton(recipe), recipe)
        shard(model, recipe, ranks)
        fill([model], recipe, ranks)
        passes = PlainPasses(share_gradients(model, recipe, ranks), ranks, next_token())
        optimizer = build_optimizer([model], recipe, ranks)
        courses.append([])
        for _ in range(4):
            both = [batch_of(0), batch_of(1)]
            loss = passes.run(both if layout.dp == 1 else [both[ranks.index("data")]], 32)
            if layout.dp > 1:
                torch.distributed.all_reduce(loss, group=ranks.group("data"))
            courses[-1].append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        if argument["save"]:
            save_adapter(model, Path(argument["save"]) / f"{kind} {layout.zero}", ranks)
    leave()
    return courses


@pytest.mark.slow
@pytest.mark.multiprocess
def test_adapters_learn_under_ddp_and_fsdp_as_on_one_process(base: str, tmp_path: Path) -> None:
    def layout(**axes: Any) -> Layout:
        return Layout(precision="fp32", compiled=False, global_batch=4, micro_batch=2, **axes)

    function = "tests.train.test_adapters:train_in_layouts"
    kinds = ("lora", "qlora", "dora")
    cases = [(kind, layout()) for kind in kinds]
    (alone,) = run_ranks(1, function, {"base": base, "cases": cases, "save": ""})
    sharded = (layout(dp=2), layout(dp=2, fsdp=2, zero=3))
    cases = [(kind, each) for kind in kinds for each in sharded]
    argument = {"base": base, "cases": cases, "save": str(tmp_path)}
    for courses in run_ranks(2, function, argument):
        for (kind, _), course in zip(cases, courses, strict=True):
            assert course == pytest.approx(alone[kinds.index(kind)], rel=1e-5), kind
    for kind in kinds:
        config = json.loads((tmp_path / f"{kind} 3" / "adapter_config.json").read_text())
        assert config["r"] == 4
        assert (tmp_path / f"{kind} 3" / "adapter_model.safetensors").stat().st_size > 8192 * 4
