"""Machines by the names of clouds and makers, where a device or a cluster is asked for."""

from __future__ import annotations

import json
import tomllib

import pytest

from ridgeline.cli.main import run
from ridgeline.hardware.catalogue import FACTS, catalogue, device
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.hardware.instances import instance, instances


def test_every_machine_has_devices_of_the_catalogue() -> None:
    for one in instances():
        assert one.device in catalogue().devices, one.names
        assert one.count >= 1
        for name in one.names:
            found = device(name)
            assert found.name == one.device, f"{name} is a device of another kind, too"
            assert found.assumed == [one.said(name)]


@pytest.mark.parametrize(
    ("name", "count", "part"),
    [
        ("ml.g5.12xlarge", 4, "A10G"),
        ("Standard_ND96isr_H100_v5", 8, "H100-SXM-80GB"),
        ("ND96amsr A100 v4", 8, "A100-SXM-80GB"),
        ("NVIDIA DGX H200", 8, "H200-SXM-141GB"),
        ("A3-MEGAGPU-8G", 8, "H100-SXM-80GB"),
        ("Standard_NC80adis_H100_v5", 2, "H100-NVL-94GB"),
        ("p6-b300.48xlarge", 8, "B300"),
        ("DGX A100 320GB", 8, "A100-SXM-40GB"),
        ("DGX A100", 8, "A100-SXM-80GB"),
    ],
)
def test_names_are_read_as_people_write_them(name: str, count: int, part: str) -> None:
    found = instance(name)
    assert found is not None
    assert (found.count, found.device) == (count, part)


def test_every_row_names_a_source_and_every_source_has_a_row() -> None:
    table = tomllib.loads((FACTS / "instances.toml").read_text())
    assert {row["source"] for row in table["instance"]} == set(table["sources"])


def test_a_cluster_of_machines_is_all_devices_in_them() -> None:
    whole = parse_cluster("2 x p4d.24xlarge")
    assert whole.num_devices == 16
    assert whole.device.name == "A100-SXM-40GB"
    assert whole.assumed[0] == "2 x p4d.24xlarge has 16 x A100-SXM-40GB"
    assert not any("one of them is meant" in said for said in whole.assumed)
    assert parse_cluster("16xA100-SXM-40GB").assumed == whole.assumed[1:]


def test_a_second_name_in_brackets_must_be_one_of_the_same_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["hardware", "--device", "TPU v6e (Trillium)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["name"] == "TPU-v6e"
    assert run(["hardware", "--device", "TPU v5e (Trillium)"]) == 2
    assert "unknown device" in capsys.readouterr().err


def test_what_one_device_of_a_machine_is_meant_for_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["roofline", "llama-3.2-1b", "--device", "g6.12xlarge"]) == 0
    assert "4 x L4: one of them is meant" in " ".join(capsys.readouterr().out.split())
