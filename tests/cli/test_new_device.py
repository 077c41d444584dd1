"""A new device is one table: every command that takes one works, and says what it assumes."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.hardware import catalogue

TABLE = """
[sources.sheet]
title = "Data sheet"
where = "Page 1"
url = "https://example.org/sheet"
date = "2026-11"

[[device]]
name = "NewChip-96GB"
vendor = "Newcomer"
architecture = "{architecture}"
target = ""
year = 2026

[device.peak_flops_per_second]
source = "sheet"
bf16 = 500e12
fp32 = 60e12

[device.memory]
source = "sheet"
kind = "HBM3E"
capacity_bytes = 103_079_215_104
bandwidth_bytes_per_second = 4e12

[device.chip]
source = "sheet"
unit = "core"
"""
LINKED = """
[[device.interconnects]]
source = "sheet"
link = "nvlink-4"
count = 12
"""
OWN = """
[[device.interconnects]]
source = "sheet"
link = "newlink"
count = 4

[device.node]
name = "Newcomer rack"
domain_size = 24
host_size = 4
network = "ethernet-800"
network_links = 24
source = "sheet"

[[device.modes]]
source = "sheet"
watts = 250.0
num_units = 50
clock_hz = 1e9
bandwidth_bytes_per_second = 2e12

[[link]]
name = "newlink"
kind = "fabric"
bandwidth_bytes_per_second = 77e9
source = "sheet"
"""
"""Its own kind of link, its node and a power mode, all in the one file."""
WHOLE = TABLE + "num_units = 100\nclock_hz = 2e9\n" + OWN
CLUSTER = ["--cluster", "16xNewChip-96GB", "--model", "Llama-3-8B", "--seq", "4096",
           "--global-batch", "64"]  # fmt: skip
SERVED = ["--model", "Llama-3.1-8B", "--gpu", "NewChip-96GB"]
COMMANDS = {
    "hardware": ["hardware", "--device", "newchip-96gb"],
    "roofline": ["roofline", "Llama-3-8B", "--device", "NewChip-96GB"],
    "predict training": ["predict", "training", *CLUSTER],
    "plan training": ["plan", "training", *CLUSTER, "--tokens", "1B"],
    "predict serving": ["predict", "serving", *SERVED, "--prompt", "512", "--answer", "128",
                        "--rate", "1"],
    "plan serving": ["plan", "serving", "--model", "Llama-3.1-8B", "--rate", "5", "--prompt",
                     "512", "--answer", "128"],
    "simulate serving": ["simulate", "serving", *SERVED, "--rate", "1", "--requests", "5"],
}  # fmt: skip


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Adds one table beside the others, as a reader of the README would."""

    def adds(table: str) -> None:
        facts = tmp_path / "facts"
        shutil.copytree(catalogue.FACTS / "devices", facts / "devices")
        for name in ("links.toml", "prices.toml"):
            shutil.copy(catalogue.FACTS / name, facts)
        (facts / "devices" / "newcomer.toml").write_text(table)
        known = functools.partial(catalogue.catalogue, facts)
        monkeypatch.setattr(catalogue, "catalogue", known)

    return adds


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_every_command_works_with_a_new_device(
    add, words: list[str], flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    add(TABLE.format(architecture="Hopper"))
    assert run([*words, *flags]) == 0, capsys.readouterr().err
    assert "NewChip-96GB" in capsys.readouterr().out or words[:2] == ["plan", "serving"]


@pytest.mark.parametrize(
    ("table", "node"),
    [(TABLE, "8 x NewChip-96GB joined by pcie-4-x16, 1 x ethernet-100"),
     (TABLE + LINKED, "8 x NewChip-96GB, 8 x infiniband-ndr")],
    ids=["alone", "linked"],
)  # fmt: skip
def test_what_is_not_on_record_is_a_stated_assumption(
    add, table: str, node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    add(table.format(architecture="Novel"))
    assert run(["predict", "training", *CLUSTER, "--json"]) == 0
    said = "\n".join(json.loads(capsys.readouterr().out)["assumed"])
    assert f"no node with NewChip-96GB is on record: assumed are {node}" in said
    assert "how many compute units NewChip-96GB has is not on record" in said
    assert "no published run with bf16 on Novel" in said
    given = ["--domain-size", "4", "--network", "200"]
    assert run(["predict", "training", *CLUSTER, *given, "--json"]) == 0
    assert "on record: assumed are" not in capsys.readouterr().out


def test_links_nodes_and_power_modes_are_part_of_the_one_table(
    add, capsys: pytest.CaptureFixture[str]
) -> None:
    add(WHOLE.format(architecture="Hopper"))
    assert run(["predict", "training", *CLUSTER, "--json"]) == 0
    said = "\n".join(json.loads(capsys.readouterr().out)["assumed"])
    assert "nodes as in Newcomer rack: 24 x NewChip-96GB, 24 x ethernet-800 (Data sheet)" in said
    assert run(["hardware", "--device", "newchip-96gb-250W", "--json"]) == 0
    part = json.loads(capsys.readouterr().out)["devices"][0]
    assert part["peer_bandwidth_bytes_per_second"] == 4 * 77e9
    assert part["peak_flops_per_second"]["bf16"] == 500e12 / 4
    assert part["memory"]["bandwidth_bytes_per_second"] == 2e12
    assert run(["hardware", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "newlink" in [one["name"] for one in listed["links"]]
    assert "Newcomer rack" in [one["name"] for one in listed["nodes"]]


def test_a_node_without_its_link_names_file_and_device(
    add, capsys: pytest.CaptureFixture[str]
) -> None:
    add((TABLE + OWN).format(architecture="Hopper").replace('"ethernet-800"', '"ether"'))
    assert run(["hardware", "--list"]) == 2
    said = capsys.readouterr().err
    assert "newcomer.toml" in said
    assert "NewChip-96GB: its node has no link 'ether'" in said


def test_the_bandwidth_of_the_domain_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = []
    for rate in ("450", "20"):
        words = ["predict", "training", "--cluster", "8xH100", "--model", "Llama-3-8B"]
        words += ["--seq", "4096", "--global-batch", "64", "--domain-bandwidth", rate, "--json"]
        assert run(words) == 0
        seconds.append(json.loads(capsys.readouterr().out)["step_seconds"])
    assert seconds[1] > 1.2 * seconds[0]


def test_serving_of_an_architecture_that_no_published_run_is_of_says_so(
    add, capsys: pytest.CaptureFixture[str]
) -> None:
    add(TABLE.format(architecture="Novel"))
    assert run(COMMANDS["predict serving"]) == 0
    assert "no published run of Novel" in " ".join(capsys.readouterr().out.split())
