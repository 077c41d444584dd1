"""Teachers, rounding and pruning of image classifiers, by their formulas and in a built model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from tests.train.images.pictures import CONFIG, as_arrays, small_recipe
from torch import Tensor, nn

from ridgeline.compress.rounding import to_nearest
from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_compression import RecipeQuantisation
from ridgeline.records.scheme_names import parse
from ridgeline.train.build import Built, build
from ridgeline.train.images.distillation import (
    attention_map_loss,
    feature_loss,
    map_pairs,
)
from ridgeline.train.images.loss import class_loss
from ridgeline.train.images.quantisation import (
    SearchedWeight,
    image_scheme,
    round_layers,
    rounded_layers,
)
from ridgeline.train.images.task import image_classification
from ridgeline.train.ranks import Ranks, join, leave
from ridgeline.train.task import LearningTask, logits_of
from ridgeline.train.watch.phases import Phases


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    yield join(Layout())
    leave()


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_arrays(tmp_path_factory.mktemp("arrays"), 64)


def built(recipe: Recipe, ranks: Ranks) -> tuple[LearningTask, Built]:
    task = image_classification(recipe, ranks, lambda _: None)
    return task, build(task.recipe, ranks, Phases(ranks.device))


@pytest.fixture
def teacher(tmp_path: Path, arrays: Path, ranks: Ranks) -> Path:
    """The folder of a classifier twice as wide and deep."""
    config = tmp_path / "wide"
    config.mkdir()
    wide = CONFIG | {"hidden_sizes": [16, 16], "depths": [2, 2]}
    (config / "config.json").write_bytes(msgspec.json.encode(wide))
    recipe = small_recipe(tmp_path / "t", arrays, model={"config": str(config)}, run={"seed": 5})
    task, found = built(recipe, ranks)
    task.save(found.passes.modules, tmp_path / "teacher")
    return tmp_path / "teacher"


ALL = {"hidden_weight": 1.0, "attention_weight": 1.0, "soft_weight": 0.7}


def objective_of(found: Built) -> Any:
    return found.passes._objective  # type: ignore[attr-defined]


def test_who_equals_the_teacher_has_the_labels_loss_alone(
    tmp_path: Path, arrays: Path, ranks: Ranks
) -> None:
    task, found = built(small_recipe(tmp_path, arrays), ranks)
    task.save(found.passes.modules, tmp_path / "same")
    distillation = ALL | {"teacher": str(tmp_path / "same")}
    model = {"checkpoint": str(tmp_path / "same")}
    recipe = small_recipe(tmp_path, arrays, distillation=distillation, model=model)
    task, found = built(recipe, ranks)
    (student,) = found.passes.modules
    student.eval()
    (batch, *_) = next(task.feed)
    loss = objective_of(found)(student, batch)
    hard = class_loss(logits_of(student(batch.pixels)), batch, 0.0)
    torch.testing.assert_close(loss, 0.3 * hard, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_narrower_student_learns_projections_that_are_not_saved(
    tmp_path: Path, arrays: Path, ranks: Ranks, teacher: Path
) -> None:
    recipe = small_recipe(tmp_path, arrays, distillation=ALL | {"teacher": str(teacher)})
    task, found = built(recipe, ranks)
    (student,) = found.passes.modules
    added = [n for n, _ in student.named_parameters() if "projection" in n]
    assert len(added) == 1
    batches = next(task.feed)
    found.passes.run(batches, task.feed.targets)
    assert student.get_parameter(added[0]).grad is not None
    task.save([student], tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert not [name for name in saved if "projection" in name]


def test_maps_are_compared_by_the_papers_formulas() -> None:
    torch.manual_seed(0)
    mine, theirs = torch.rand(3, 4, 6, 6), torch.rand(3, 8, 3, 3)
    pairs = map_pairs((mine, mine), (theirs, theirs, theirs))
    assert [tuple(one.shape) for one in pairs[0]] == [(3, 9, 4), (3, 9, 8)]
    counted = torch.tensor([1, 1, 0])

    def attention(x: Tensor) -> Tensor:
        q = x.square().sum(1).flatten(1)
        return q / q.norm(dim=1, keepdim=True)

    pooled = nn.functional.avg_pool2d(mine, 2)
    expected = (attention(pooled) - attention(theirs)).square().sum(1)[:2].sum()
    torch.testing.assert_close(attention_map_loss(pairs, counted), expected)
    layers = nn.Module()
    layers.add_module("map0", nn.Linear(4, 8, bias=False))
    weight = layers.get_parameter("map0.weight")
    projected = nn.functional.conv2d(pooled, weight[:, :, None, None])
    sizes = theirs.square().sum((1, 2, 3))
    expected = ((projected - theirs).square().sum((1, 2, 3)) / sizes)[:2].sum()
    torch.testing.assert_close(feature_loss(pairs, counted, layers), expected)


def test_a_teacher_of_other_classes_is_refused(
    tmp_path: Path, arrays: Path, ranks: Ranks, teacher: Path
) -> None:
    tables = {"distillation": {"teacher": str(teacher)}, "images": {"classes": 12}}
    config = tmp_path / "twelve"
    config.mkdir()
    (config / "config.json").write_bytes(msgspec.json.encode(CONFIG | {"num_labels": 12}))
    recipe = small_recipe(tmp_path, arrays, model={"config": str(config)}, **tables)
    with pytest.raises(InputError, match="tells 10 classes apart and the images have 12"):
        built(recipe, ranks)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_trained_on_the_levels_that_compression_saves(bits: int) -> None:
    form = parse(f"w{bits}a8-int8").weights
    assert form is not None
    torch.manual_seed(bits)
    weight = torch.randn(6, 5, 3, 3) * torch.rand(6, 1, 1, 1)
    rounding = SearchedWeight(form, 6)
    rounding.search(weight)
    saved = to_nearest(weight.flatten(1), form, "layer").dequantised().view_as(weight)
    torch.testing.assert_close(rounding(weight), saved, rtol=1e-5, atol=1e-6)
    assert all(len(row.unique()) <= 2**bits for row in rounding(weight))


def test_rounding_follows_its_steps_and_leaves_named_layers_whole(
    tmp_path: Path, arrays: Path, ranks: Ranks
) -> None:
    wanted = {"scheme": "w4a8-int8-rtn", "begin_step": 1, "freeze_step": 3, "whole": ["*embedder*"]}
    task, found = built(small_recipe(tmp_path, arrays, quantisation=wanted), ranks)
    (module,) = found.passes.modules
    layers = list(rounded_layers(module))
    plain = [n for n, m in module.named_modules() if type(m) is nn.Conv2d]
    assert plain
    assert all("embedder" in name for name in plain)
    (part,) = [one for one in found.parts if type(one).__name__ == "RoundedImages"]
    (batch, *_) = next(task.feed)
    for step in range(4):
        module.train()
        part.before_step(step)
        module(batch.pixels)
        assert all(layer.rounds == (step >= 1) for layer in layers)
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    assert not any(norm.training for norm in norms)
    assert all(int(layer.input_rounding.seen) == 2 for layer in layers)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w4a16-rtn-g32", "is for language models"),
        ("w8a8-int8-cle", "finished model"),
        ("w4a8-int8-adaround", "rounds by adaround"),
        ("w4a8-int8", "rounds by gptq and not to nearest.*w4a8-int8-rtn"),
        ("w8a8-int8-dynamic", "from each batch"),
    ],
)
def test_schemes_that_training_cannot_follow_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        image_scheme(name)


def test_a_model_without_layers_to_round_is_refused() -> None:
    with pytest.raises(InputError, match="no convolution or linear layer"):
        round_layers(nn.Sequential(nn.ReLU()), RecipeQuantisation(scheme="w8a8-int8-rtn"))


def test_pruning_takes_its_share_of_every_layer_but_the_head(
    tmp_path: Path, arrays: Path, ranks: Ranks
) -> None:
    pruning = {"share": 0.5, "begin_step": 0, "end_step": 0}
    _, found = built(small_recipe(tmp_path, arrays, pruning=pruning), ranks)
    (module,) = found.passes.modules
    (part,) = [one for one in found.parts if type(one).__name__ == "GradualPruning"]
    assert "50.0% zeros" in part.before_step(0)
    shares = {
        name: float((m.weight == 0).float().mean())
        for name, m in module.named_modules()
        if isinstance(m, nn.Conv2d | nn.Linear)
    }
    *others, head = shares.values()
    assert others == pytest.approx([0.5] * len(others), abs=0.01)
    assert head < 0.01
