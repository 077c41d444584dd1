"""docs/reference/recipe.md lists every key of a recipe, as the records have it; recipes parse."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from tests.records.recipe_page import PAGE, rewritten

from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_file import read_recipe

_DOCS = PAGE.parents[1]
_WITH_RECIPES = (
    PAGE,
    _DOCS / "how-to" / "fine-tune-with-lora.md",
    _DOCS / "how-to" / "distil.md",
    _DOCS / "how-to" / "train-an-image-classifier.md",
    _DOCS / "how-to" / "prune-a-model.md",
    _DOCS / "how-to" / "train-for-low-precision.md",
)
_RECIPES = [
    pytest.param(code, id=f"{page.stem} {number}")
    for page in _WITH_RECIPES
    for number, code in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL))
]


def test_the_tables_are_those_of_the_records() -> None:
    page = PAGE.read_text()
    assert page == rewritten(page), "run: python -m tests.records.recipe_page"


@pytest.mark.parametrize("code", _RECIPES)
def test_a_recipe_in_the_documents_is_read(code: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    if "[model]" in code:
        file.write_text(code)
        assert read_recipe(file).model.config
    else:  # a table to add
        (name,) = msgspec.toml.decode(code)
        (field,) = (f for f in msgspec.structs.fields(Recipe) if f.encode_name == name)
        msgspec.toml.decode(code, type=msgspec.defstruct("Part", [(name, field.type)]))
