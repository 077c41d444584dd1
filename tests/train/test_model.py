"""The empty model, and where its weights come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.train.tiny_models import CONFIGS, write_config
from transformers import AutoModelForCausalLM

from ridgeline.errors import InputError
from ridgeline.models import preset, preset_names
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipeRun,
)
from ridgeline.train.model import fill, hf_config, skeleton
from ridgeline.train.parallel.tensor import plan_of
from ridgeline.train.ranks import Ranks, join, leave

FAMILIES = sorted(CONFIGS)


@pytest.fixture
def alone() -> Iterator[Ranks]:
    yield join(Layout(precision="fp32"))
    leave()


def recipe_of(config: str, checkpoint: str = "", seed: int = 0) -> Recipe:
    return Recipe(
        model=RecipeModel(config=config, checkpoint=checkpoint),
        data=RecipeData(path="none", seq=8),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
        run=RecipeRun(seed=seed),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_skeleton_has_no_weights_but_real_buffers(family: str, tmp_path: Path) -> None:
    model = skeleton(recipe_of(str(write_config(tmp_path, family))))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not any(buffer.is_meta for buffer in model.buffers())
    head = model.get_output_embeddings().weight
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    assert (head is model.get_input_embeddings().weight) == tied


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_have_the_spread_that_the_model_asks_for(
    family: str, tmp_path: Path, alone: Ranks
) -> None:
    recipe = recipe_of(str(write_config(tmp_path, family)))
    model = skeleton(recipe)
    fill([model], recipe, alone)
    torch.manual_seed(0)
    theirs = dict(AutoModelForCausalLM.from_config(hf_config(recipe.model)).named_parameters())
    mine = dict(model.named_parameters())
    assert mine.keys() == theirs.keys()
    for name, weight in mine.items():
        # Both are samples of one distribution: n values tell its deviation to 1 / √(2 n).
        spread = 5.0 / weight.numel() ** 0.5
        deviation = float(theirs[name].detach().std(correction=0))
        found = weight.detach()
        assert float(found.std(correction=0)) == pytest.approx(deviation, rel=spread), name
        assert float(found.mean()) == pytest.approx(float(theirs[name].detach().mean()), abs=0.01)


def test_weights_depend_on_seed_and_name_alone(tmp_path: Path, alone: Ranks) -> None:
    recipe = recipe_of(str(write_config(tmp_path, "llama")))
    first, again, other = (skeleton(recipe) for _ in range(3))
    fill([first], recipe, alone)
    torch.rand(17)
    fill([again], recipe, alone)
    fill([other], recipe_of(recipe.model.config, seed=1), alone)
    layers = [layer.mlp.up_proj.weight for layer in first.model.layers]
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert not torch.equal(layers[0], layers[1])


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", ["one file", "several files"])
def test_a_checkpoint_gives_what_from_pretrained_gives(
    family: str, shards: str, tmp_path: Path, alone: Ranks
) -> None:
    config = str(write_config(tmp_path, family))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(hf_config(RecipeModel(config=config)))
    folder = tmp_path / "checkpoint"
    model.save_pretrained(folder, max_shard_size="5GB" if shards == "one file" else "30KB")
    assert (folder / "model.safetensors").exists() == (shards == "one file")
    theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    recipe = recipe_of(config, str(folder))
    mine = skeleton(recipe)
    fill([mine], recipe, alone)
    assert mine.state_dict().keys() == theirs.keys()
    for name, weight in mine.state_dict().items():
        assert torch.equal(weight, theirs[name]), name


def test_a_checkpoint_of_the_bare_model_is_read_under_its_prefix(
    tmp_path: Path, alone: Ranks
) -> None:
    config = str(write_config(tmp_path, "llama-tied"))
    model = AutoModelForCausalLM.from_config(hf_config(RecipeModel(config=config)))
    model.model.save_pretrained(tmp_path / "bare")
    recipe = recipe_of(config, str(tmp_path / "bare"))
    mine = skeleton(recipe)
    fill([mine], recipe, alone)
    assert torch.equal(mine.lm_head.weight, model.lm_head.weight)
    assert torch.equal(mine.model.norm.weight, model.model.norm.weight)


def test_a_checkpoint_without_a_weight_is_refused_by_its_name(tmp_path: Path, alone: Ranks) -> None:
    config = str(write_config(tmp_path, "llama"))
    model = AutoModelForCausalLM.from_config(hf_config(RecipeModel(config=config)))
    model.model.save_pretrained(tmp_path / "bare")
    recipe = recipe_of(config, str(tmp_path / "bare"))
    with pytest.raises(InputError, match=r"bare: has no weight for lm_head.weight"):
        fill([skeleton(recipe)], recipe, alone)


def test_a_compressed_checkpoint_is_refused_as_that(tmp_path: Path, alone: Ranks) -> None:
    config = str(write_config(tmp_path, "llama"))
    model = AutoModelForCausalLM.from_config(hf_config(RecipeModel(config=config)))
    layer = "model.layers.0.self_attn.q_proj.weight"
    tensors = {f"{n}_packed" if n == layer else n: one for n, one in model.state_dict().items()}
    (tmp_path / "packed").mkdir()
    save_file(
        tensors | {f"{layer}_scale": torch.ones(32, 1)}, tmp_path / "packed/model.safetensors"
    )
    recipe = recipe_of(config, str(tmp_path / "packed"))
    with pytest.raises(InputError, match="packed: its weights are compressed"):
        fill([skeleton(recipe)], recipe, alone)


def test_a_checkpoint_of_other_sizes_is_refused_by_the_weight(tmp_path: Path, alone: Ranks) -> None:
    config = str(write_config(tmp_path, "llama"))
    other = hf_config(RecipeModel(config=config))
    other.intermediate_size = 64
    AutoModelForCausalLM.from_config(other).save_pretrained(tmp_path / "wide")
    recipe = recipe_of(config, str(tmp_path / "wide"))
    with pytest.raises(InputError, match=r"gate_proj.weight is of shape \(64, 32\)"):
        fill([skeleton(recipe)], recipe, alone)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path, alone: Ranks) -> None:
    recipe = recipe_of(str(write_config(tmp_path, "llama")), str(tmp_path))
    with pytest.raises(InputError, match=r"neither model.safetensors nor its index"):
        fill([skeleton(recipe)], recipe, alone)


@pytest.mark.parametrize(
    ("name", "kind"), [("gpt2", "gpt2"), ("llama3-8b", "llama"), ("mixtral-8x7b", "mixtral")]
)
def test_presets_are_models_of_transformers(name: str, kind: str) -> None:
    config = hf_config(RecipeModel(config=name))
    assert config.model_type == kind
    assert not config.use_cache


def test_real_sizes_make_a_skeleton_without_memory() -> None:
    model = skeleton(recipe_of("llama3-70b"))
    assert sum(parameter.numel() for parameter in model.parameters()) > 70e9


def test_what_is_no_causal_language_model_is_refused() -> None:
    with pytest.raises(InputError, match="causal language models"):
        hf_config(RecipeModel(config="bert-base"))


def test_a_family_without_a_plan_cannot_be_split_over_ranks(tmp_path: Path) -> None:
    model = skeleton(recipe_of(str(write_config(tmp_path, "gpt2"))))
    with pytest.raises(InputError, match=r"no tensor-parallel plan for 'gpt2' models; use layout"):
        plan_of(model)


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    "name", ["llama3-8b", "Mixtral-8x7B", "Qwen3-8B", "Qwen3-30B-A3B", "Mistral-7B-v0.3"]
)
def test_the_plans_of_common_families_are_known(name: str) -> None:
    assert "colwise" in plan_of(skeleton(recipe_of(name))).values()


def test_every_decoder_preset_is_a_model_of_transformers() -> None:
    decoders = [name for name in preset_names() if preset(name).kind == "decoder"]
    refused = []
    for name in decoders:
        try:
            hf_config(RecipeModel(config=name))
        except InputError as error:
            refused.append(str(error))
    assert len(refused) < len(decoders) / 10, refused


def test_sizes_alone_are_refused_with_what_to_give() -> None:
    with pytest.raises(InputError, match=r"config\.json with its model_type"):
        hf_config(RecipeModel(config="layers=2,hidden=64,heads=4,vocab=300"))
