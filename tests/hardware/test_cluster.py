"""Clusters by name: typical surroundings, stated assumptions, overrides, bad input."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.hardware.nodes import node_of


@pytest.mark.parametrize("name", [part.name for part in catalogue.devices()])
def test_every_device_has_a_typical_cluster_with_a_source(name: str) -> None:
    cluster = parse_cluster(f"16x{name}")
    node, source = node_of(catalogue.device(name))
    assert source is not None
    assert source.url.startswith("https://")
    assert any(node.name in sentence for sentence in cluster.assumed)
    assert cluster.domain_bytes_per_second > 0
    assert cluster.network_bytes_per_second > 0
    assert cluster.host_bytes_per_second > 0
    assert cluster.domain_latency_seconds > 0


@pytest.mark.parametrize(
    ("few", "many", "gigabytes"),
    [("8xH200-NVL", "16xH200-NVL", 63.015), ("8xA100-PCIe-80GB", "12xA100-PCIe-80GB", 31.508)],
)
def test_what_one_machine_holds_is_not_joined_by_a_network(
    few: str, many: str, gigabytes: float
) -> None:
    together, apart = parse_cluster(few), parse_cluster(many)
    assert together.domain_size == apart.domain_size == 4
    assert together.network_bytes_per_second == pytest.approx(1e9 * gigabytes)
    assert apart.network_bytes_per_second < 1e10
    assert "8 in one machine, over its host's links" in " ".join(together.assumed)


@pytest.mark.parametrize(
    ("text", "domain", "fabric_gigabytes", "network_gigabits"),
    [
        ("64xH100", 8, 450.0, 400.0),
        ("64 x A100", 8, 300.0, 200.0),
        ("1,024×B200", 8, 900.0, 400.0),
        ("144xGB200", 72, 900.0, 400.0),
        ("16xMI300X", 8, 448.0, 400.0),
        ("16*L40S", 8, 31.508, 50.0),
        ("16xV100", 8, 150.0, 50.0),
        ("256xTPU-v5e", 256, 200.0, 25.0),
    ],
)
def test_typical_figures_are_those_of_the_usual_machine(
    text: str, domain: int, fabric_gigabytes: float, network_gigabits: float
) -> None:
    cluster = parse_cluster(text)
    assert cluster.domain_size == domain
    assert cluster.domain_bytes_per_second == pytest.approx(fabric_gigabytes * 1e9)
    assert cluster.network_bytes_per_second * 8 == pytest.approx(network_gigabits * 1e9)


def test_an_ambiguous_device_is_a_stated_assumption() -> None:
    sentences = parse_cluster("64xA100").assumed
    assert any("A100-SXM-80GB" in one and "A100-SXM-40GB" in one for one in sentences)
    generations = parse_cluster("16xGaudi").assumed
    assert any("read as Gaudi-3" in one and "Gaudi-2" in one for one in generations)
    assert not any("read as" in one for one in parse_cluster("64xA100-SXM-40GB").assumed)
    assert not any("read as" in one for one in parse_cluster("64xB200").assumed)


def test_what_is_given_replaces_what_is_typical() -> None:
    cluster = parse_cluster(
        "64xH100",
        domain_size=4,
        domain_bytes_per_second=1e11,
        network_bytes_per_second=1.25e10,
        oversubscription=2.0,
    )
    assert cluster.domain_size == 4
    assert cluster.domain_bytes_per_second == 1e11
    assert cluster.network_bytes_per_second == 1.25e10
    assert cluster.oversubscription == 2.0
    assert not any("oversubscription" in one for one in cluster.assumed)
    assert not any("DGX" in one for one in cluster.assumed), "nothing of the usual node is left"
    partly = parse_cluster("64xH100", network_bytes_per_second=1.25e10).assumed
    assert any("DGX H100: 8 x H100-SXM-80GB (" in one for one in partly)


def test_a_part_filled_last_node_is_said() -> None:
    assert any("last node with 4 of 8" in one for one in parse_cluster("20xH100").assumed)
    assert not any("last node" in one for one in parse_cluster("4xH100").assumed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write a count"),
        ("H100", "write a count"),
        ("64", "write a count"),
        ("-8xH100", "write a count"),
        ("0xH100", "the count must be"),
        (",xH100", "the count must be"),
        ("64xH1000", "did you mean H100"),
        ("64xWARP9", "ridgeline hardware --list"),
    ],
)
def test_bad_clusters_are_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_cluster(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        {"domain_size": 0},
        {"domain_bytes_per_second": 0.0},
        {"network_bytes_per_second": -1.0},
        {"oversubscription": 0.5},
    ],
)
def test_overrides_that_make_no_sense_are_refused(overrides: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"above 0|1 or more"):
        parse_cluster("8xH100", **overrides)  # type: ignore[arg-type]


def test_a_pair_of_a_full_mesh_has_the_links_between_the_two_alone() -> None:
    """Seven links of 64 GB/s to one peer each; behind a switch a pair has all links."""
    mesh, switch = parse_cluster("8xMI300X"), parse_cluster("8xH100")
    assert [mesh.joined_bytes_per_second(n) / 64e9 for n in (2, 4, 8)] == [1.0, 3.0, 7.0]
    assert switch.joined_bytes_per_second(2) == switch.joined_bytes_per_second(8) == 450e9


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("8xK80", "2 of them with 12 GiB each, which 16xK80-1GCD"),
        ("A16", "4 of them with 16 GiB each, which 4xA16-1GCD"),
    ],
)
def test_a_board_of_several_devices_says_what_each_of_them_has(asked: str, told: str) -> None:
    assert told in " ".join(parse_cluster(asked if "x" in asked else f"1x{asked}").assumed)
    assert "software sees" not in " ".join(parse_cluster("8xK80-1GCD").assumed)
    assert "software sees" not in " ".join(parse_cluster("8xH100").assumed)
