"""The CUDA C++ twins compile, and their machine code has what the lessons count."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import triton

from ridgeline.lessons import conduct

SOURCES = Path(conduct.__file__).parent / "cuda"
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]+)", re.MULTILINE)
ARCHITECTURES = ("sm_80", "sm_90")


def compiler() -> str:
    """Skip where there is none: NVIDIA's wheels bring one, or it is on the PATH."""
    wheels = [Path(one) / "nvidia/cu13/bin/nvcc" for one in sys.path]
    found = next((str(one) for one in wheels if one.is_file()), None) or shutil.which("nvcc")
    if found is None:
        pytest.skip("needs nvcc: pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt "
                    "nvidia-cuda-runtime nvidia-cuda-cccl, all ==13.0.*")  # fmt: skip
    return found


def told(tool: str, *words: str) -> str:
    done = subprocess.run([TOOLS / tool, *words], capture_output=True, text=True, check=True)
    return done.stdout


def instructions(name: str, architecture: str, folder: Path) -> dict[str, Counter[str]]:
    """How often each instruction stands in each kernel."""
    cubin = folder / f"{name}.cubin"
    subprocess.run(
        [compiler(), "-std=c++17", f"-arch={architecture}", "-Werror", "all-warnings", "-cubin",
         "-o", str(cubin), str(SOURCES / f"{name}.cu")], check=True,
    )  # fmt: skip
    needs = told("cuobjdump", "-res-usage", str(cubin))
    assert set(re.findall(r"STACK:(\d+)", needs)) == {"0"}
    found: dict[str, Counter[str]] = {}
    for part in re.split(r"\n\s*\.section\s+", told("nvdisasm", "-c", str(cubin)))[1:]:
        section = re.match(r"\.text\.(\w+)", part)
        if section:
            words = re.findall(
                r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]+)", part, re.M
            )
            found[section[1]] = Counter(words)
    return found


def count(kernel: Counter[str], pattern: str) -> int:
    return sum(times for word, times in kernel.items() if re.fullmatch(pattern, word))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reductions_have_the_barriers_and_shuffles_that_the_lesson_counts(
    architecture: str, tmp_path: Path
) -> None:
    found = instructions("reduction", architecture, tmp_path)
    barriers = {name: count(kernel, r"BAR\..*") for name, kernel in found.items()}
    assert barriers == {
        "modulo": 9, "interleaved": 9, "sequential": 9, "shuffle": 1, "branching": 0
    }  # fmt: skip
    shuffles = {name: count(kernel, r"SHFL\..*") for name, kernel in found.items()}
    assert shuffles.pop("shuffle") == 5 + 3
    assert set(shuffles.values()) == {0}
    assert count(found["shuffle"], "STS") == count(found["shuffle"], "LDS") == 1
    assert count(found["branching"], r"BSSY(\..*)?") >= 1
    assert count(found["branching"], r"BSSY(\..*)?") == count(found["branching"], r"BSYNC(\..*)?")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_padded_transpose_has_the_same_instructions(architecture: str, tmp_path: Path) -> None:
    found = instructions("bank_conflicts", architecture, tmp_path)
    for name in ("bad", "good"):
        told_of = [count(found[name], one) for one in (r"BAR\..*", "LDS", "STS")]
        assert told_of == [1, 1, 1]
        assert count(found[name], r"LDG\.\S*128\S*") == 0
    assert count(found["copied"], r"LDG\.\S*128\S*") == count(found["copied"], r"LDG\..*") == 1
    assert count(found["copied"], r"STG\.\S*128\S*") == 1


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_matmuls_wait_twice_a_step_and_load_wide(architecture: str, tmp_path: Path) -> None:
    found = instructions("tiled_matmul", architecture, tmp_path)
    assert count(found["untiled"], r"BAR\..*") == count(found["untiled"], r"LDS.*") == 0
    tiled = found["tiled"]
    assert count(tiled, r"BAR\..*") == count(tiled, r"LDG\..*") >= 2  # two loads, two barriers
    assert count(found["wide"], r"BAR\..*") == 2
    assert count(found["wide"], r"LDG\.\S*128\S*") == count(found["wide"], r"LDG\..*") == 2
    for kernel in found.values():
        assert count(kernel, "STL.*|LDL.*") == 0
