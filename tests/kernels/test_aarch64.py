"""The kernels for ARM, cross-compiled: every source compiles, and the arithmetic is right.

The arithmetic that is common to all CPUs runs without torch (`arithmetic.cpp`): under emulation for
ARM, and for the plainest x86-64, which has no vectors of float16.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ridgeline.kernels.cpu import build, compiler

HERE = Path(__file__).parent
HEADERS = Path(torch.__file__).parent / "include"
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def need(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program} is installed (Debian, Ubuntu: apt install {package})")
    return found


def run_arithmetic(folder: Path, command: list[str], emulator: list[str]) -> None:
    flags = [flag for flag in compiler.FLAGS if flag not in ("-fPIC", "-O3")]
    places = ["-isystem", str(HEADERS), "-I", str(build.SOURCES)]
    program = str(folder / "arithmetic")
    source = str(HERE / "arithmetic.cpp")
    subprocess.run([*command, *flags, "-O2", "-static", *places, source, "-o", program], check=True)
    done = subprocess.run([*emulator, program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 differ\n")


@pytest.mark.parametrize("core", ["generic", "neoverse-n1", "neoverse-v1"])
def test_every_source_compiles_for_arm(tmp_path: Path, core: str) -> None:
    cross = need(CROSS, "g++-aarch64-linux-gnu")
    for source in sorted(build.SOURCES.glob("*.cpp")):
        subprocess.run(
            [cross, *compiler.FLAGS, f"-mcpu={core}", "-DRIDGELINE_GOMP", "-isystem", str(HEADERS),
             "-fsyntax-only", str(source)],
            check=True,
        )  # fmt: skip


@pytest.mark.parametrize("core", ["generic", "neoverse-n1"])
def test_on_arm_the_arithmetic_is_right(tmp_path: Path, core: str) -> None:
    cross = need(CROSS, "g++-aarch64-linux-gnu")
    emulator = need(EMULATOR, "qemu-user-static")
    run_arithmetic(tmp_path, [cross, f"-mcpu={core}"], [emulator])


def test_on_the_plainest_x86_the_arithmetic_is_right(tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("not an x86-64 machine")
    run_arithmetic(tmp_path, [need("g++", "g++"), "-march=x86-64"], [])
