"""Names of devices with memory, power or a part of the package behind them."""

import math

import pytest

from ridgeline.errors import InputError
from ridgeline.hardware import device
from ridgeline.hardware.cluster import parse_cluster


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("RTX4090-24GB", "RTX-4090"),
        ("RTX4090-24G", "RTX-4090"),
        ("RTX 5090 32GB", "RTX-5090"),
        ("L40S-48GB", "L40S"),
        ("GB200-192GB", "GB200"),
        ("B300-288GB", "B300"),
        ("A100-unspecified", "A100-SXM-80GB"),
        ("MI300X-192GB-HBM3", "MI300X"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Server"),
        ("RTX 3080 10GB", "RTX-3080"),
    ],
)
def test_a_size_that_the_part_has_changes_nothing(name: str, part: str) -> None:
    assert device(name) == device(part)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Orin 32", "Jetson-AGX-Orin-32GB"),
        ("orin-64", "Jetson-AGX-Orin-64GB"),
        ("Orin 64 GB", "Jetson-AGX-Orin-64GB"),
        ("Jetson AGX Orin 32 GB", "Jetson-AGX-Orin-32GB"),
        ("orin nx 16", "Jetson-Orin-NX-16GB"),
        ("A100 40", "A100-SXM-40GB"),
        ("a100-80", "A100-SXM-80GB"),
        ("V100 32", "V100-SXM2-32GB"),
        ("GH200 96", "GH200-96GB"),
        ("H200 141", "H200-SXM-141GB"),
        ("A30-24", "A30"),
    ],
)
def test_a_bare_number_is_the_memory_of_a_part_that_there_is(name: str, part: str) -> None:
    found = device(name)
    assert (found.name, found.memory) == (part, device(part).memory)
    assert ("GB" in name) != any("GB of memory" in line for line in found.assumed)


def test_a_bare_number_goes_with_a_power_mode_and_makes_up_no_part() -> None:
    assert device("Orin 32 40W").peak("fp16") == device("Orin-32GB-40W").peak("fp16")
    for name in ("H100 SXM 96", "Orin 48", "RTX 40", "Orin 32 fast"):
        with pytest.raises(InputError, match="did you mean"):
            device(name)


def test_another_memory_and_less_power_are_taken_from_the_name_and_said() -> None:
    found, plain = device("H100-SXM-96GB-HBM2e-500W"), device("H100-SXM-80GB")
    assert found.memory.capacity_bytes == 96 * 2**30
    assert found.memory.bandwidth_bytes_per_second == pytest.approx(6 / 5 * 2.039e12, rel=1e-3)
    assert found.peak("bf16") == pytest.approx(plain.peak("bf16") * math.sqrt(500 / 700))
    assert any("HBM2e" in line for line in found.assumed)
    assert any("500 of 700 W" in line for line in found.assumed)


def test_one_die_of_two_is_half_of_the_package() -> None:
    whole, half = device("MI250X"), device("MI250X-1GCD")
    assert half.peak("fp16") == whole.peak("fp16") / 2
    assert half.memory.capacity_bytes == whole.memory.capacity_bytes / 2
    assert half.chip.logical_devices == 1


@pytest.mark.parametrize(
    ("name", "share", "gigabytes_per_second"),
    [
        ("Orin-64GB-50W", 816 / 1300.5, 204.8),
        ("Orin-64GB-30W", 8 / 16 * 612 / 1300.5, 204.8),
        ("Jetson AGX Orin 15W", 6 / 16 * 408 / 1300.5, 136.5),
        ("Orin-32GB-40W", 816 / 930, 204.8),
        ("Orin-64GB-MAXN", 1.0, 204.8),
    ],
)
def test_a_power_mode_has_the_units_and_clocks_of_its_table(
    name: str, share: float, gigabytes_per_second: float
) -> None:
    found = device(name)
    whole = device("orin-32gb" if "32" in name else "orin-64gb")
    assert found.peak("int8") == pytest.approx(share * whole.peak("int8"))
    assert found.memory.bandwidth_bytes_per_second == pytest.approx(gigabytes_per_second * 1e9)
    assert parse_cluster(f"1x{name}").domain_size == 1


def test_a_limit_of_power_that_is_no_mode_names_the_modes() -> None:
    assert any(
        "no power mode of 25 W (but 50, 30, 15)" in one for one in device("orin-25W").assumed
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("H100-SXM-900W", "900 W as named, where 700 W are printed"),
        ("Orin-64GB-75W", "75 W as named, where 60 W are printed"),
        ("Trainium-2-400W", "no power is on record"),
    ],
)
def test_a_power_that_changes_nothing_is_said(name: str, told: str) -> None:
    part, plain = device(name), device(name.rpartition("-")[0])
    assert part.peak_flops_per_second == plain.peak_flops_per_second
    assert any(told in one and "rates as printed" in one for one in part.assumed)
    assert not device("RTX-4090-450W").assumed


def test_nodes_and_prices_of_a_variant_are_those_of_its_part() -> None:
    found = parse_cluster("16xH100-SXM-96GB-HBM2e-500W")
    assert found.domain_size == parse_cluster("16xH100").domain_size
    assert any("500 of 700 W" in line for line in found.assumed)


@pytest.mark.parametrize("name", ["Q77-80GB", "24GB", "H100-SXM-potato"])
def test_a_name_with_a_word_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown device"):
        device(name)
