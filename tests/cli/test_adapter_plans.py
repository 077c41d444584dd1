"""`predict training` and `plan training` with adapters and other optimizers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.records.recipe_file import read_recipe

ASKED = ("--model", "Llama-3-8B", "--seq", "2048", "--global-batch", "16")
ON_ONE = ("predict", "training", *ASKED, "--device", "RTX4090", "--recompute", "full", "--json")


def memory_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, float]:
    assert run([*ON_ONE, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    terms: dict[str, float] = found["memory"]["stages"][0]["terms"]
    return terms | {"all": found["memory"]["peak_bytes"]}


def test_a_card_of_24_gigabytes_trains_eight_billion_weights_in_four_bits_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, lora, qlora = (
        memory_of(capsys, *options)
        for options in ((), ("--adapter", "lora"), ("--adapter", "qlora"))
    )
    assert qlora["all"] < 0.5 * 25.8e9 < lora["all"] < 25.8e9 < whole["all"]


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"), [("adamw", 8.0), ("adamw8bit", 2.03125), ("lion", 4.0)]
)
def test_an_optimizer_takes_what_it_keeps_of_each_weight(
    optimizer: str, bytes_each: float, capsys: pytest.CaptureFixture[str]
) -> None:
    terms = memory_of(capsys, "--optimizer", optimizer)
    assert terms["optimizer"] == pytest.approx(bytes_each * 8.03e9, rel=0.001)
    halved = memory_of(capsys, "--optimizer", optimizer, "--weights", "bf16")
    assert halved["master"] == 0.0
    assert halved["gradients"] == pytest.approx(2.0 * 8.03e9, rel=0.001)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--adapter-rank", "8"), "goes with --adapter; add --adapter lora"),
        (("--adapter", "lora", "--adapter-rank", "0"), "rank is 0; it must be 1 or more"),
        (("--adapter", "lora", "--adapter-targets", "q,w9"), "'w9' is no linear layer"),
        (("--optimizer", "adamm"), "--optimizer adamm: use one of adamw,"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ON_ONE, *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("software", "splits"), [("torch", False), ("megatron", True)])
def test_a_plan_splits_adapted_layers_where_its_software_can(
    software: str, splits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", "training", *ASKED, "--cluster", "8xH100", "--adapter", "lora"]
    assert run([*asked, "--software", software, "--json"]) == 0
    knobs = json.loads(capsys.readouterr().out)["knobs"]
    tensor = {one["value"] for one in knobs if one["knob"] == "tp"}
    assert (len(tensor) > 1) is splits


def test_a_plan_that_does_not_fit_names_the_adapters_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plan", "training", *ASKED, "--cluster", "1xRTX4090"]) == 2
    assert "what --adapter qlora trains in place of the weights" in capsys.readouterr().err


def test_a_recipe_names_layers_as_its_model_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", "training", *ASKED, "--cluster", "2xA100", "--adapter", "lora"]
    assert run([*asked, "--adapter-targets", "q,v", "--write", str(tmp_path / "recipe.toml")]) == 2
    assert "--adapter-targets q_proj,v_proj" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_the_recipe_of_a_plan_trains_its_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.toml"
    asked = ["plan", "training", *ASKED, "--cluster", "2xA100", "--adapter", "qlora"]
    options = ["--adapter-rank", "32", "--adapter-targets", "q_proj,v_proj", "--write", str(path)]
    assert run([*asked, *options, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    recipe = read_recipe(path)
    assert recipe.adapter is not None
    assert (recipe.adapter.kind, recipe.adapter.rank) == ("qlora", 32)
    assert recipe.adapter.targets == ("q_proj", "v_proj")
    assert recipe.precision.weights == "bf16"
    assert recipe.layout.tp == recipe.layout.pp == 1
    assert {one["framework"] for one in plan["launch"]} == {"deepspeed", "fsdp"}
    for one in plan["launch"]:
        if one["framework"] == "deepspeed":
            assert '"lr": 0.0002' in one["files"]["ds_config.json"]
