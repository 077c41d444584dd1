"""Compiling the C++ kernels: once, whole or not at all, and with a clear word when it cannot be."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cradle import Child, cradle

from ridgeline.errors import InputError
from ridgeline.kernels.cpu import build, compiler

SMALL = 'extern "C" int answer() { return %d; }\n'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.cpp"
    path.write_text(SMALL % 1)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of the PATH, with no CXX."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def built(source: Path) -> Path:
    """The library of one source, in the folder `cache` beside it."""
    recipe = build.recipe_of("answer", [[source]], source.parent / "cache")
    return Path(build.build_missing([recipe])[0].path)


def left_behind(source: Path) -> list[Path]:
    found = [path for path in (source.parent / "cache").rglob("*") if path.is_file()]
    return [path for path in found if path.name != "lock" and path.suffix not in (".cpp", ".log")]


def test_a_library_is_built_once_and_found_again(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = built(source)
    assert "once per machine" in capfd.readouterr().err
    made = first.stat().st_mtime_ns
    assert built(source) == first
    assert first.stat().st_mtime_ns == made
    assert capfd.readouterr().err == ""


def test_a_changed_source_or_header_is_another_library(source: Path, tmp_path: Path) -> None:
    libraries = {built(source)}
    source.write_text(SMALL % 2)
    libraries.add(built(source))
    (tmp_path / "new.h").write_text("#pragma once\n")
    libraries.add(built(source))
    assert len(libraries) == 3


def test_every_source_is_part_of_one_library() -> None:
    listed = [name for groups in build.LIBRARIES.values() for group in groups for name in group]
    assert sorted(listed) == sorted(path.stem for path in build.SOURCES.glob("*.cpp"))


def test_what_was_made_ahead_is_found_without_a_compiler(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = built(source)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert built(source) == made


def test_without_a_compiler_the_reason_names_what_was_looked_for(source: Path, tools: Path) -> None:
    with pytest.raises(compiler.Unavailable, match=r"no C\+\+ compiler .*c\+\+, g\+\+, clang\+\+"):
        built(source)


def test_the_first_compiler_that_compiles_is_taken(
    source: Path, tools: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = os.environ["PATH"]
    os.environ["PATH"] = os.defpath
    good = shutil.which("g++")
    os.environ["PATH"] = path
    assert good is not None
    tool(tools, "c++", "echo 'error: C++98 only' >&2; exit 1")
    tool(tools, "g++", f'PATH={os.defpath} exec {good} "$@"')
    found = compiler.find_compiler(compiler.settings())
    assert found.command == ("g++",)
    assert built(source).exists()


def test_a_compiler_that_cannot_is_quoted(source: Path, tools: Path) -> None:
    tool(tools, "c++", "echo 'error: C++98 only' >&2; exit 1")
    with pytest.raises(compiler.Unavailable, match=r"c\+\+: it does not compile.*C\+\+98 only"):
        built(source)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("g++-of-nobody", r"^CXX=g\+\+-of-nobody: no program 'g\+\+-of-nobody'.*unset it$"),
        ("true", r"^CXX=true: it does not compile C\+\+20 \(.*makes nothing\)"),
        ("g++ -std=c++98 -fsyntax-only", r"^CXX='?g\+\+ -std.*: it does not compile C\+\+20"),
        ("g++ '", r"^CXX=g\+\+ ': no closing quotation"),
    ],
)
def test_a_wrong_cxx_is_one_line(
    source: Path, monkeypatch: pytest.MonkeyPatch, value: str, line: str
) -> None:
    monkeypatch.setenv("CXX", value)
    with pytest.raises(InputError, match=line) as raised:
        built(source)
    assert not isinstance(raised.value, compiler.Unavailable)


def test_cxx_may_have_arguments(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write_text("#ifndef ASKED\n#error not asked\n#endif\n")
    monkeypatch.setenv("CXX", "g++ -DASKED")
    assert built(source).exists()


@pytest.mark.parametrize(
    ("machine", "value", "line"),
    [
        ("x86_64", "pentium", r"RIDGELINE_CPU_TARGET=pentium: known are native, avx2, avx512, "),
        ("aarch64", "avx2", r"RIDGELINE_CPU_TARGET=avx2 is for x86-64, this is aarch64; unset it"),
    ],
)
def test_a_target_that_means_nothing_here_is_one_line(
    monkeypatch: pytest.MonkeyPatch, machine: str, value: str, line: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(InputError, match=line):
        compiler.settings({"RIDGELINE_CPU_TARGET": value})


def test_a_target_beyond_this_cpu_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(compiler, "instructions", lambda: "fma avx2 f16c bmi1 bmi2 movbe abm")
    compiler.settings({"RIDGELINE_CPU_TARGET": "avx2"}).check_cpu()
    with pytest.raises(InputError, match=r"avx512: this CPU lacks avx512f, .*avx512vl; unset it"):
        compiler.settings({"RIDGELINE_CPU_TARGET": "avx512"}).check_cpu()


def test_each_target_is_another_library(source: Path) -> None:
    paths = {
        build.recipe_of("answer", [[source]], source.parent, target).path
        for target in (compiler.NATIVE, *compiler.TARGETS)
    }
    assert len(paths) == 1 + len(compiler.TARGETS)


def test_what_does_not_compile_is_quoted_and_leaves_nothing_behind(source: Path) -> None:
    source.write_text("int answer( { }\n")
    with pytest.raises(
        compiler.Unavailable, match=r"cannot compile the CPU kernels: .*answer\.cpp:1"
    ):
        built(source)
    assert not left_behind(source)


def test_a_folder_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(compiler.Unavailable, match="cannot keep compiled kernels"):
        built(source)


def test_a_library_that_does_not_load_is_named(tmp_path: Path) -> None:
    torn = tmp_path / "torn.so"
    torn.write_bytes(b"\x7fELF torn")
    with pytest.raises(compiler.Unavailable, match=r"torn\.so does not load: .*; remove it"):
        build._load(torn)


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
    built(Path(source))


def slow_compiler(folder: Path) -> tuple[str, Path]:
    """A CXX that compiles probes and then hangs, and the file into which it puts its number."""
    begun = folder / "begun"
    folder.mkdir()
    tool(
        folder,
        "slow-c++",
        'case "$*" in *probe.cpp*|*--version*) exec g++ "$@";; esac\n'
        f"echo $$ > {begun}.new; mv {begun}.new {begun}; exec sleep 600",
    )
    return str(folder / "slow-c++"), begun


def when_written(path: Path, process: Child) -> int:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    return int(path.read_text())


def wait_until_gone(pid: int) -> None:
    """Until it has ended; whose parent ended first may still wait to be buried."""
    stat = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 120
    with contextlib.suppress(OSError):  # it is gone
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_build_that_was_killed_is_done_again(source: Path, tmp_path: Path) -> None:
    slow, begun = slow_compiler(tmp_path / "tools")
    process = builder(source, tmp_path / "log", CXX=slow)
    compiling = when_written(begun, process)
    os.killpg(process.pid, signal.SIGKILL)
    os.kill(compiling, signal.SIGKILL)
    process.wait()
    (source.parent / "cache" / "objects" / "answer-0.o.1.part").write_text("left behind")
    assert built(source).exists()
    assert not list(tmp_path.rglob("*.part"))


def test_an_interrupted_build_ends_its_compilers_and_leaves_nothing(
    source: Path, tmp_path: Path
) -> None:
    slow, begun = slow_compiler(tmp_path / "tools")
    process = builder(source, tmp_path / "log", CXX=slow)
    compiling = when_written(begun, process)
    os.kill(process.pid, signal.SIGINT)
    process.wait(120)
    wait_until_gone(compiling)
    assert not left_behind(source)
    assert (tmp_path / "log").read_text().splitlines()[0].endswith("… stopped")


def test_processes_that_start_together_build_once(source: Path, tmp_path: Path) -> None:
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    processes = [builder(source, log) for log in logs]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert sum("compiling" in log.read_text() for log in logs) == 1


@pytest.mark.slow
def test_kernels_and_torch_share_one_pool_of_threads() -> None:
    code = (
        "import torch\nfrom ridgeline.kernels.cpu import build\nbuild.load(build.CORE)\n"
        "torch.randn(512, 512) @ torch.randn(512, 512)\nprint(open('/proc/self/maps').read())"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    maps = said.stdout.splitlines()
    pools = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}
    assert len(pools) == 1, pools
