"""The page of which families are served says of the installed transformers what is so."""

from __future__ import annotations

import re

import pytest
import transformers
from bench import model_families

ROWS = {
    cells[0]: cells[1]
    for line in model_families.PAGE.read_text().splitlines()
    if line.startswith("| ") and (cells := [one.strip() for one in line.split("|")[1:-1]])
    if cells[0] != "family"
}


def test_the_page_has_every_causal_family_of_its_transformers() -> None:
    [version] = re.findall(r"^transformers (\d\S*)", model_families.PAGE.read_text(), re.M)
    if transformers.__version__ != version:
        pytest.skip(f"the page is of transformers {version}")
    assert sorted(ROWS) == model_families.families()


def test_a_family_that_is_refused_is_what_the_page_says() -> None:
    family = "deepseek_v32"
    assert model_families.shown(model_families.ask(family).served, family) == ROWS[family]


@pytest.mark.slow
def test_every_family_is_what_the_page_says() -> None:
    found = {
        family: model_families.shown(model_families.ask(family).served, family) for family in ROWS
    }
    assert found == ROWS
