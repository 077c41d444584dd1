"""GPUs are looked at beside the throughput, through the vendors' tools as stubs on the path."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from ridgeline.hardware.accelerators import ToolError
from ridgeline.hardware.gpu_use import parse_nvidia_use, parse_rocm_use
from ridgeline.records.training_run import LoggedStep, read_log
from ridgeline.report.views.train import live_line
from ridgeline.train.watch.devices import DeviceWatch
from ridgeline.train.watch.interval import TrainingLog

NVIDIA = """#!/bin/sh
echo "$@" >> "$0.asked"
echo '0, 97, 71234, 412.50, 61, 1755'
echo '1, 88, 70000, [N/A], 58, 1740'
"""
ROCM = """{"card1": {"Temperature (Sensor junction) (C)": "61.0", "GPU use (%)": "42",
"Average Graphics Package Power (W)": "305.0", "VRAM Total Memory (B)": "206141652992",
"VRAM Total Used Memory (B)": "1073741824", "sclk clock speed:": "(1900Mhz)"},
"system": {"Driver version": "6.7.0"}}"""


def a_tool(folder: Path, text: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole path for programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def a_line(step: int) -> LoggedStep:
    return LoggedStep(
        step=step,
        loss=1.0,
        learning_rate=1e-3,
        gradient_norm=None,
        step_seconds=0.1,
        tokens_per_second=1000.0,
        mfu=None,
        phases={},
        peak_memory_bytes=1e9,
        note="a note",
    )


def until(log: TrainingLog, folder: Path, key: str) -> LoggedStep:
    """Lines are written until one has it; looking is a thread's."""
    deadline = time.monotonic() + 120
    step = 0
    while True:
        step += 1
        log.write(a_line(step))
        line = read_log(folder)[-1]
        if getattr(line, key) not in ([], "a note"):
            return line
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_line_of_the_log_has_what_the_gpus_did(tools: Path, tmp_path: Path) -> None:
    a_tool(tools, NVIDIA)
    log = TrainingLog(tmp_path / "run", DeviceWatch(0.05))
    first, second = until(log, tmp_path / "run", "devices").devices
    log.close()
    assert (first.index, first.busy_share, first.watts) == (0, pytest.approx(0.97), 412.5)
    assert (first.memory_bytes, first.celsius) == (71234 * 2**20, 61)
    assert (second.watts, second.clock_hz) == (None, 1.74e9)
    shown = live_line(msgspec.structs.replace(a_line(3), devices=[first, second]), None)
    assert "GPUs 88 % busy, 412 W" in shown
    assert "utilization.gpu" in (tools / "nvidia-smi.asked").read_text()


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (None, "neither nvidia-smi nor rocm-smi is here"),
        ("#!/bin/sh\necho no driver >&2\nexit 9\n", "nvidia-smi: no driver"),
        ("#!/bin/sh\necho 'what, is, this'\n", "nvidia-smi: cannot read 'what, is, this'"),
    ],
)
def test_a_tool_that_is_not_there_or_fails_is_one_line(
    tool: str | None, said: str, tools: Path, tmp_path: Path
) -> None:
    if tool is not None:
        a_tool(tools, tool)
    log = TrainingLog(tmp_path / "run", DeviceWatch(0.05))
    assert until(log, tmp_path / "run", "note").note == f"a note; no samples of GPUs: {said}"
    log.write(a_line(10_000))
    log.close()
    assert read_log(tmp_path / "run")[-1].note == "a note", "it is said once"


def test_what_rocm_smi_says_is_read_and_nonsense_is_not() -> None:
    (card,) = parse_rocm_use(ROCM)
    assert (card.index, card.busy_share, card.watts, card.clock_hz) == (
        1, pytest.approx(0.42), 305.0, 1.9e9,
    )  # fmt: skip
    assert card.memory_bytes == 2**30
    with pytest.raises(ToolError, match="rocm-smi"):
        parse_rocm_use("WARNING: no GPU")
    assert parse_nvidia_use("0, [N/A], [N/A], [N/A], [N/A], [N/A]\n")[0].busy_share is None
