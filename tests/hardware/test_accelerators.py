"""GPUs out of the vendors' tools, with the tools replaced by what they print."""

import pytest

from ridgeline.hardware.accelerators import (
    NVIDIA_QUERY,
    ROCM_QUERY,
    ToolError,
    find_gpus,
    parse_nvidia,
    parse_rocm,
)

TWO_H100 = """\
0, NVIDIA H100 80GB HBM3, 81559, 550.90.07, 700.00
1, NVIDIA H100 80GB HBM3, 81559, 550.90.07, 500.00
"""
TWO_MI300X = """{
"card1": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"},
"card0": {"Card series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"},
"system": {"Driver version": "6.8.5"}}
"""


def test_nvidia_gpus_are_matched_to_our_facts() -> None:
    gpus = parse_nvidia(TWO_H100)
    assert [gpu.device for gpu in gpus] == ["H100-SXM-80GB"] * 2
    assert gpus[0].memory_bytes == 81559 * 2**20
    assert [gpu.power_limit_watts for gpu in gpus] == [700.0, 500.0]


def test_a_gpu_without_facts_is_still_listed() -> None:
    (gpu,) = parse_nvidia("0, NVIDIA GeForce GTX 780, 3072, 550.1, 180.00\n")
    assert gpu.device is None
    assert gpu.name == "NVIDIA GeForce GTX 780"


def test_a_jetson_has_no_memory_of_its_own() -> None:
    (gpu,) = parse_nvidia("0, Orin, [N/A], 540.4.0, [N/A]\n")
    assert gpu.device == "Jetson-AGX-Orin-64GB"
    assert gpu.memory_bytes is None
    assert gpu.power_limit_watts is None


def test_rocm_gpus_come_in_order_whatever_the_case_of_the_keys() -> None:
    gpus = parse_rocm(TWO_MI300X)
    assert [(gpu.index, gpu.device) for gpu in gpus] == [(0, "MI300X"), (1, "MI300X")]
    assert gpus[0].memory_bytes == 192 * 2**30 - 16 * 2**20


@pytest.mark.parametrize("parse", [parse_nvidia, parse_rocm])
def test_unreadable_output_is_an_error_of_the_tool(parse: object) -> None:
    assert callable(parse)
    with pytest.raises(ToolError):
        parse("NVIDIA-SMI has failed")


def test_no_tool_means_no_gpus_and_no_notes() -> None:
    assert find_gpus(lambda command: None) == ([], [])


def test_a_broken_driver_leaves_a_note_and_does_not_hide_the_other_vendor() -> None:
    def run(command: tuple[str, ...]) -> str | None:
        if command == NVIDIA_QUERY:
            raise ToolError("nvidia-smi: couldn't communicate with the NVIDIA driver")
        assert command == ROCM_QUERY
        return TWO_MI300X

    gpus, notes = find_gpus(run)
    assert len(gpus) == 2
    assert notes == ["nvidia-smi: couldn't communicate with the NVIDIA driver"]
