"""The nesting of a trace, and what is drawn of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import call, host, kernel, read_kineto, write

from ridgeline.trace.columns import Trace
from ridgeline.trace.pictures.flame import FlameNode, flame_graph, folded

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
    (root,) = flame_graph(nested(tmp_path / "t.json"), narrowest=0.4, deepest=9)
    (linear,) = root.children[0].children
    assert linear.children == [], "narrower than two fifths of the thread"
    (root,) = flame_graph(nested(tmp_path / "t.json"), deepest=2)
    assert root.children[0].children == []


def test_folded_stacks_carry_every_own_microsecond(tmp_path: Path) -> None:
    lines = folded(nested(tmp_path / "t.json"))
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == 100
    assert any("train.py(3): main;aten::linear;aten::mm;cudaLaunchKernel 5" in x for x in lines)
    gpu = folded(nested(tmp_path / "t.json"), gpu=True)
    assert sum(int(line.rsplit(" ", 1)[1]) for line in gpu) == 37
