"""A recipe comes back as it was written; a bad one names the file and the key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.plan.tasks import a_task

from ridgeline.errors import InputError
from ridgeline.plan.training.plan import plan_task
from ridgeline.plan.training.recipe import recipe_of
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipeRun,
    RecipeSource,
)
from ridgeline.records.recipe_compression import RecipeDistillation, RecipeTeacher
from ridgeline.records.recipe_file import anchored, read_recipe, write_recipe

SHORT = Recipe(
    model=RecipeModel(config="gpt2"),
    data=RecipeData(path="a", seq=64),
    optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    task = a_task("8xH100", global_batch=8, seq=512)
    return recipe_of(plan_task(task, tokens=1e9), "small", task.model, task.cluster)


def test_a_recipe_comes_back_as_it_was_written(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "recipe.toml"
    write_recipe(path, recipe)
    assert read_recipe(path) == recipe
    assert [one.name for one in path.parent.iterdir()] == ["recipe.toml"]


def test_it_holds_the_plan_and_leaves_the_data_to_the_user(recipe: Recipe) -> None:
    assert recipe.model.config == "small"
    assert recipe.data.path == ""
    assert recipe.data.tokens == 1e9
    assert recipe.layout.num_devices == 8
    assert recipe.optimizer.learning_rate == 3e-4
    assert recipe.optimizer.final_learning_rate == 3e-5
    assert recipe.cluster.devices == "8xH100-SXM-80GB"
    assert recipe.prediction is not None
    assert recipe.prediction.steps == -(-int(1e9) // (8 * 512))


def test_without_tokens_there_is_no_null_in_the_file(tmp_path: Path) -> None:
    task = a_task("8xH100", global_batch=8, seq=512)
    path = tmp_path / "recipe.toml"
    write_recipe(path, recipe_of(plan_task(task), "small", task.model, task.cluster))
    assert "tokens =" not in path.read_text()
    assert read_recipe(path).data.tokens is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("micro_batch", "micro_bach", "micro_bach"),
        ("dp = ", "dp = 3#", "multiple of dp x micro-batch|does not divide"),
        ("[optimizer]", "[optimiser]", "optimiser"),
        ('precision = "bf16"', 'precision = "bf61"', "bf61"),
        ("[layout]", "[layout", "layout|table"),
    ],
)
def test_a_bad_recipe_names_the_file_and_the_key(
    recipe: Recipe, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "recipe.toml"
    write_recipe(path, recipe)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        read_recipe(path)
    assert "recipe.toml" in str(caught.value)


def test_a_missing_recipe_and_a_folder_that_cannot_be_written(
    recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_recipe(tmp_path / "gone.toml")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"recipe\.toml"):
        write_recipe(tmp_path / "file" / "recipe.toml", recipe)


def test_teachers_in_turn_come_back_and_are_found_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    stages = (RecipeTeacher(teacher="large", steps=3), RecipeTeacher(teacher="hub/x", steps=4))
    given = msgspec.structs.replace(SHORT, distillation=RecipeDistillation(stages=stages))
    write_recipe(tmp_path / "recipe.toml", given)
    assert read_recipe(tmp_path / "recipe.toml") == given
    found = anchored(given, tmp_path).distillation
    assert found is not None
    assert [one.teacher for one in found.stages] == [str(tmp_path / "large"), "hub/x"]


def test_teachers_in_turn_say_how_long_the_run_is_where_nothing_else_does() -> None:
    stages = (RecipeTeacher(teacher="large", steps=3), RecipeTeacher(teacher="x", steps=4))
    taught = RecipeDistillation(stages=stages)
    silent = msgspec.structs.replace(SHORT, run=RecipeRun(), distillation=taught)
    assert (silent.steps, msgspec.structs.replace(silent, distillation=None).steps) == (7, None)


def test_relative_paths_are_found_beside_the_recipe_and_names_stay(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    recipe = Recipe(
        model=RecipeModel(config="gpt2"),
        data=RecipeData(path="texts", seq=64, sources=(RecipeSource(path="texts"),)),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
    )
    found = anchored(recipe, tmp_path)
    assert found.data.path == found.data.sources[0].path == str(tmp_path / "texts")
    assert found.model.config == "gpt2"


def test_a_value_set_from_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    write_recipe(path, SHORT)
    given = ["data.path=/b", "layout.dp=2", "layout.global_batch=4", "run.steps=7"]
    new = read_recipe(path, given)
    assert new.data is not None
    assert (new.data.path, new.layout.dp, new.run.steps) == ("/b", 2, 7)


def test_a_value_set_from_the_command_line_mends_one_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    write_recipe(path, SHORT)
    path.write_text(path.read_text().replace('precision = "bf16"', 'precision = "nvfp4"'))
    with pytest.raises(InputError, match=r"recipe\.toml: .*nvfp4"):
        read_recipe(path)
    assert read_recipe(path, ["layout.precision=fp32"]).layout.precision == "fp32"
    with pytest.raises(InputError, match=r"recipe\.toml with run\.steps=7: .*nvfp4"):
        read_recipe(path, ["run.steps=7"])


@pytest.mark.parametrize(
    ("assignment", "named"),
    [("run.step=7", "step"), ("steps", "TABLE.KEY"), ("run.steps=many", "run.steps=many")],
)
def test_a_value_that_cannot_be_set_is_named(assignment: str, named: str, tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipe.toml", SHORT)
    with pytest.raises(InputError, match=named) as caught:
        read_recipe(tmp_path / "recipe.toml", [assignment])
    assert "recipe.toml" not in str(caught.value)
