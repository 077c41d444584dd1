"""`ridgeline lesson`: what is predicted is what is counted, and exercises are marked rightly."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.warm_scripts import run_module_warm

from ridgeline.cli.main import run
from ridgeline.lessons import conduct
from ridgeline.lessons.cache_counts import misses

HERE = Path(__file__).parent
NAMES = [one.name for one in conduct.lessons()]
QUICK_LESSON = "coalescing"
QUICK_ANSWERS = ()
MOST_CPU_SECONDS = 20.0


def answered(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = run(["lesson", *words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def skip_without_its_packages(name: str) -> None:
    for module in conduct.needs(name):
        pytest.importorskip(module)


def quick(*names: str) -> list[Any]:
    return [pytest.param(one, marks=() if one in names else pytest.mark.slow) for one in NAMES]


def test_what_a_lesson_predicts_is_what_it_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "subprocess", SimpleNamespace(run=run_module_warm))
    holds(QUICK_LESSON, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_lesson_counts_what_it_predicts_in_few_seconds(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_its_packages(name)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    holds(name, capsys)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < MOST_CPU_SECONDS


def holds(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answered(name, capsys=capsys)
    assert code == 0
    assert len(found["figures"]) >= 2
    for one in found["figures"]:
        assert one["predicted"] == pytest.approx(one["counted"], rel=1e-9), one
    kernels = {one["kernel"].partition(":")[0] for one in found["figures"]}
    assert {"bad", "good"} <= kernels | {one["kernel"][:4].rstrip(":") for one in found["times"]}
    assert found["results"] >= 1
    assert found["largest_error"] < 1e-5
    assert found["why"].endswith(".")
    assert found["on_a_gpu"]


@pytest.mark.parametrize("name", quick(*QUICK_ANSWERS))
def test_an_exercise_starts_wasteful_and_an_answer_passes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_its_packages(name)
    start = tmp_path / "mine.py"
    assert run(["lesson", name, "--exercise", str(start)]) == 0
    capsys.readouterr()
    code, found = answered(name, "--check", str(start), capsys=capsys)
    assert (code, found["passed"]) == (3, False)
    assert any(one["passed"] for one in found["marks"])
    answer = HERE / "solutions" / f"{name.replace('-', '_')}.py"
    code, found = answered(name, "--check", str(answer), capsys=capsys)
    assert [one for one in found["marks"] if not one["passed"]] == []
    assert (code, found["passed"]) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bank-conflicts", "reduction"])
def test_a_barrier_that_is_left_out_is_a_race(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_its_packages(name)
    answer = (HERE / "solutions" / f"{name.replace('-', '_')}.py").read_text()
    assert answer.count("    cuda.syncthreads()\n") == 1
    (tmp_path / "mine.py").write_text(answer.replace("    cuda.syncthreads()\n", ""))
    code, found = answered(name, "--check", str(tmp_path / "mine.py"), capsys=capsys)
    assert (code, found["passed"]) == (3, False)
    (races,) = [one for one in found["marks"] if one["what"] == "races in shared memory"]
    assert races["found"] > 0


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("inside = at < size", "inside = at <= size", "lanes outside of every tensor"),
        pytest.param(
            "(triton.cdiv(p.numel(), 1024),)", "(triton.cdiv(p.numel(), 1024), 2)",
            "places that programs race for", marks=pytest.mark.slow,
        ),
    ],
    ids=["a lane too many", "every number twice"],
)  # fmt: skip
def test_an_answer_that_only_the_interpreter_forgives_does_not_pass(
    old: str,
    new: str,
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conduct, "subprocess", SimpleNamespace(run=run_module_warm))
    text = (HERE / "solutions/adamw.py").read_text()
    assert text.count(old) == 1
    (tmp_path / "mine.py").write_text(text.replace(old, new))
    code, found = answered("adamw", "--check", str(tmp_path / "mine.py"), capsys=capsys)
    assert (code, found["passed"]) == (3, False)
    assert what in {one["what"] for one in found["marks"] if not one["passed"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("coalescing", ", mask=column < columns)", ")"),
        ("layouts", "inside = pixel < pixels", "inside = pixel < 64 * tl.num_programs(1)"),
    ],
)
def test_an_answer_for_whole_tiles_alone_does_not_pass(
    name: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (HERE / f"solutions/{name}.py").read_text()
    assert text.count(old) == 1
    (tmp_path / "mine.py").write_text(text.replace(old, new))
    code, found = answered(name, "--check", str(tmp_path / "mine.py"), capsys=capsys)
    assert (code, found["passed"]) == (3, False)


@pytest.mark.slow
def test_an_index_before_an_array_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_its_packages("bank-conflicts")
    text = (HERE / "solutions/bank_conflicts.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("x[row, column]", "x[row - 1, column]"))
    assert run(["lesson", "bank-conflicts", "--check", str(tmp_path / "mine.py")]) == 2
    assert "lies before the array" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_fits_into_eighty_columns(name: str) -> None:
    skip_without_its_packages(name)
    words = [sys.executable, "-m", "ridgeline.cli.main", "lesson", name]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"}
    )
    lines = done.stdout.splitlines()
    # A path is not cut, so that it can be copied.
    assert not [one for one in lines if len(one) > 80 and "CUDA C++" not in one and " " in one]
    assert "differs" not in done.stdout


def test_every_lesson_has_an_exercise_and_stands_in_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["lesson", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["lessons"]
    assert [one["name"] for one in listed] == NAMES
    assert len(NAMES) == len(set(NAMES)) == 14
    for one in listed:
        assert one["title"].endswith(".")
        assert f"Exercise of the lesson {one['name']}" in conduct.exercise(one["name"])
    assert run(["lesson", "--list"]) == 0
    assert NAMES[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["coalesing"], "did you mean coalescing"),
        (["--check", "mine.py"], "need the name of a lesson"),
        (["coalescing", "--check", "mine.py", "--exercise", "new.py"], "give one"),
        (["coalescing", "--check", "absent.py"], "--check absent.py: no such file"),
        (["coalescing", "--check", "mine.py"], "--check mine.py: defines no solve()"),
        (["coalescing", "--check", "broken.py"], "--check broken.py, line 1: is no Python"),
        (["coalescing", "--exercise", "mine.py"], "is there already"),
        pytest.param(
            ["memory-hierarchy", "--check", "fails.py"],
            "line 2: ZeroDivisionError",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["coalescing", "--check", "silent.py"],
            "solve() returned nothing; return the result",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["coalescing", "--check", "words.py"],
            "solve() returned str; return the numbers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["divergence", "--check", "silent.py"],
            "what solve() takes or gives does not fit",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def solve(:\n")
    (tmp_path / "silent.py").write_text("def solve(*given):\n    pass\n")
    (tmp_path / "words.py").write_text("def solve(*given):\n    return 'right'\n")
    (tmp_path / "fails.py").write_text("def solve(rows, columns):\n    return 1 / 0\n")
    assert run(["lesson", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]
    assert (tmp_path / "mine.py").read_text() == "x = 1\n"
    assert not (tmp_path / "new.py").exists()


WITHOUT_A_KERNEL = {
    "coalescing": "x.sum(0)", "layouts": "x.mean(1)", "launch-geometry": "x + given[0]",
    "reduction": "x.sum()", "number-formats": "x.float().sum(1)", "bank-conflicts": "x.T.copy()",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_A_KERNEL)
def test_an_answer_that_launches_no_kernel_does_not_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_its_packages(name)
    file = tmp_path / "mine.py"
    file.write_text(f"def solve(x, *given):\n    return {WITHOUT_A_KERNEL[name]}\n")
    code, found = answered(name, "--check", str(file), capsys=capsys)
    assert code == 3
    assert found["marks"][0]["passed"]
    assert not all(one["passed"] for one in found["marks"])


BESIDE = "results that are right without the kernels"
UNWRITTEN = "bytes of results that no kernel wrote"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new", "missed"),
    [
        ("coalescing", "return out", "return x.sum(0)", {BESIDE, UNWRITTEN}),
        ("tiled_matmul", "return out", "return torch.mm(a, b, out=out)", {BESIDE}),
        ("divergence", "return parts.sum()", "return float(x[mask].sum())", {BESIDE}),
        ("reduction", "return out", "return np.array([x.sum()])", {BESIDE}),
        ("bank_conflicts", "return out", "return x.T.copy()", {BESIDE}),
        ("number_formats", "range(0, size, BLOCK)", "range(0, size // 2, BLOCK)",
         {"relative error", "bytes loaded", "bytes given that no kernel read"}),
    ],
)  # fmt: skip
def test_a_result_from_elsewhere_than_the_kernel_does_not_pass(
    name: str,
    old: str,
    new: str,
    missed: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lesson = name.replace("_", "-")
    skip_without_its_packages(lesson)
    text = (HERE / f"solutions/{name}.py").read_text()
    assert text.count(old) == 1
    (tmp_path / "mine.py").write_text(text.replace(old, new))
    code, found = answered(lesson, "--check", str(tmp_path / "mine.py"), capsys=capsys)
    assert (code, found["passed"]) == (3, False)
    assert {one["what"] for one in found["marks"] if not one["passed"]} == missed


@pytest.mark.slow
def test_attention_that_is_computed_out_of_sight_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np, torch\n"
        "def solve(q, k, v):\n"
        "    scores = q.numpy() @ k.numpy().swapaxes(-1, -2) / q.shape[-1] ** 0.5\n"
        "    powers = np.exp(scores - scores.max(-1, keepdims=True))\n"
        "    return torch.from_numpy(powers / powers.sum(-1, keepdims=True) @ v.numpy())\n"
    )
    code, found = answered(
        "attention-backends", "--check", str(tmp_path / "mine.py"), capsys=capsys
    )
    assert (code, found["passed"]) == (3, False)
    missed = {one["what"] for one in found["marks"] if not one["passed"]}
    assert missed == {"products of matmuls"}


@pytest.mark.slow
def test_work_that_torch_does_before_the_kernel_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (HERE / "solutions/fusion.py").read_text()
    head = "def solve(x, b, r):\n"
    assert text.count(head) == 1
    before = "    x, b = x + b, torch.zeros_like(b)\n"
    (tmp_path / "mine.py").write_text(text.replace(head, head + before))
    code, found = answered("fusion", "--check", str(tmp_path / "mine.py"), capsys=capsys)
    assert (code, found["passed"]) == (3, False)
    missed = {one["what"] for one in found["marks"] if not one["passed"]}
    assert missed == {"bytes given that no kernel read"}


def test_a_loop_that_never_ends_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conduct, "LONGEST_SECONDS", 0.1)
    file = tmp_path / "endless.py"
    file.write_text("def solve(x):\n    while True:\n        pass\n")
    assert run(["lesson", "coalescing", "--check", str(file)]) == 2
    assert "no marks after 0.1 s; look for a loop" in capsys.readouterr().err


@given(st.lists(st.integers(0, 4096), max_size=200), st.integers(1, 8), st.sampled_from([16, 64]))
def test_a_cache_misses_each_line_once_and_less_as_it_grows(
    addresses: list[int], lines: int, line_bytes: int
) -> None:
    counts = [
        misses(addresses, size_bytes=room * line_bytes, line_bytes=line_bytes)
        for room in (lines, lines + 1, 10**6)
    ]
    distinct = len({one // line_bytes for one in addresses})
    assert counts[0] >= counts[1] >= counts[2] == distinct
