"""`ridgeline kernels list` and `kernels build`, over a library of one small source."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.cradle import Child, cradle
from tests.kernels.test_build import slow_compiler, wait_until_gone, when_written

from ridgeline.cli.main import run
from ridgeline.kernels.cpu import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and one library that takes no time to compile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("RIDGELINE_CPU_TARGET", raising=False)
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 1; }\n')
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setattr(build, "LIBRARIES", {build.CORE: (("answer",),)})
    return tmp_path / "cache/ridgeline/kernels"


def test_what_is_built_is_listed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "list", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["libraries"] == {"core": None}
    assert (before["target"], before["folder"]) == ("native", str(cache))
    assert run(["kernels", "build", "--json"]) == 0
    out, err = capsys.readouterr()
    built = json.loads(out)
    assert "compiled 1 of 1 files" in err
    assert built["seconds"] >= built["libraries"]["core"]["seconds"] > 0
    assert Path(built["libraries"]["core"]["path"]).parent == cache
    assert run(["kernels", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["libraries"] == built["libraries"]


def test_the_table_says_where_and_for_which_cpu(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIDGELINE_CPU_TARGET", "avx2")
    assert run(["kernels", "build", "core"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "CPU kernels for the target avx2" in out
    assert "torch's pool" in out
    assert "ready after" in out


def test_another_compiler_named_by_cxx_makes_it_anew(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(["kernels", "build", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["libraries"]["core"]
    other = tmp_path / "other-c++"
    other.write_text('#!/bin/sh\ncase "$1" in --version) echo other 1.0;; *) exec g++ "$@";; esac')
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    for compiled in ("compiled 1 of 1", ""):
        assert run(["kernels", "build", "--json"]) == 0
        out, err = capsys.readouterr()
        second = json.loads(out)["libraries"]["core"]
        assert (second["path"], second["compiler"]) == (first["path"], "other 1.0")
        assert compiled in err if compiled else err == ""


def test_bad_input_is_one_line(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(["kernels", "build", "linear_int9"]) == 2
    assert "linear_int9: no library of kernels; known are core" in capsys.readouterr().err
    (tmp_path / "answer.cpp").write_text("int answer( { }\n")
    assert run(["kernels", "build"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("ridgeline: c++ cannot compile the CPU kernels: ")
    assert not list(cache.rglob("*.so"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["kernels", "build"]) == 2
    assert "no C++ compiler" in capsys.readouterr().err


def build_small(folder: str) -> None:
    build.SOURCES = Path(folder)
    build.LIBRARIES = {build.CORE: (("answer",),)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(run(["kernels", "build"]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_is_one_line_and_ends_the_compiler(
    cache: Path, tmp_path: Path, number: signal.Signals
) -> None:
    slow, begun = slow_compiler(tmp_path / "tools")
    process = Child(
        cradle().bear(
            "tests.cli.test_kernels:build_small",
            [str(tmp_path)],
            log=tmp_path / "log",
            environment={**os.environ, "CXX": slow},
        )
    )
    compiling = when_written(begun, process)
    os.kill(process.pid, number)
    assert process.wait(120) == 130
    assert (tmp_path / "log").read_text().splitlines()[-1] == "ridgeline: interrupted"
    wait_until_gone(compiling)
    assert not [path for path in cache.rglob("*") if path.suffix in (".o", ".so", ".part")]
