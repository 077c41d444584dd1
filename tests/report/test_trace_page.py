"""The page of a trace: whole, small and safe; `test_trace_page_in_a_browser.py` looks at it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import call, host, kernel, read_kineto, step, write

from ridgeline.cli.main import run
from ridgeline.diagnose.trace_answers import RankAnswers, rank_answers, trace_answers
from ridgeline.report.page import draw_page
from ridgeline.report.views.trace_page import trace_page_document
from ridgeline.trace.compare.comparison import compare_traces
from ridgeline.trace.critical_path.path import critical_path
from ridgeline.trace.pictures.export import export_chrome
from ridgeline.trace.pictures.tracks import rank_tracks

HOSTILE = "</script><script>window.broken = 1</script><b>kernel"


def trace_page(ranks: list[RankAnswers]) -> str:
    return draw_page(trace_page_document(trace_answers(ranks)))


def a_page(folder: Path, kernels: int = 60, ranks: int = 1) -> str:
    pages = []
    for rank in range(ranks):
        events = [step(0, 50.0 * kernels, 1), host(0, 20, "aten::mm"), host(30, 9, HOSTILE)]
        for number in range(1, kernels + 1):
            begin = 50.0 * number + rank
            events += [
                host(begin, 20, "aten::mm"), call(begin + 5, 3, number),
                kernel(begin + 10, 25, correlation=number,
                       name=HOSTILE if number % 2 else "ncclDevKernel_AllReduce"),
            ]  # fmt: skip
        path = write(folder / f"rank{rank}.json", events)
        pages.append(rank_answers(read_kineto(path), ranks=ranks))
    return trace_page(pages)


def test_a_page_has_a_section_for_every_question(tmp_path: Path) -> None:
    page = a_page(tmp_path, ranks=2)
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "What bounds it", "Timeline", "Ranks", "Stragglers", "Critical path", "Idle gaps",
        "Kernels", "Classes of kernels", "Exposed communication and copies",
        "Collectives", "Launches",
        "Steps", "Operators", "Flame graph",
    ]  # fmt: skip


def test_names_from_a_trace_stay_text(tmp_path: Path) -> None:
    page = a_page(tmp_path)
    assert "<script>window.broken" not in page
    assert page.count("<script") == 2
    assert "http" not in re.sub(r"http-equiv", "", page)


@pytest.mark.slow
def test_a_page_of_a_long_trace_stays_small_and_says_what_it_left_out(tmp_path: Path) -> None:
    page = a_page(tmp_path, kernels=30_000)
    assert len(page) < 3_000_000
    assert re.search(r"[\d,]+ of [\d,]+ events are joined with their neighbours", page)


def test_a_trace_without_gpu_work_has_a_page_too(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path / "cpu.json", [host(0, 5, "aten::add")]))
    page = trace_page([rank_answers(trace)])
    assert "cpu-only" in page
    assert "Timeline" in page


@pytest.mark.slow
def test_a_page_of_many_ranks_has_quartiles_outliers_and_every_rank_to_look_up(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(40):
        length = 300.0 if rank == 17 else 20.0 + rank % 3
        events = [step(0, 400, 1), call(2, 3, 1), kernel(10, length, correlation=1),
                  call(330, 3, 2), kernel(350, 5, correlation=2)]  # fmt: skip
        write(folder / f"rank{rank}.json", events)
    page = tmp_path / "page.html"
    assert run(["trace", "report", str(folder), "--html", str(page)]) == 0
    text = page.read_text()
    assert "upper quartile" in text
    (busy,) = re.findall(r'<tr><td class="text">busy</td>(.*?)</tr>', text)
    assert re.findall(r">([^<>]+)</td>", busy)[-2:] == ["17", "17"]
    assert "Ends and outliers among 40 ranks" in text
    (every,) = re.findall(r"<summary>All 40 ranks</summary>(.*?)</details>", text, re.DOTALL)[:1]
    assert every.count("<tr>") == 41
    assert re.search(r"Drawn: [34] of 40 ranks", text)
    assert "longest window" in text


def test_many_steps_are_quartiles_with_the_slow_one_named(tmp_path: Path) -> None:
    events, now = [], 0.0
    for number in range(257):
        length = 900.0 if number == 100 else 100.0 + number % 5
        events += [step(now, length, number), call(now, 3, number + 1),
                   kernel(now + 5, 50, correlation=number + 1)]  # fmt: skip
        now += length
    page = trace_page([rank_answers(read_kineto(write(tmp_path / "t.json", events)))])
    (steps,) = re.findall(r"<h2>Steps</h2>(.*?)</section>", page, re.DOTALL)
    shown, folded = steps.split("<summary>All 257 steps</summary>")
    assert re.search(r'<td class="text">length</td>.*?<td class="text">100</td>', shown)
    assert 5 < shown.count("<tr>") < 25
    assert folded.count("<tr>") == 258


@pytest.mark.slow
def test_the_ranks_that_are_drawn_of_many_are_those_that_say_most(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(12):
        end = {3: 900.0, 7: 300.0}.get(rank, 600.0)
        write(folder / f"rank{rank}.json", [kernel(0, 10), kernel(end, 10)])
    page = tmp_path / "page.html"
    assert run(["trace", "report", str(folder), "--html", str(page)]) == 0
    found = re.search(r'"labels":(\[.*?\])', page.read_text())
    assert found is not None
    labels = json.loads(found.group(1))
    assert labels[0] == "rank 3 (longest window)"
    assert labels[2] == "rank 7 (shortest window)"


def test_a_few_steps_are_listed_with_their_numbers(tmp_path: Path) -> None:
    page = a_page(tmp_path)
    (steps,) = re.findall(r"<h2>Steps</h2>(.*?)</section>", page, re.DOTALL)
    assert re.findall(r"<th [^>]*>(.*?)</th>", steps)[:2] == ["step", "length"]
    assert re.findall(r'<td class="text"[^>]*>(.*?)</td>', steps) == ["1"]


stamps = st.integers(0, 400)
lengths = st.sampled_from([0, 0.5, 1, 7, 60, 2000])
any_event = st.one_of(
    st.builds(kernel, stamps, lengths, stream=st.integers(0, 2), correlation=st.integers(0, 6),
              name=st.sampled_from(["sgemm", "ncclAllReduce", ""]), device=st.integers(0, 1)),
    st.builds(kernel, stamps, lengths, correlation=st.integers(0, 6),
              name=st.just("Memcpy DtoH (Device -> Pageable)"), category=st.just("gpu_memcpy")),
    st.builds(call, stamps, lengths, st.integers(0, 6), tid=st.integers(1, 3),
              name=st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync",
                                    "cudaDeviceSynchronize", "hipStreamSynchronize"])),
    st.builds(host, stamps, lengths, st.sampled_from(["aten::mm", "<built-in f>", "x;y"]),
              st.sampled_from(["cpu_op", "python_function", "user_annotation", "overhead"]),
              tid=st.integers(1, 3)),
    st.builds(step, stamps, lengths, st.integers(0, 3)),
)  # fmt: skip


@given(st.lists(st.lists(any_event, min_size=1, max_size=25), min_size=1, max_size=3))
@settings(max_examples=80, deadline=None)
def test_any_trace_has_a_page_an_export_and_a_comparison(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[dict[str, Any]]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    files = [write(folder / f"rank{rank}.json", events) for rank, events in enumerate(ranks)]
    traces = [read_kineto(file) for file in files]
    assert "<h2>" in trace_page([rank_answers(trace, ranks=3) for trace in traces])
    path = critical_path(traces, {"gemm": 10.0})
    assert path.path_us == pytest.approx(path.window_us, abs=1e-6)
    assert path.what_if is None or path.what_if.saved_us >= 0
    export_chrome(files, [rank_tracks(trace) for trace in traces], folder / "out.json")
    json.loads((folder / "out.json").read_text())
    if len(traces[0].gpu):
        verdict = compare_traces(traces[0], traces[0]).verdict
        assert verdict in {"same", "cannot tell", "not comparable"}
