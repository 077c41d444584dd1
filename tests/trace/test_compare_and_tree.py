"""Two traces side by side, the nesting of one, and what is exported and drawn of it."""

from __future__ import annotations

import gzip
import json
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import call, host, kernel, step, write

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.compare import compare_traces
from ridgeline.trace.critical_path.path import path_pieces
from ridgeline.trace.critical_path.rank_path import rank_path
from ridgeline.trace.formats.kineto import read_kineto
from ridgeline.trace.load import load_traces
from ridgeline.trace.pictures.export import export_chrome
from ridgeline.trace.pictures.flame import FlameNode, flame_graph, folded, pruned


def a_run(
    path: Path, *, slow: float = 1.0, steps: int = 8, seed: int = 1, extra: str = ""
) -> Trace:
    """Steps of two kernels with 2 % of noise; `slow` stretches the second."""
    chance = random.Random(seed)
    now, number, events = 0.0, 0, []
    for count in range(steps):
        begin = now
        for name, length in (("gemm", 500.0), ("softmax", 300.0 * slow), (extra, 50.0)):
            if not name:
                continue
            number += 1
            took = length * (1 + chance.uniform(-0.02, 0.02))
            events += [call(now, 2, number), kernel(now + 5, took, correlation=number, name=name)]
            now += 5 + took
        events.append(step(begin, now - begin, count))
    return read_kineto(write(path, events))


def test_noise_alone_is_the_same(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a.json"), a_run(tmp_path / "b.json", seed=2)
    found = compare_traces(a, b)
    assert (found.verdict, found.scale) == ("same", "steps")
    assert {row.status for row in found.rows} == {"same"}


def test_a_slower_kernel_is_found_with_its_interval(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a.json"), a_run(tmp_path / "b.json", slow=1.3, seed=2)
    found = compare_traces(a, b)
    assert found.verdict == "slower"
    assert found.ratio == pytest.approx(900 / 810, abs=0.02)
    first = found.rows[0]
    assert (first.name, first.status) == ("softmax", "slower")
    assert first.low_us is not None
    assert first.high_us is not None
    assert first.low_us < 90 < first.high_us
    assert compare_traces(b, a).verdict == "faster"


def test_what_is_new_and_gone_is_named(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a.json"), a_run(tmp_path / "b.json", extra="dropout", seed=3)
    status = {row.name: row.status for row in compare_traces(a, b).rows}
    assert status["dropout"] == "new"
    assert {row.name: row.status for row in compare_traces(b, a).rows}["dropout"] == "gone"


def test_a_longer_capture_of_the_same_work_is_not_slower(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a.json", steps=6), a_run(tmp_path / "b.json", steps=15, seed=5)
    assert compare_traces(a, b).verdict == "same"


def test_different_work_is_not_judged(tmp_path: Path) -> None:
    events = [kernel(100.0 * n, 50, name=f"other{n % 3}") for n in range(30)]
    other = read_kineto(write(tmp_path / "o.json", events))
    found = compare_traces(a_run(tmp_path / "a.json"), other)
    assert found.verdict == "not comparable"
    with pytest.raises(InputError, match="kernel, operator"):
        compare_traces(other, other, by="colour")


def test_of_the_published_pair_the_second_is_the_worse(real_traces: Path) -> None:
    before, after = (
        load_traces(real_traces / "nsys_2gpu" / f"mfu_2gpu_{name}.sqlite")
        for name in ("before", "after")
    )
    for a, b in zip(before, after, strict=True):
        found = compare_traces(a, b)
        assert found.verdict == "slower"
        assert found.idle_b_us > found.idle_a_us


spans = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 100), st.sampled_from("abc")))


@given(spans)
@settings(max_examples=60, deadline=None)
def test_own_times_add_up_to_the_root(
    tmp_path_factory: pytest.TempPathFactory, laid_out: list[tuple[int, int, str]]
) -> None:
    events = [host(start, length, name) for start, length, name in laid_out]
    if not events:
        return
    trace = read_kineto(write(tmp_path_factory.mktemp("t") / "t.json", events))

    def own(node: FlameNode) -> float:
        return node.own_us + sum(own(child) for child in node.children)

    for root in flame_graph(trace):
        assert own(root) == pytest.approx(root.host_us, abs=1e-6)
        assert all(child.host_us <= root.host_us + 1e-6 for child in root.children)


def nested(path: Path) -> Trace:
    events = [
        host(0, 100, "train.py(3): main", "python_function"), host(10, 50, "aten::linear"),
        host(20, 20, "aten::mm"), call(25, 5, 1), host(70, 20, "aten::mm"), call(75, 5, 2),
        kernel(40, 30, correlation=1), kernel(80, 7, correlation=2), kernel(95, 3, correlation=99),
    ]  # fmt: skip
    return read_kineto(write(path, events))


def test_gpu_time_belongs_to_all_that_is_around_its_launch(tmp_path: Path) -> None:
    (root,) = flame_graph(nested(tmp_path / "t.json"))
    assert root.gpu_us == 37, "what has no launch in the trace belongs to nobody"
    (main,) = root.children
    linear, mm = main.children
    assert (linear.name, linear.gpu_us, linear.own_us) == ("aten::linear", 30, 30)
    assert (mm.gpu_us, mm.calls) == (7, 1)
    assert pruned([root], 40, 9)[0].children[0].children[0].children == []


def test_folded_stacks_carry_every_own_microsecond(tmp_path: Path) -> None:
    lines = folded(nested(tmp_path / "t.json"))
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == 100
    assert any("train.py(3): main;aten::linear;aten::mm;cudaLaunchKernel 5" in x for x in lines)
    gpu = folded(nested(tmp_path / "t.json"), gpu=True)
    assert sum(int(line.rsplit(" ", 1)[1]) for line in gpu) == 37


def events_of(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_an_export_is_a_whole_chrome_trace_with_pairs_of_flows(tmp_path: Path, name: str) -> None:
    trace = nested(tmp_path / "t.json")
    counts = export_chrome([trace], [rank_path(trace)], tmp_path / name)
    events = events_of(tmp_path / name)
    assert len(events) == counts["events"]
    kinds = {kind: [e for e in events if e["ph"] == kind] for kind in ("X", "C", "s", "f", "M")}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in kinds["X"])
    assert {e["name"] for e in kinds["C"]} >= {"GPU busy %", "queue depth"}
    assert [e["id"] for e in kinds["s"]] == [e["id"] for e in kinds["f"]]
    path = [e for e in kinds["X"] if e["pid"] == 1_000_000]
    assert sum(e["dur"] for e in path) == pytest.approx(
        sum(piece.duration_us for piece in path_pieces([trace])), abs=0.01
    )
    assert {e["name"] for e in kinds["s"]} == {"launch", "critical path"}
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_an_exported_rank_is_moved_to_the_common_clock(tmp_path: Path) -> None:
    traces = []
    for rank, clock in enumerate((0.0, 90000.0)):
        events = [
            kernel(clock + 1000 * n, 100, name="ncclDevKernel_AllReduce") for n in range(1, 6)
        ]
        traces.append(read_kineto(write(tmp_path / f"rank{rank}.json", events)))
    export_chrome(iter(traces), [rank_path(trace) for trace in traces], tmp_path / "out.json")
    kernels = [e for e in events_of(tmp_path / "out.json")
               if e["ph"] == "X" and e["pid"] != 1_000_000]  # fmt: skip
    assert sorted(e["ts"] for e in kernels if e["pid"] < 10) == sorted(
        e["ts"] for e in kernels if e["pid"] > 10
    )


def test_an_export_lets_go_of_each_rank_before_it_asks_for_the_next(tmp_path: Path) -> None:
    def ranks() -> Iterator[Trace]:
        for rank in range(3):
            alive = [held for held in seen if held() is not None]
            assert not alive, "the rank before is still held"
            path = write(tmp_path / f"rank{rank}.json", [kernel(10.0 * n, 5) for n in range(9)])
            traces = [read_kineto(path)]
            seen.append(weakref.ref(traces[0].gpu.start_us))
            yield traces.pop()

    seen: list[weakref.ref[Any]] = []
    paths = [rank_path(trace) for trace in [a_run(tmp_path / "a.json", steps=2)] * 3]
    counts = export_chrome(ranks(), paths, tmp_path / "out.json")
    assert len(seen) == 3
    assert counts["events"] == len(events_of(tmp_path / "out.json"))
