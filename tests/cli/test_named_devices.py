"""What a device's name leaves open is said by every command that takes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.commands import COMMANDS
from ridgeline.cli.main import run
from ridgeline.cli.program import load_command

NAME = "L4-100W"
SAID = "100 W as named, where 72 W are printed: rates as printed"
SHAPE = ["--model", "llama-3.2-1b", "--seq", "512", "--global-batch", "64"]
TRAINED = ["--cluster", f"8x{NAME}", *SHAPE]
SERVED = ["--gpu", NAME, "--model", "llama-3.2-1b", "--rate", "0.5"]
LENGTHS = ["--prompt", "200", "--answer", "50"]
ASKED = {
    "hardware": ["--device", NAME],
    "roofline": ["llama-3.2-1b", "--device", NAME],
    "predict training": TRAINED,
    "predict memory": TRAINED,
    "predict scaling": ["--device", NAME, *SHAPE, "--devices", "1,2"],
    "predict serving": [*SERVED, *LENGTHS],
    "predict inference": ["--device", NAME, "--model", "resnet50"],
    "predict system": ["--cluster", "8xL4", "--vehicle", NAME, "--model", "resnet50"],
    "plan training": TRAINED,
    "plan serving": [*SERVED, *LENGTHS],
    "plan inference": ["--device", NAME, "--model", "resnet50", "--rate", "10"],
    "simulate serving": [*SERVED, "--requests", "3"],
    "simulate batching": [*SERVED, "--requests", "3"],
    "queue share": ["workloads.toml", "--device", NAME],
}
OPTIONS = {"--gpu", "--device", "--cluster", "--vehicle", "--prefill-gpu"}
NO_NAME = ("Where it runs.", "Weigh by GPU time", "What the place needs", "Nodes", "A cluster as")
"""How the help of such an option begins where no device of the catalogue is asked for."""
WORKLOADS = "[[workload]]\nname = 'small'\ngpu_share = 0.3\nmemory_bytes = 4e9\n"


def _texts(value: Any) -> list[str]:
    """Every text in a JSON document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("name", sorted(ASKED))
def test_power_that_changes_nothing_is_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("workloads.toml").write_text(WORKLOADS)
    words = [*name.split(), *ASKED[name]]
    assert run(words) == 0, capsys.readouterr().err
    assert SAID in " ".join(capsys.readouterr().out.split())
    assert run([*words, "--json"]) == 0
    assert any(SAID in text for text in _texts(json.loads(capsys.readouterr().out)))


def test_no_command_that_takes_a_device_is_left_out() -> None:
    for name in COMMANDS:
        for option in load_command(name).params:
            if OPTIONS.intersection(option.opts) and name not in ASKED:
                told = getattr(option, "help", None) or ""
                assert told.startswith(NO_NAME), f"{name} {option.opts}: {told}"


def test_another_fleet_says_what_its_own_devices_leave_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["simulate", "serving", "--gpu", "L4", "--model", "llama-3.2-1b", "--requests", "3"]
    assert run([*words, "--what-if", f"gpu={NAME}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"gpu={NAME}: {SAID}" in shown
    assert shown.count("an engine of the class") == 1, "said once of all fleets"


def test_devices_for_prompts_alone_say_it_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "serving", "--gpu", "L4", "--model", "llama-3.2-1b", "--requests", "3"]
    words += ["--replicas", "2", "--prefill-replicas", "1", "--prefill-gpu", NAME]
    assert run(words) == 0
    assert f"for prompts alone: {SAID}" in " ".join(capsys.readouterr().out.split())
