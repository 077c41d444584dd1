"""Modules that no other runtime takes: each ends in one line, the user's or the operator's."""

from __future__ import annotations

import importlib
import linecache
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.version import Version
from tests.runtimes.planted import modules

from ridgeline.errors import ExportError
from ridgeline.runtimes import ModelCall, runtime
from ridgeline.runtimes.capture.blame import blame
from ridgeline.runtimes.capture.converting import convert

pytestmark = pytest.mark.filterwarnings("ignore")

FAILURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # module: kind, words of the line, runtimes that it holds for
    "Suppresses": ("data-dependent-shape", "keep a fixed number", ("onnx", "openvino", "aoti")),
    "CountsNonzero": ("data-dependent-shape", "`nonzero` finds", ("onnx", "openvino", "aoti")),
    "BranchesOnItem": ("value-decides", "torch.where", ("onnx", "openvino", "aoti")),
    "AsksATensor": ("value-decides", "torch.where", ("onnx", "openvino", "aoti")),
    "WritesItsInput": ("writes-in-place", "x.clone()", ("onnx", "openvino", "aoti")),
    "LoopsOverTheBatch": ("fixed-size", "fixes the batch to 2", ("onnx", "openvino", "aoti")),
    "CorrelatesPairs": ("fixed-size", "the groups of a convolution", ("onnx", "openvino", "aoti")),
    "FixesTheBatch": ("fixed-size", "a batch of 1 and no other", ("onnx", "openvino", "aoti")),
    "ReturnsMore": ("varying-output", "['images']", ("onnx", "openvino", "aoti")),
    "ReturnsAnObject": ("unknown-output", "returns a ReturnsAnObject.Answer", ("onnx", "aoti")),
    "UsesNumpy": ("leaves-torch", ".numpy()", ("onnx", "openvino", "aoti")),
    "KeepsAGrid": ("needs-a-number", "without the cache", ("onnx", "openvino", "aoti")),
    "CountsItsCalls": ("writes-in-place", "the buffer `calls`", ("onnx", "openvino", "aoti")),
    "CountsInPython": ("changes-state", "self.step", ("onnx", "openvino", "aoti")),
    "RemembersAFrame": ("changes-state", "self.memory", ("onnx", "openvino", "aoti")),
    "TellsTheWorld": ("changes-state", "global LOG", ("onnx", "openvino", "aoti")),
    "FiltersByFourier": ("dtype-not-there", "complex64", ("openvino",)),
    "ReturnsComplex": ("dtype-not-there", "view_as_real", ("onnx", "openvino")),
    "FactorisesMatrices": ("operator-not-there", "aten._linalg_svd", ("onnx", "openvino")),
    "HasDropout": ("training-mode", "model.eval()", ("onnx", "openvino", "aoti")),
    "TakesAList": ("varying-structure", "stack lists", ("onnx", "openvino")),
    "CallsItsOwnKernel": ("operator-without-shapes", 'register_fake("planted::sharpen")',
                          ("onnx", "openvino", "aoti")),
    "CallsAKernelWithShapes": ("operator-not-there", "planted.soften", ("onnx", "openvino")),
    "HasItsOwnGradient": ("leaves-torch", ".numpy()", ("onnx", "openvino", "aoti")),
    "IsWatched": ("changes-state", "keep's kept", ("onnx", "openvino", "aoti")),
    "ComputesInFloat8": ("dtype-not-there", "float8_e8m0fnu", ("onnx", "openvino")),
    "DrawsAtRandom": ("operator-not-there", "aten.randperm", ("onnx", "openvino")),
}  # fmt: skip
CASES = [(name, one) for name, (_, _, runtimes) in FAILURES.items() for one in runtimes]
QUICK = [
    f"{name}-{runtimes[0]}"
    for index, (name, (_, _, runtimes)) in enumerate(FAILURES.items())
    if index % 12 == 0
]


def arguments(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    pixels = torch.randn(2, 3, 64, 64)
    if name == "FixesTheBatch":
        return (pixels[:1],), {}
    if name == "TakesAList":
        return ([pixels[0], pixels[1][:, :32]],), {}
    return (pixels,), {}


def planted_line(name: str) -> int | None:
    """Where in the module's forward the fault is marked."""
    cls = getattr(modules, name)
    if name == "HasItsOwnGradient":
        cls = modules.Rounds
    first = cls.forward.__code__.co_firstlineno
    for line in range(first, first + 20):
        text = linecache.getline(modules.__file__, line)
        if "# LINE" in text:
            return line
        if line > first and text.startswith(("class ", "@")):
            return None
    return None


@pytest.mark.sweep(*QUICK)
@pytest.mark.parametrize(("name", "where"), CASES, ids=[f"{name}-{one}" for name, one in CASES])
def test_it_ends_in_the_users_line_and_the_cure(name: str, where: str, tmp_path: Path) -> None:
    if name == "Suppresses" and Version(torch.__version__).release < (2, 13):
        pytest.xfail("torch 2.11 stops before the loop: it wants the value of the index `best`")
    torch.manual_seed(0)
    modules.register_kernels()
    kind, words, _ = FAILURES[name]
    model = getattr(modules, name)()
    if name != "HasDropout":
        model.eval()
    args, kwargs = arguments(name)
    more: dict[str, Any] = {}
    if name == "TakesAList":
        calls = [ModelCall(args, {}), ModelCall(([*args[0], args[0][0]],), {})]
        more = {"precision": "int8", "calibration": calls, "dynamic": ()}
    before = set(vars(model)), len(modules.LOG)
    with pytest.raises(ExportError) as caught:
        convert(runtime(where), model, args, kwargs, tmp_path / "made", **more)
    error, said = caught.value, str(caught.value)
    assert error.exit_code == 2
    assert error.kind == kind, said
    assert words in said
    assert len(said.splitlines()) == 1
    assert len(said) < 450 + 2 * len(str(tmp_path)), said
    line = planted_line(name)
    if line is not None and "returns" not in said:
        assert f"modules.py:{line}: `" in said
    assert not (tmp_path / "made").exists()
    if error.log:
        assert Path(error.log).stat().st_size > 200
        assert error.log in said
    assert (set(vars(model)), len(modules.LOG)) == (before[0], before[1])


def test_at_least_twenty_are_planted() -> None:
    assert len(FAILURES) >= 20
    assert len({kind for kind, _, _ in FAILURES.values()}) >= 10


def test_a_module_that_was_refused_runs_on_in_eager_torch(tmp_path: Path) -> None:
    model, pixels = modules.KeepsAGrid().eval(), torch.randn(2, 3, 64, 64)
    with pytest.raises(ExportError):
        convert(runtime("onnx"), model, (pixels,), {}, tmp_path / "made")
    with torch.no_grad():
        assert type(model(pixels)) is torch.Tensor


def test_a_module_that_fails_in_torch_itself_says_so(tmp_path: Path) -> None:
    model = modules.LoopsOverTheBatch().eval()
    with pytest.raises(ExportError, match="in PyTorch itself") as caught:
        convert(runtime("onnx"), model, (torch.randn(2, 4, 64, 64),), {}, tmp_path / "made")
    assert "modules.py:17: `return F.relu" in str(caught.value)


def _writing(module: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A runtime whose package was installed into a folder of its own, and what it does."""
    (path / "executorch").mkdir()
    (path / "executorch-1.0.dist-info").mkdir()
    (path / "executorch" / "__init__.py").write_text(f"def write(*_):\n    {module}\n")
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.delitem(sys.modules, "executorch", raising=False)
    write = importlib.import_module("executorch").write
    return SimpleNamespace(CARD=runtime("onnx").CARD, write=write)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("import nowhere_to_be_found", "not-installed", "pip install 'ridgeline[export]'"),
        ("raise ValueError('odd')", "not-followed", "forward cannot be followed"),
    ],
)
def test_what_fails_inside_a_runtime_is_no_line_of_the_users(
    body: str, kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowering = _writing(body, tmp_path, monkeypatch)
    with pytest.raises(ExportError) as caught:
        convert(lowering, torch.nn.Linear(4, 2).eval(), (torch.randn(2, 4),), {}, tmp_path / "o")
    assert (caught.value.kind, words in str(caught.value)) == (kind, True)
    assert "executorch/__init__.py" not in str(caught.value)
    assert not (tmp_path / "o").exists()


def test_a_pass_of_the_runtime_that_fails_is_not_blamed_on_an_operator() -> None:
    """As ExecuTorch 1.5 fails on CGNet: its message names the convolution that the pass made."""
    why = "expected input[1, 64, 16, 32] to have 35 channels, but got 64 channels instead"
    said = "An error occurred when running the 'FuseBatchNormPass' pass after the following: []"
    error = Exception(said)
    error.__cause__ = RuntimeError(why)
    found = blame(error, log="", runtime="ExecuTorch")
    assert found.kind == "own-pass"
    assert f"ExecuTorch's own FuseBatchNormPass fails on this graph ({why})" in str(found)
