"""The facts themselves: complete, sourced, dense, and equal to what the field prints."""

import re
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.facts import DTYPES, Device

DEVICES = catalogue.devices()
DATE = re.compile(r"20\d\d(-[01]\d(-[0-3]\d)?)?")


def each(devices: list[Device]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("part", devices, ids=[part.name for part in devices])


def test_the_devices_that_we_promise_are_there() -> None:
    promised = (
        "V100-SXM2-16GB V100-SXM2-32GB V100-PCIe-16GB A100-SXM-40GB A100-SXM-80GB A100-PCIe-40GB "
        "A100-PCIe-80GB H100-PCIe-80GB H100-SXM-80GB H200-SXM-141GB B200 GB200 L4 L40S RTX-3090 "
        "RTX-4090 RTX-5090 T4 MI250X MI300X MI355X Gaudi-3 TPU-v5e TPU-v5p TPU-v6e "
        "Jetson-AGX-Orin-64GB Jetson-AGX-Thor-T5000 A10G Jetson-AGX-Orin-32GB GH200-96GB "
        "GH200-144GB GB300 SA8650P Trainium-1 Trainium-2 Trainium-3 MI325X MI350X RTX-PRO-6000 "
        "RTX-PRO-6000-Server RTX-A6000 RTX-4060 RTX-4070 RTX-4080 RTX-5060 RTX-5070 RTX-5080 "
        "Gaudi-2 K80 M60 P40 P4 TITAN-V TITAN-RTX TITAN-Xp A2 A16 Quadro-RTX-6000 MI100 MI250 "
        "TPU-v3 TPU-v4 TPU-v7x Inferentia-2 Max-1550 Max-1100 Arc-A770 Arc-B580 RX-7900-XTX M1-Max "
        "M4-Max Jetson-Xavier-NX-8GB RTX-4090-Laptop RTX-5090-Laptop"
    )
    assert set(promised.split()) <= {part.name for part in DEVICES}


@each(DEVICES)
def test_every_number_has_a_source_with_title_place_and_date(part: Device) -> None:
    assert part.sources
    for source in part.sources.values():
        assert source.title
        assert source.where
        assert source.url.startswith("https://")
        assert DATE.fullmatch(source.date)


@pytest.mark.parametrize(
    "path", sorted(catalogue.FACTS.glob("**/*.toml")), ids=lambda path: path.name
)
def test_no_source_stands_in_a_file_without_being_cited(path: Path) -> None:
    text = path.read_text()
    listed = set(re.findall(r"^\[sources\.(\w+)\]", text, re.MULTILINE))
    lists = re.findall(r"^sources = \[(.*)\]", text, re.MULTILINE)
    cited = set(re.findall(r'source = "(\w+)"', text)) | set(re.findall(r"\w+", " ".join(lists)))
    assert listed == cited


@each(DEVICES)
def test_narrower_arithmetic_is_never_slower(part: Device) -> None:
    peaks = part.peaks
    for wide, narrow in (
        ("fp64", "fp64_tensor"),
        ("fp32", "tf32"),
        ("tf32", "bf16"),
        ("fp32", "fp16"),
        ("bf16", "fp8"),
        ("fp16", "int8"),
        ("fp8", "fp6"),
        ("fp6", "fp4"),
    ):
        if wide in peaks and narrow in peaks:
            assert peaks[wide] <= peaks[narrow]


@each([part for part in DEVICES if part.name != "Trainium-3"])  # its notes: 3.75 times, dense
def test_peaks_are_dense(part: Device) -> None:
    """Halving the width doubles the rate at most; one figure with sparsity would show as four."""
    peaks = part.peaks
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp6")):
        if wide in peaks and narrow in peaks:
            assert peaks[narrow] <= 2.2 * peaks[wide]


@each([part for part in DEVICES if part.vendor == "AMD" and part.chip.unit != "core"])
def test_amd_peaks_are_units_times_clock_times_rate(part: Device) -> None:
    clock, fp16_per_cycle = {
        "CDNA": (1.502e9, 1024),
        "CDNA 2": (1.7e9, 1024),
        "CDNA 3": (2.1e9, 2048),
        "CDNA 4": (2.4e9, 4096),
        "RDNA 3": (2.5e9, 512),
    }[part.architecture]
    assert part.chip.num_units is not None
    clock = part.chip.clock_hz or clock
    assert part.peak("fp16") == pytest.approx(
        part.chip.num_units * clock * fp16_per_cycle, rel=1e-3
    )


@each([part for part in DEVICES if re.match(r"RTX-[45]0", part.name) and "Ada" not in part.name])
def test_geforce_peaks_are_units_times_clock_times_rate(part: Device) -> None:
    """An SM does 256 fp32 and 512 16-bit FLOPs a clock, with fp32 accumulation."""
    clock = part.chip.clock_hz or {"RTX-4090": 2.52e9, "RTX-5090": 2.407e9}[part.name]
    assert part.chip.num_units is not None
    vector = part.chip.num_units * clock * 256
    for dtype, factor in {"fp32": 1, "bf16": 2, "fp8": 4, "int8": 8}.items():
        assert part.peak(dtype) == pytest.approx(factor * vector, rel=1e-3)


@each([part for part in DEVICES if part.cuda_names and part.vendor == "NVIDIA"])
def test_what_the_driver_reports_is_a_little_less_than_what_was_sold(part: Device) -> None:
    if part.memory.reported_bytes is not None:
        assert 0.9 < part.memory.reported_bytes / part.memory.capacity_bytes <= 1.0
        assert part.memory.usable_bytes == part.memory.reported_bytes
    else:
        assert part.memory.usable_bytes == part.memory.capacity_bytes


@pytest.mark.parametrize(
    ("name", "exact", "headline"),
    [
        ("v100", 139, 139),
        ("a100-80gb", 153, 156),
        ("h100", 295, 291),
        ("h200", 206, 206),
        ("b200", 281, 281),
    ],
)
def test_ridge_points_match_the_published_table(name: str, exact: int, headline: int) -> None:
    """The table rounds bandwidths to 0.9, 2.0, 3.4, 4.8 and 8.0 TB/s first."""
    part = catalogue.device(name)
    assert round(part.ridge_flops_per_byte()) == exact
    assert round(part.ridge_flops_per_byte(headline=True)) == headline


def test_a_device_without_an_arithmetic_says_which_it_has() -> None:
    with pytest.raises(InputError, match=r"A100-SXM-80GB has no published fp8.*bf16"):
        catalogue.device("a100").peak("fp8")


def test_an_unknown_arithmetic_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"bfloat16: not a known dtype.*bf16"):
        catalogue.device("a100").peak("bfloat16")


def test_peaks_keep_the_order_of_the_arithmetics() -> None:
    names = list(catalogue.device("h100").peaks)
    assert names == [dtype for dtype in DTYPES if dtype in names]


def test_nvlink_adds_up_to_the_rate_that_is_printed_for_the_device() -> None:
    printed_both_ways = {"v100": 300, "a100": 600, "a800": 400, "h100": 900, "b200": 1800}
    for name, gigabytes in printed_both_ways.items():
        rate = catalogue.peer_bandwidth_bytes_per_second(catalogue.device(name))
        assert rate == gigabytes / 2 * 1e9


def test_amd_and_google_links_add_up_to_the_rate_that_is_printed() -> None:
    printed_both_ways = {"mi300x": 896, "mi250x": 800, "v5e": 400, "v5p": 1200, "v6e": 800}
    printed_both_ways |= {"mi100": 276, "mi250": 600, "v7x": 1200}
    for name, gigabytes in printed_both_ways.items():
        rate = catalogue.peer_bandwidth_bytes_per_second(catalogue.device(name))
        assert rate == gigabytes / 2 * 1e9


def test_a_device_on_pcie_alone_has_no_fabric() -> None:
    assert catalogue.peer_bandwidth_bytes_per_second(catalogue.device("l40s")) is None


def test_each_pcie_generation_doubles_until_flits() -> None:
    rates = [
        catalogue.link(f"pcie{generation}").bandwidth_bytes_per_second
        for generation in (3, 4, 5, 6)
    ]
    assert rates[0] == pytest.approx(15.75e9, rel=1e-3)
    assert rates[1] / rates[0] == pytest.approx(2.0, rel=1e-3)
    assert rates[2] / rates[1] == pytest.approx(2.0, rel=1e-3)
    assert 1.8 < rates[3] / rates[2] < 2.0


def test_links_are_sourced_and_of_a_known_kind() -> None:
    assert {"nvlink-2", "nvlink-5", "infiniband-xdr", "ethernet-10", "ethernet-800"} <= {
        one.name for one in catalogue.links()
    }
    for one in catalogue.links():
        assert one.kind in {"fabric", "host", "network"}
        assert one.source in one.sources
        assert (one.latency_seconds is None) == (one.latency_source is None)


def test_prices_are_dated_and_plausible() -> None:
    found = [price for part in DEVICES for price in catalogue.prices(part.name)]
    assert len(found) >= 25
    for price in found:
        assert DATE.fullmatch(price.date)
        assert 0.05 < price.usd_per_device_hour < 20
        assert price.source in price.sources


def test_the_typical_price_is_the_median_of_the_dated_ones() -> None:
    assert [price.usd_per_device_hour for price in catalogue.prices("a100")] == [1.79, 2.79, 3.4309]
    assert catalogue.typical_usd_per_device_hour("a100") == 2.79
    assert catalogue.typical_usd_per_device_hour("thor") is None
