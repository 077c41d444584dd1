"""Looking things up, and files of facts that are wrong."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import (
    FACTS,
    catalogue,
    device,
    devices,
    link,
    match_reported_name,
    prices,
)


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[str, str, str], Path]:
    """A copy of the facts in which one text of one file is replaced."""

    def edit(name: str, old: str, new: str) -> Path:
        folder = tmp_path / "facts"
        shutil.copytree(FACTS, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))
        return folder

    return edit


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA Thor", "Jetson-AGX-Thor-T5000"),
    ],
)
def test_a_driver_s_name_finds_its_device(reported: str, name: str) -> None:
    found = match_reported_name(reported)
    assert found is not None
    assert found.name == name
    assert device(reported) == found


def test_every_driver_s_name_finds_the_device_of_the_whole_catalogue() -> None:
    """A driver's name is looked up in the one file that has it."""
    for one in devices():
        for reported in one.cuda_names:
            assert match_reported_name(reported) == one


@pytest.mark.parametrize("reported", ["NVIDIA H20-3e", "NVIDIA GeForce RTX 4090 D", "H100"])
def test_a_similar_name_is_not_the_same_device(reported: str) -> None:
    assert match_reported_name(reported) is None


@pytest.mark.parametrize("name", ["h100", "H100", "H100_SXM", " h100-sxm-80gb ", "H100 SXM5"])
def test_case_and_separators_do_not_matter(name: str) -> None:
    assert device(name).name == "H100-SXM-80GB"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("AMD MI300X GPU", "MI300X"),
        ("Habana Gaudi2", "Gaudi-2"),
        ("Intel Gaudi 3", "Gaudi-3"),
        ("AWS Trainium2", "Trainium-2"),
    ],
)
def test_the_maker_in_front_of_a_name_does_not_matter(written: str, name: str) -> None:
    assert device(written).name == name


def test_an_unknown_device_lists_the_nearest_names() -> None:
    with pytest.raises(InputError, match=r"unknown device 'mi300'; did you mean .*MI300X"):
        device("mi300")
    with pytest.raises(InputError, match=r"unknown device 'RTX 4085'; did you mean .*RTX-4080"):
        prices("RTX 4085")


def test_a_name_like_nothing_points_at_the_list() -> None:
    with pytest.raises(InputError, match="hardware --list"):
        device("zzzzz")


def test_an_unknown_link_lists_the_nearest_names() -> None:
    with pytest.raises(InputError, match=r"unknown link 'nvlink-7'; did you mean .*nvlink-"):
        link("nvlink-7")


def test_a_mistyped_key_names_the_file_and_the_key(edited: Callable[..., Path]) -> None:
    folder = edited("devices/h100.toml", "bf16 =", "bf61 =")
    with pytest.raises(InputError, match=r"h100\.toml: .*`bf61`.*\$\.device"):
        catalogue(folder)


def test_a_missing_key_names_the_file_and_the_key(edited: Callable[..., Path]) -> None:
    folder = edited("links.toml", 'kind = "fabric"\n', "")
    with pytest.raises(InputError, match=r"links\.toml: .*`kind`"):
        catalogue(folder)


def test_broken_toml_names_the_file_and_the_line(edited: Callable[..., Path]) -> None:
    folder = edited("prices.toml", "[[price]]", "[[price")
    with pytest.raises(InputError, match=r"prices\.toml: .*line"):
        catalogue(folder)


def test_a_source_that_is_not_listed_is_an_error(edited: Callable[..., Path]) -> None:
    folder = edited("devices/t4.toml", 'source = "datasheet"', 'source = "datashet"')
    with pytest.raises(InputError, match=r"t4\.toml: T4: source 'datashet' is not in \[sources\]"):
        catalogue(folder)


def test_a_link_that_does_not_exist_is_an_error(edited: Callable[..., Path]) -> None:
    folder = edited("devices/t4.toml", 'link = "pcie-3-x16"', 'link = "pcie-33"')
    with pytest.raises(InputError, match=r"t4\.toml: T4: no link 'pcie-33'"):
        catalogue(folder)


def test_one_name_for_two_devices_is_an_error(edited: Callable[..., Path]) -> None:
    folder = edited("devices/t4.toml", 'aliases = ["tesla-t4"]', 'aliases = ["L4"]')
    with pytest.raises(InputError, match=r"'L4' names both|'L4' .*T4"):
        catalogue(folder)


def test_a_price_for_an_unknown_device_is_an_error(edited: Callable[..., Path]) -> None:
    folder = edited("prices.toml", 'device = "T4"', 'device = "T5"')
    with pytest.raises(InputError, match=r"prices\.toml: no device 'T5'"):
        catalogue(folder)


@pytest.mark.parametrize(
    "module", ["ridgeline.hardware", "ridgeline.measure.probe", "ridgeline.cli.hardware"]
)
def test_importing_loads_no_torch_and_reads_no_facts(module: str) -> None:
    code = (
        f"import sys, {module}; from ridgeline.hardware.catalogue import catalogue; "
        "print('torch' in sys.modules, catalogue.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "0"]
