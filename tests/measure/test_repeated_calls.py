"""Scripts that call their model a few times and end: each call is made again and again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from ridgeline.cli.main import run
from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.repeated_calls import RepeatedCalls

pytestmark = pytest.mark.usefixtures("warm")

_MODEL = """
import time, torch

class Demo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(8, 8)

    def forward(self, x):
        time.sleep({seconds})
        return self.model(x){noise}

model = Demo().eval()
"""


def _demo(folder: Path, calls: int, *, before: str = "", noise: str = "") -> str:
    script = folder / "demo.py"
    script.write_text(
        _MODEL.format(seconds=0.02, noise=noise)
        + "with torch.no_grad():\n"
        + f"    {before}\n" * bool(before)
        + f"    for image in torch.randn({calls}, 4, 8):\n"
        + "        time.sleep(0.3)\n"
        + "        model(image)\n"
    )
    return str(script)


def _profile(script: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["doctor", "--json", "--", script]) == 0
    return cast("dict[str, Any]", json.loads(capsys.readouterr().out)["profile"])


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(1),
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(5, marks=pytest.mark.slow),
    ],
)
def test_a_demo_of_a_few_images_is_measured_by_calls_made_again_without_what_lies_between(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: int
) -> None:
    profile = _profile(_demo(tmp_path, calls), capsys)
    assert profile["kind"] == "inference"
    assert profile["steps"] >= 20
    assert 0.02 <= profile["step_seconds"]["p50"] < 0.2  # and never the 0.3 s in between
    assert profile["operator_calls"] > 0
    assert any("each call was made again and again" in one for one in profile["warnings"])


def test_a_demo_that_warms_up_what_it_wraps_is_measured_by_the_calls_of_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = _demo(tmp_path, 6, before="model.forward(torch.zeros(1, 8))")
    profile = _profile(script, capsys)
    assert profile["steps"] >= 20
    assert profile["step_seconds"]["p50"] >= 0.02  # the wrapped model does not sleep


@pytest.mark.slow
def test_calls_that_draw_are_made_as_often_as_the_script_makes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = _profile(_demo(tmp_path, 6, noise=" + torch.rand(8)"), capsys)
    assert 2 <= profile["steps"] < 6
    assert not any("made again" in one for one in profile["warnings"])


@pytest.mark.slow
def test_a_demo_of_one_image_that_cannot_be_repeated_is_told_to_take_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--", _demo(tmp_path, 1, noise=" + torch.rand(8)")]) == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert "called its model once: too few to measure; give it more inputs" in said


class _Recorded(nn.Module):
    """Counts its calls; does to its input what it is told."""

    def __init__(self, does: str) -> None:
        super().__init__()
        self.does, self.calls = does, 0

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> Any:
        self.calls += 1
        if self.does == "fails later" and self.calls > 1:
            raise RuntimeError("made once more")
        if self.does == "adds in place":
            x.add_(1)
        if self.does == "fills a cache":
            cache.append(x)
        if self.does == "draws for nothing":
            torch.rand(3)
        return "a word" if self.does == "says a word" else x.sum() + len(cache)


def _followed(does: str) -> tuple[_Recorded, torch.Tensor, list[torch.Tensor]]:
    module, x, cache = _Recorded(does), torch.ones(4), [torch.zeros(1)]
    seen = SimpleNamespace(is_it=lambda one: one is module)
    agent = SimpleNamespace(active=True, kind="inference", watched=SimpleNamespace(main=seen))
    repeats = RepeatedCalls(5)
    result = module(x, cache)
    repeats.follow(cast("Agent", agent), module, (x,), {"cache": cache}, result)
    return module, x, cache


@pytest.mark.parametrize("does", ["nothing", "draws for nothing"])
def test_a_call_that_returns_the_same_is_repeated_and_leaves_random_numbers_as_they_were(
    does: str,
) -> None:
    torch.manual_seed(0)
    if does == "draws for nothing":
        torch.rand(3)
    expected = torch.rand(1)
    torch.manual_seed(0)
    module, *_ = _followed(does)
    assert module.calls == 6
    assert torch.rand(1) == expected


@pytest.mark.parametrize("does", ["adds in place", "fills a cache", "says a word", "fails later"])
def test_a_call_that_leaves_something_behind_is_not_repeated_and_the_script_keeps_its_inputs(
    does: str,
) -> None:
    module, x, cache = _followed(does)
    assert module.calls == 2  # the script's, and the one that shows it
    assert torch.equal(x, torch.ones(4) + (does == "adds in place"))
    assert len(cache) == 1 + (does == "fills a cache")


@pytest.mark.slow
def test_a_demo_of_three_images_is_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    only = ["--only", "thread-count", "--only", "malloc-retain", "--only", "channels-last"]
    command = ["tune", "--budget", "90", *only, "--out", str(out), "--", _demo(tmp_path, 3)]
    assert run(command) == 0
    shown = capsys.readouterr().out
    ledger = json.loads((out / "ledger.json").read_text())
    assert "each call was made again" in " ".join(shown.split())
    assert all(row["rounds"] for row in ledger["rows"])
