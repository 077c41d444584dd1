"""The nesting of a trace, and what is exported and drawn of it."""

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
from tests.trace.written import call, host, kernel, write

from ridgeline.trace.columns import Trace
from ridgeline.trace.critical_path.path import path_pieces
from ridgeline.trace.critical_path.rank_path import rank_path
from ridgeline.trace.formats.kineto import read_kineto
from ridgeline.trace.pictures.export import export_chrome
from ridgeline.trace.pictures.flame import FlameNode, flame_graph, folded, pruned
from ridgeline.trace.pictures.timeline import timeline

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
    paths = [rank_path(nested(tmp_path / "a.json"))] * 3
    counts = export_chrome(ranks(), paths, tmp_path / "out.json")
    assert len(seen) == 3
    assert counts["events"] == len(events_of(tmp_path / "out.json"))


@given(st.integers(100, 400), st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_a_timeline_keeps_its_budget_and_loses_no_time(
    tmp_path_factory: pytest.TempPathFactory, budget: int, seed: int
) -> None:
    chance = random.Random(seed)
    events, now = [], 0.0
    for _ in range(1500):
        length = chance.choice([1.0, 2.0, 400.0])
        events.append(kernel(now, length, name="k"))
        now += length + chance.choice([0.0, 0.5, 30.0])
    trace = read_kineto(write(tmp_path_factory.mktemp("t") / "t.json", events))
    drawn = timeline(trace, [], budget)
    (track,) = drawn.tracks
    assert len(track.slices) <= budget
    assert drawn.merged == 1500 - budget // 2
    kept = sum(length for _, length, _, kind, _ in track.slices if kind != "merged")
    longest = sorted((event["dur"] for event in events), reverse=True)[: budget // 2]
    assert kept == pytest.approx(sum(longest), rel=1e-3)
