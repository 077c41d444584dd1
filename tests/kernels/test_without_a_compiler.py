"""A machine without a C++ compiler: the operators run on PyTorch's own, and one line says so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from tests.cradle import Child, cradle
from tests.kernels.test_paged_attention import case, empty_cache

from ridgeline.errors import InputError
from ridgeline.kernels.cpu import build

LIBRARY = str(Path(__file__).parents[2] / "examples/models/library")


def bare(function: str, folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Exit code and output of a process that finds no compiler and no compiled kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment |= {"PATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    log = folder / "log"
    child = Child(
        cradle().bear(
            f"tests.kernels.test_without_a_compiler:{function}",
            list(words),
            log=log,
            environment=environment,
        )
    )
    return child.wait(120), log.read_text()


def compare_all() -> None:
    """Every operator but the linear layers against its reference; no library of ours is loaded."""
    from ridgeline.kernels import gated_activation, rms_norm

    made = case([(5, 37), (1, 20)])
    torch.testing.assert_close(made.attend(), made.reference(), rtol=1e-5, atol=1e-5)
    again = empty_cache(len(made.cache.keys), 2, 16, 32, torch.int8)
    from ridgeline.kernels.paged_attention import write_cache

    write_cache(made.keys, made.values, again, made.packed)
    x, weight = torch.randn(7, 48), torch.randn(48)
    assert torch.equal(
        rms_norm.rms_norm(x, weight, 1e-6), rms_norm.rms_norm_reference(x, weight, 1e-6)
    )
    assert torch.equal(gated_activation.silu_mul(x, x), gated_activation.silu_mul_reference(x, x))
    step = torch.compile(lambda x: rms_norm.rms_norm(x, weight, 1e-6) * 2, backend="aot_eager")
    assert torch.equal(step(x), rms_norm.rms_norm_reference(x, weight, 1e-6) * 2)
    assert "ridgeline_core" not in Path("/proc/self/maps").read_text()


def ask() -> None:
    sys.stdout.write(json.dumps([build.unavailable(), build.unavailable()]) + "\n")
    with pytest.raises(InputError):
        build.load(build.CORE)


def command(*words: str) -> None:
    from ridgeline.cli.main import run

    raise SystemExit(run(words))


def test_every_operator_has_a_form_in_pytorch(tmp_path: Path) -> None:
    code, said = bare("compare_all", tmp_path)
    assert code == 0, said
    assert said.count("ridgeline: no C++ compiler") == 1
    assert "slower" in said
    assert "apt install g++" in said


def test_whoever_asks_hears_why_there_are_no_kernels(tmp_path: Path) -> None:
    code, said = bare("ask", tmp_path)
    assert code == 0, said
    first, again = json.loads(said.splitlines()[-1])
    assert first == again
    assert first.startswith("no C++ compiler (neither c++, g++, clang++ is on the PATH)")
    assert len(said.splitlines()) == 2


def test_with_kernels_there_is_no_reason() -> None:
    assert build.unavailable() is None


def test_a_wrong_setting_is_not_passed_over(tmp_path: Path) -> None:
    words = ("generate", LIBRARY, "--prompt", "a", "--device", "cpu", "--dtype", "fp32")
    for name, value in (("CXX", "nobody++"), ("RIDGELINE_CPU_TARGET", "pentium")):
        code, said = bare("command", tmp_path, *words, **{name: value})
        assert code == 2, said
        assert said.splitlines()[-1].startswith(f"ridgeline: {name}={value}: ")


@pytest.mark.slow
@pytest.mark.sweep("int4")
@pytest.mark.parametrize("weights", ["model", "int8", "int4"])
def test_a_model_generates_on_pytorch_alone(tmp_path: Path, weights: str) -> None:
    words = ("generate", LIBRARY, "--prompt", "import os", "--device", "cpu", "--dtype", "fp32")
    sizes = ("--max-tokens", "4", "--kv-bytes", "16MiB", "--weights", weights)
    code, said = bare("command", tmp_path, *words, *sizes, "--group-size", "32")
    assert code == 0, said
    assert said.count("ridgeline: no C++ compiler") == 1
