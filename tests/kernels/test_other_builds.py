"""The kernels made for another CPU, by another compiler, and under sanitizers: the same checks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cradle import Child, cradle

from ridgeline.errors import InputError
from ridgeline.kernels.cpu import compiler

HERE = Path(__file__).parent
NAMES = (
    "paged_attention", "decoder_layers", "rms_norm", "gated_activation", "linear", "linear_int8",
    "linear_int4", "linear_w8a8", "column_products", "column_walk", "range_search", "boundaries",
)  # fmt: skip
FILES = [str(HERE / f"test_{name}.py") for name in NAMES]
QUICK = (
    "(test_paged_attention and not (reference_to or precision_over or alone_in or compiler)) or "
    "((test_rms_norm or test_gated_activation) and not compiler) or "
    "(test_linear.py and (fp32 or fp16 or bf16) and not compiler) or "
    "(test_decoder_layers and model)"
)
"""Of the first five files: what needs the library `core` only, without the longest."""


def have_avx2() -> None:
    """Skip where kernels for AVX2 do not run."""
    try:
        compiler.settings({"RIDGELINE_CPU_TARGET": "avx2"}).check_cpu()
    except InputError as error:
        pytest.skip(str(error))


def checked(words: list[str], log: Path, function: str = "run_pytest", **variables: str) -> None:
    """Run pytest over these words in a process of its own."""
    child = Child(
        cradle().bear(
            f"tests.kernels.test_other_builds:{function}",
            words,
            log=log,
            environment={**os.environ, "OMP_NUM_THREADS": "2", **variables},
        )
    )
    try:
        code = child.wait(1500)
    finally:
        child.kill()
    assert code == 0, log.read_text()[-6000:]


def run_pytest(*words: str) -> None:
    # Plain: plugins are imported already, too late for pytest to rewrite their assertions.
    settings = ["-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    raise SystemExit(pytest.main([*settings, *words]))


def run_pytest_for_avx2(*words: str) -> None:
    import torch

    assert torch.backends.cpu.get_cpu_capability() == "AVX2"
    run_pytest(*words)


AVX2 = {"RIDGELINE_CPU_TARGET": "avx2", "ATEN_CPU_CAPABILITY": "avx2"}


@pytest.mark.slow
def test_kernels_for_avx2_pass_the_checks_that_need_one_library(tmp_path: Path) -> None:
    have_avx2()
    checked([*FILES[:5], "-k", QUICK], tmp_path / "log", "run_pytest_for_avx2", **AVX2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kernels_for_avx2_pass_every_check(tmp_path: Path) -> None:
    have_avx2()
    checked(FILES, tmp_path / "log", "run_pytest_for_avx2", **AVX2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kernels_by_clang_pass_every_check(tmp_path: Path) -> None:
    found = next(
        (name for name in ("clang++", *(f"clang++-{n}" for n in range(21, 13, -1)))
         if shutil.which(name)), None,
    )  # fmt: skip
    if found is None:
        pytest.skip("no clang++ is installed (Debian, Ubuntu: apt install clang)")
    checked(FILES, tmp_path / "log", CXX=found, XDG_CACHE_HOME=str(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["native", "avx2"])
def test_sanitizers_find_nothing(tmp_path: Path, target: str) -> None:
    """Addresses and undefined behaviour; what is found ends the process."""
    if target == "avx2":
        have_avx2()
    runtimes = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "2",
        "XDG_CACHE_HOME": str(tmp_path),
        "RIDGELINE_CPU_TARGET": target,
        "CXX": "g++ -fsanitize=address,undefined -fno-sanitize-recover=all -g1",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    # The compiler must not run under the sanitizers itself.
    build = [sys.executable, "-m", "ridgeline.cli.main", "kernels", "build"]
    subprocess.run(build, env=environment, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *FILES],
        env=environment | {"LD_PRELOAD": " ".join(runtimes)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def _runtime(name: str) -> str:
    if shutil.which("g++") is None:
        pytest.skip("no g++ is installed")
    found = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip(f"g++ came without {name}")
    return found
