"""What `ridgeline trace` prints where nobody can make the window wider: a pipe, a log of CI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.trace.conftest import real_traces  # noqa: F401 - a fixture
from tests.trace.written import call, host, kernel, step, write

from ridgeline.cli.main import run
from ridgeline.cli.trace_questions import QUESTIONS
from ridgeline.trace.kernel_names import short_name
from ridgeline.trace.load import load_traces
from ridgeline.trace.time.kernels import kernel_use

LONG = "cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1_with_an_epilogue_of_its_own"
LINE = "a_package/of_a_long_name/modeling_something_large.py(1421): box_predictor"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events = []
    for number in range(1, 6):
        at = number * 1000.0
        events += [
            step(at, 990, number),
            host(at, 900, LINE, "python_function"),
            host(at + 1, 500, "aten::linear_of_a_very_long_name_that_someone_gave_it"),
            call(at + 2, 5, number),
            call(at + 500, 200, 100 + number, "cudaStreamSynchronize"),
            kernel(at + 90, 600, correlation=number, name=LONG),
            kernel(at + 800, 9, name="softmax"),
        ]
    return write(tmp_path / "a_trace_with_a_name_that_is_longer_than_any_column_has_room_for.json",
                 events)  # fmt: skip


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run(["trace", *words]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_long_name_stands_whole_above_its_figures(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(["kernels", str(trace)], capsys)
    at = lines.index(LONG)
    assert lines[at + 1].split()[:3] == ["gemm", "5", "3.00"]
    short = next(line for line in lines if line.startswith("softmax"))
    heading = next(line for line in lines if line.startswith("kernel "))
    assert short.index("softmax") == 0
    for line in (lines[at + 1], short):  # figures stand under their heading
        assert line.index("5 ") == heading.index("count") + 4


def test_a_file_is_named_whole(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for question in ("summary", "overlap", "launch"):
        assert trace.name in printed([question, str(trace)], capsys), question


def test_a_line_of_code_is_never_cut(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(["sync", str(trace)], capsys)
    assert any("modeling_something_large.py:1421 box_predictor" in line for line in lines)


def test_on_a_terminal_names_are_cut_to_one_line(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    text = "\n".join(printed(["kernels", str(trace)], capsys))
    assert LONG not in text
    assert "cutlass_75_tensorop" in text
    text = "\n".join(printed(["sync", str(trace)], capsys))
    assert "a_package" not in text, "a path loses its beginning"
    assert "box_predictor" in text


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_nothing_is_left_out_at_any_width(
    question: str,
    width: int,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if question in {"counters", "export", "report", "stack"}:
        pytest.skip("reads another file, or prints a line, or lines for another program")
    monkeypatch.setenv("COLUMNS", str(width))
    files = [str(trace)] * (2 if question == "compare" else 1)
    if question in {"stragglers", "ranks"}:
        files = [str(write(tmp_path / f"r{rank}.json", [
            kernel(100.0 * n + rank, 50, name=f"ncclDevKernel_{LONG}") for n in range(1, 6)
        ])) for rank in (0, 1)]  # fmt: skip
    lines = printed([question, *files], capsys)
    assert not [line for line in lines if "…" in line]
    monkeypatch.setenv("COLUMNS", "1000")
    parts = re.split(r"[\s/_,(<]+|::", " ".join(printed([question, *files], capsys)))
    narrow = " ".join(lines)
    assert not [part for part in parts if part not in narrow]
    longest = max(map(len, (LONG, LINE, trace.name))) + 40
    assert all(len(line) <= width or len(line) < longest for line in lines)


def test_every_kernel_of_real_traces_is_there_whole(
    real_traces: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = real_traces / "h100_inference" / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    (use,) = kernel_use(load_traces(path)[0], top=100)
    lines = "\n".join(printed(["kernels", str(path), "--top", "100"], capsys))
    assert len(use.kernels) > 10
    for kernel_of in use.kernels:
        assert short_name(kernel_of.name) in lines
