"""Two traces side by side, the nesting of one, and what is drawn of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import call, host, kernel, step, write

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.compare import compare_traces
from ridgeline.trace.formats.kineto import read_kineto
from ridgeline.trace.load import load_traces
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
