"""Every printed figure of the page of figures, recomputed by the command that stands beside it."""

from __future__ import annotations

import functools
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run

FILE = Path(__file__).parents[1] / "docs" / "site" / "figures.toml"
FIGURES: list[dict[str, Any]] = tomllib.loads(FILE.read_text())["figure"]
AGREES = 0.03
"""How far ours may be from a printed figure of two or three digits, as a share."""


@pytest.mark.parametrize("figure", FIGURES, ids=[one["says"] for one in FIGURES])
def test_the_command_beside_a_figure_gives_it(
    figure: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(figure["command"])[1:]
    assert run([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    steps = [int(word) if word.isdecimal() else word for word in figure["at"].split(".")]
    found = functools.reduce(lambda part, step: part[step], steps, answer) * figure["times"]
    assert found == pytest.approx(figure["ours"], rel=2e-3)


@pytest.mark.parametrize("figure", FIGURES, ids=[one["says"] for one in FIGURES])
def test_a_figure_that_is_not_ours_says_why(figure: dict[str, Any]) -> None:
    agrees = abs(figure["ours"] / figure["printed"] - 1.0) <= AGREES
    assert agrees or len(figure["why"]) > 40
