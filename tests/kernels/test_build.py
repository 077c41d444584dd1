"""Compiling the C++ kernels: once, whole or not at all, and with a clear word when it cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.cradle import Child, cradle

from ridgeline.errors import InputError
from ridgeline.kernels.cpu import build

SMALL = 'extern "C" int answer() { return %d; }\n'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.cpp"
    path.write_text(SMALL % 1)
    return path


def test_a_library_is_built_once_and_found_again(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = build.built([source], tmp_path / "cache")
    assert "once per machine" in capfd.readouterr().err
    made = first.stat().st_mtime_ns
    assert build.built([source], tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == made
    assert capfd.readouterr().err == ""


def test_a_changed_source_or_header_is_another_library(source: Path, tmp_path: Path) -> None:
    libraries = {build.built([source], tmp_path / "cache")}
    source.write_text(SMALL % 2)
    libraries.add(build.built([source], tmp_path / "cache"))
    (tmp_path / "new.h").write_text("#pragma once\n")
    libraries.add(build.built([source], tmp_path / "cache"))
    assert len(libraries) == 3


def test_without_a_compiler_one_line_says_what_to_install(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "COMPILER", "g++-of-nobody")
    with pytest.raises(InputError, match=r"g\+\+-of-nobody is not installed.*apt install g\+\+"):
        build.built([source], tmp_path / "cache")


def test_what_does_not_compile_is_quoted_and_leaves_nothing_behind(
    source: Path, tmp_path: Path
) -> None:
    source.write_text("int answer( { }\n")
    with pytest.raises(InputError, match=r"cannot compile the CPU kernels: .*answer\.cpp:1"):
        build.built([source], tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.o*"))
    assert not list((tmp_path / "cache").glob("*.so*"))


def test_a_folder_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match="cannot keep compiled kernels"):
        build.built([source], tmp_path / "cache")


def builder(source: Path, log: Path, **variables: str) -> Child:
    """A process of its own that builds into the folder `cache` beside the source."""
    return Child(
        cradle().bear(
            "tests.kernels.test_build:build_here",
            [str(source)],
            log=log,
            environment={**os.environ, **variables},
        )
    )


def build_here(source: str) -> None:
    build.built([Path(source)], Path(source).parent / "cache")


def test_a_build_that_was_killed_is_done_again(source: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    begun = tmp_path / "begun"
    (tools / "g++").write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 60\n")
    (tools / "g++").chmod(0o755)
    process = builder(source, tmp_path / "log", PATH=f"{tools}:{os.environ['PATH']}")
    deadline = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert build.built([source], tmp_path / "cache").exists()


def test_processes_that_start_together_build_once(source: Path, tmp_path: Path) -> None:
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    processes = [builder(source, log) for log in logs]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert sum("compiling" in log.read_text() for log in logs) == 1


def test_kernels_and_torch_share_one_pool_of_threads() -> None:
    build.load()
    torch.randn(512, 512) @ torch.randn(512, 512)
    maps = Path("/proc/self/maps").read_text().splitlines()
    pools = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}
    assert len(pools) == 1, pools


@pytest.mark.slow
def test_a_cpu_without_avx512_computes_the_same(tmp_path: Path) -> None:
    code = (
        "import pytest, sys\nfrom ridgeline.kernels.cpu import build\n"
        "build.FLAGS += ('-mno-avx512f',)\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(Path(__file__).parent)!r} + "
        "'/test_paged_attention.py', "
        f"{str(Path(__file__).parent)!r} + '/test_rms_norm.py', "
        f"{str(Path(__file__).parent)!r} + '/test_gated_activation.py']))\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
