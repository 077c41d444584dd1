"""Occupancy against golden numbers, its own laws, and NVIDIA's header where that is at hand."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.cost.occupancy import blocks_by_limit, occupancy
from ridgeline.hardware.processors import ProcessorLimits, processor, processors

HEADER = "cuda_occupancy.h"
TARGETS = st.sampled_from(sorted(processors()))


def asked(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    assert run(["kernels", "occupancy", *args, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "share"),
    [
        ("sm_90", 256, 40, 0, 6, 0.75),
        ("sm_89", 256, 40, 0, 6, 1.0),
        ("sm_90", 32, 8, 12 * 1024, 17, 17 / 64),
        ("sm_90", 1024, 32, 8320, 2, 1.0),
        ("8.9", 1024, 32, 8320, 1, 2 / 3),
        ("sm_90", 256, 181, 96 * 1024, 1, 0.125),
        ("gfx942", 256, 230, 48 * 1024, 1, 0.125),
        ("gfx942", 256, 230, 0, 2, 0.25),
        ("gfx942", 64, 64, 0, 32, 1.0),
        ("h100", 1024, 65, 0, 0, 0.0),
    ],
)
def test_the_command_gives_the_numbers_that_are_known(
    arch: str,
    threads: int,
    registers: int,
    shared: int,
    blocks: int,
    share: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = asked(
        capsys, "--arch", arch, "--threads", str(threads), "--registers", str(registers),
        "--shared", str(shared),
    )  # fmt: skip
    assert found["blocks"] == blocks
    assert found["occupancy"] == pytest.approx(share)


def test_the_view_names_the_limiter_and_what_would_raise_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ["--arch", "sm_90", "--threads", "256", "--registers", "40"]
    assert run(["kernels", "occupancy", *args]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "75.0%: 6 blocks, 48 of 64 warps, limited by registers" in out
    assert "at most 32 registers (100.0%)" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--arch", "sm_13"], "not a known architecture or device"),
        (["--arch", "sm_9"], "did you mean sm_90"),
        (["--threads", "1025"], "--threads 1025: sm_90 takes 1 to 1024"),
        (["--registers", "256"], "--registers 256: sm_90 takes 0 to 255"),
        (["--shared", "-1"], "--shared -1: bytes per block cannot be negative"),
    ],
)
def test_numbers_that_no_kernel_has_are_refused(
    change: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--arch", "sm_90", "--threads", "256", "--registers", "40", *change]
    assert run(["kernels", "occupancy", *args]) == 2
    assert words in capsys.readouterr().err


@given(TARGETS, st.integers(1, 1024), st.integers(0, 255), st.integers(0, 170_000))
def test_every_change_that_is_named_raises_it_and_one_step_less_does_not(
    target: str, threads: int, registers: int, shared: int
) -> None:
    limits = processor(target)

    def share(threads: int, registers: int, shared: int) -> float:
        found = occupancy(limits, threads=threads, registers=registers, shared_bytes=shared)
        return found.occupancy

    found = occupancy(limits, threads=threads, registers=registers, shared_bytes=shared)
    assert 0 <= found.occupancy <= 1
    assert bool(found.limiters) == (found.occupancy < 1)
    for one in found.changes:
        fewer = registers if one.registers_per_thread is None else one.registers_per_thread
        less = shared if one.shared_bytes_per_block is None else one.shared_bytes_per_block
        then = share(one.threads_per_block or threads, fewer, less)
        assert then == one.occupancy > found.occupancy
        if one.registers_per_thread is not None and one.shared_bytes_per_block is None:
            assert share(threads, fewer + 1, shared) == found.occupancy
        if one.shared_bytes_per_block is not None and one.registers_per_thread is None:
            assert share(threads, registers, less + 1) == found.occupancy


@given(TARGETS, st.integers(1, 1024), st.integers(1, 255), st.integers(0, 170_000))
def test_more_of_anything_never_leaves_room_for_more_blocks(
    target: str, threads: int, registers: int, shared: int
) -> None:
    limits = processor(target)
    now = blocks_by_limit(limits, threads, registers, shared)
    assert all(
        more[name] <= now[name]
        for more in (
            blocks_by_limit(limits, threads, registers + 1, shared),
            blocks_by_limit(limits, threads, registers, shared + 1),
        )
        for name in now
    )


def header_folder() -> Path | None:
    """Where NVIDIA's header lies: CUDA_HOME's, that of a wheel of NVIDIA's, or Triton's copy."""
    places = [Path(one) for one in sys.path]
    folders = [found for one in places for found in one.glob("nvidia/cu*/include")]
    folders += [one / "triton/backends/nvidia/include" for one in places]
    if "CUDA_HOME" in os.environ:
        folders.insert(0, Path(os.environ["CUDA_HOME"]) / "include")
    return next((one for one in folders if (one / HEADER).exists()), None)


PROGRAM = r"""
#include <climits>
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int major, minor, warps, threads, registers;
    long per_processor, per_block, reserved, shared;
    while (std::scanf("%d %d %d %ld %ld %ld %d %d %ld", &major, &minor, &warps, &per_processor,
                      &per_block, &reserved, &threads, &registers, &shared) == 9) {
        cudaOccDeviceProp device;
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = warps * 32;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 49152;
        device.sharedMemPerMultiprocessor = per_processor;
        device.numSms = 100;
        device.sharedMemPerBlockOptin = per_block;
        device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel = {};
        kernel.maxThreadsPerBlock = INT_MAX;
        kernel.numRegs = registers;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = shared;
        kernel.numBlockBarriers = 1;
        cudaOccDeviceState state = {};
        cudaOccResult result = {};
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &device, &kernel, &state, threads, shared);
        std::printf("%d\n", error ? -error : result.activeBlocksPerMultiprocessor);
    }
}
"""


def drawn(draw: random.Random) -> tuple[ProcessorLimits, int, int, int]:
    """A random launch; shared memory often lies beside a limit or a granule."""
    nvidia = [one for one in processors().values() if one.target.startswith("sm_")]
    limits = draw.choice(nvidia)
    threads = draw.choice((draw.randint(1, 1024), 32 * draw.randint(1, 32)))
    edge = limits.shared_bytes // draw.randint(1, 32) + draw.randint(-1200, 200)
    shared = draw.choice((0, draw.randint(0, limits.shared_bytes), max(0, edge)))
    return limits, threads, draw.randint(0, 255), shared


@pytest.mark.slow
def test_blocks_equal_those_of_nvidias_header_on_100_000_random_launches(tmp_path: Path) -> None:
    folder, compiler = header_folder(), shutil.which("g++")
    if folder is None or compiler is None:
        pytest.skip(f"needs g++ and {HEADER} (CUDA_HOME, the wheel nvidia-cuda-runtime, or triton)")
    source, program = tmp_path / "oracle.cpp", tmp_path / "oracle"
    source.write_text(PROGRAM)
    subprocess.run(
        [compiler, "-std=c++17", "-O1", "-w", f"-I{folder}", source, "-o", program], check=True
    )
    draw = random.Random(20)
    launches = [drawn(draw) for _ in range(100_000)]
    lines = []
    for limits, threads, registers, shared in launches:
        number = int(limits.target.removeprefix("sm_"))
        fields = (
            number // 10, number % 10, limits.warps, limits.shared_bytes,
            limits.shared_bytes_per_block, limits.reserved_shared_bytes, threads, registers, shared,
        )  # fmt: skip
        lines.append(" ".join(str(one) for one in fields))
    told = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    wanted = [int(one) for one in told.stdout.split()]
    assert len(wanted) == len(launches)
    ours = [
        min(blocks_by_limit(limits, threads, registers, shared).values())
        for limits, threads, registers, shared in launches
    ]
    wrong = [
        (limits.target, *rest, want, found)
        for (limits, *rest), want, found in zip(launches, wanted, ours, strict=True)
        if want != found
    ]
    assert not wrong, wrong[:20]
