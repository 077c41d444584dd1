"""The page of a trace: whole, small, safe, and alive in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import call, host, kernel, step, write

from ridgeline.diagnose.trace_answers import RankAnswers, rank_answers, trace_answers
from ridgeline.report.page import draw_page
from ridgeline.report.views.trace_page import trace_page_document
from ridgeline.trace.compare.comparison import compare_traces
from ridgeline.trace.critical_path.path import critical_path
from ridgeline.trace.critical_path.rank_path import rank_path
from ridgeline.trace.formats.kineto import read_kineto
from ridgeline.trace.pictures.export import export_chrome

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
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


def test_a_page_of_a_long_trace_stays_small_and_says_what_it_left_out(tmp_path: Path) -> None:
    page = a_page(tmp_path, kernels=30_000)
    assert len(page) < 3_000_000
    assert re.search(r"[\d,]+ of [\d,]+ events are too short to draw", page)


def test_a_trace_without_gpu_work_has_a_page_too(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path / "cpu.json", [host(0, 5, "aten::add")]))
    page = trace_page([rank_answers(trace)])
    assert "cpu-only" in page
    assert "Timeline" in page


TELL = """<script>
addEventListener("load", () => setTimeout(() => {
  const canvas = document.querySelector("canvas.timeline");
  const pixels = (one) => {
    const data = one.getContext("2d").getImageData(0, 0, one.width, one.height).data;
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4) seen.add(data[at] << 16 | data[at + 1] << 8 |
    data[at + 2]); return seen.size;
  };
  const before = canvas.toDataURL();
  canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: -900, clientX: 300, cancelable: true}));
  const zoomed = canvas.toDataURL() !== before;
  const table = document.querySelector("table.sortable tbody tr:nth-child(6)").closest("table");
  const head = [...table.tHead.rows[0].cells].find((cell) => cell.textContent === "time" ||
  cell.textContent === "total" || cell.textContent === "length"); head.click();
  const column = head.cellIndex;
  const values = [...table.tBodies[0].rows].map((row) => Number(row.cells[column].dataset.value));
  const filter = table.closest("section").querySelector(".filter");
  filter.value = "nothing has this name";
  filter.dispatchEvent(new Event("input"));
  const told = {
    failures: failures, colours: pixels(canvas), flame:
    pixels(document.querySelector("canvas.flame")), zoomed: zoomed, sorted: values.every((value,
    at) => at === 0 || values[at - 1] >= value), left: [...table.tBodies[0].rows].filter((row) =>
    !row.hidden).length, wide: document.documentElement.scrollWidth <= innerWidth, broken:
    window.broken === 1,
  };
  const text = document.createElement("pre");
  text.id = "told";
  text.textContent = JSON.stringify(told);
  document.body.append(text);
}, 800));</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome")
def test_in_a_browser_it_draws_zooms_sorts_and_filters(tmp_path: Path) -> None:
    watch = "<script>window.failures = []; onerror = (text) => { failures.push(text); };</script>"
    page = a_page(tmp_path).replace("<style>", f"{watch}<style>", 1)
    (tmp_path / "page.html").write_text(page.replace("</body>", f"{TELL}</body>"))
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=6000",
        "--window-size=1300,900", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
        (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r'<pre id="told">(.*?)</pre>', shown.stdout)
    assert told is not None, shown.stdout[-2000:]
    seen = json.loads(told.group(1))
    assert seen["failures"] == []
    assert seen["colours"] > 5
    assert seen["flame"] > 5
    assert seen["zoomed"]
    assert seen["sorted"]
    assert seen["left"] == 0
    assert seen["wide"]
    assert not seen["broken"]


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
    traces = [
        read_kineto(write(folder / f"rank{rank}.json", events)) for rank, events in enumerate(ranks)
    ]
    assert "<h2>" in trace_page([rank_answers(trace, ranks=3) for trace in traces])
    path = critical_path(traces, {"gemm": 10.0})
    assert path.path_us == pytest.approx(path.window_us, abs=1e-6)
    assert path.what_if is None or path.what_if.saved_us >= 0
    export_chrome(traces, [rank_path(trace) for trace in traces], folder / "out.json")
    json.loads((folder / "out.json").read_text())
    if len(traces[0].gpu):
        verdict = compare_traces(traces[0], traces[0]).verdict
        assert verdict in {"same", "cannot tell", "not comparable"}
