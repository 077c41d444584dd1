"""`ridgeline trace modules`: host and GPU time by nn.Module, forward and backward."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trace.written import call, host, kernel, step, write

from ridgeline.cli.main import run
from ridgeline.trace.nesting import inclusive, outermost_of_name, parents
from ridgeline.trace.sorting import by_start

Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """The command's answer about a trace of these events."""

    def ask(*events: dict[str, Any], arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        path = write(tmp_path / "rank0.json", list(events))
        assert run(["trace", "modules", str(path), "--json", *arguments]) == 0
        (rank,) = json.loads(capsys.readouterr().out)["ranks"]
        found: dict[str, Any] = rank
        return found

    return ask


def module(start: float, length: float, name: str, tid: int = 1) -> dict[str, Any]:
    return host(start, length, f"nn.Module: {name}", "python_function", tid)


def forward_and_backward() -> list[dict[str, Any]]:
    """A net of two layers: each launches in forward, and autograd's thread in backward."""
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    return [
        module(0, 100, "Net_0"),
        module(10, 30, "Linear_0"),
        host(12, 20, "aten::addmm", **{"Sequence number": 5}),
        call(15, 5, 1),
        kernel(30, 7, correlation=1),
        module(50, 40, "Linear_1"),
        host(52, 3, "aten::empty", **{"Sequence number": 6}),
        host(56, 20, "aten::addmm", **{"Sequence number": 6}),
        call(60, 5, 2),
        kernel(70, 11, correlation=2),
        call(92, 2, 3),  # in Net itself
        kernel(95, 1, correlation=3),
        host(120, 10, node, tid=2, **{"Sequence number": 6}),
        call(122, 5, 4, tid=2),
        kernel(130, 13, correlation=4),
        host(140, 10, node, tid=2, **{"Sequence number": 5}),
        call(142, 5, 5, tid=2),
        kernel(150, 17, correlation=5),
        call(170, 5, 6),  # an optimizer
        kernel(180, 51, correlation=6),
    ]


def test_forward_and_backward_work_belongs_to_its_module(asked: Asked) -> None:
    rank = asked(*forward_and_backward())
    found = {
        use["path"]: (use["forward_gpu_us"], use["backward_gpu_us"], use["host_self_us"])
        for use in rank["modules"]
    }
    assert found == {
        "Net_0": (19, 30, 30),
        "Net_0/Linear_0": (7, 17, 30),
        "Net_0/Linear_1": (11, 13, 40),
    }
    assert [use["operators"] for use in rank["modules"]] == [3, 2, 1]
    assert (rank["gpu_us"], rank["gpu_outside_us"]) == (100, 51)
    linear = rank["classes"][0]
    assert (linear["name"], linear["modules"], linear["gpu_share"]) == ("Linear", 2, 0.48)


def test_the_last_forward_call_before_a_node_made_it(asked: Asked) -> None:
    """A second iteration's numbers may begin anew; its backward is not the first one's."""
    events = forward_and_backward()
    again = [{**one, "ts": one["ts"] + 1000} for one in events if one["cat"] != "kernel"]
    for one in again:
        if "correlation" in one["args"]:
            one["args"] = {**one["args"], "correlation": one["args"]["correlation"] + 10}
    rank = asked(*events, *again, kernel(1150, 17, correlation=15))
    linear = next(use for use in rank["modules"] if use["path"] == "Net_0/Linear_0")
    assert (linear["calls"], linear["backward_gpu_us"]) == (2, 34)


def test_the_step_window_takes_calls_that_begin_in_whole_steps(asked: Asked) -> None:
    steps = (step(0, 300, 1), step(300, 10, 2), module(305, 2, "Net_0"))
    rank = asked(*forward_and_backward(), *steps, arguments=("--window", "steps"))
    assert rank["modules"][0]["calls"] == 1


def test_the_most_expensive_modules_keep_what_is_around_them(asked: Asked) -> None:
    rank = asked(*forward_and_backward(), arguments=("--top", "2"))
    assert [use["path"] for use in rank["modules"]] == ["Net_0", "Net_0/Linear_1"]


def test_a_trace_without_modules_says_how_to_record_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rank0.json", [host(0, 5, "aten::mm"), kernel(1, 2)])
    assert run(["trace", "modules", str(path)]) == 0
    assert "with_stack=True" in " ".join(capsys.readouterr().out.split())


def test_a_real_model_s_tree_adds_up(real_traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ResNet-18 under DDP with activation checkpointing, three steps on an MI300X."""
    (file,) = (real_traces / "mi300x_ddp").glob("*.json.gz")
    assert run(["trace", "modules", str(file), "--json", "--top", "999"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    own = sum(use["forward_gpu_self_us"] + use["backward_gpu_self_us"] for use in rank["modules"])
    assert own + rank["gpu_outside_us"] == pytest.approx(rank["gpu_us"])
    by_path = {use["path"]: use for use in rank["modules"]}
    net = by_path["DistributedDataParallel_0/ResNet_0"]
    assert net["calls"] == 3
    assert net["backward_gpu_us"] > net["forward_gpu_us"] > 5000
    convolutions = next(one for one in rank["classes"] if one["name"] == "Conv2d")
    assert convolutions["modules"] == 20
    # 17 convolutions of four checkpointed stages run again in backward.
    assert convolutions["calls"] == 3 * (20 + 19)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 2)),
        min_size=1,
        max_size=30,
    )
)
def test_nesting_is_what_a_stack_of_open_spans_says(spans: list[tuple[int, int, int]]) -> None:
    starts, lengths = (np.array([one[place] for one in spans], float) for place in (0, 1))
    order = by_start(starts, lengths)
    starts, ends = starts[order], (starts + lengths)[order]
    names = np.array([one[2] for one in spans])[order]
    around = parents(starts, ends)
    for place in range(len(spans)):
        still_open = [earlier for earlier in range(place) if ends[earlier] > starts[place]]
        assert around[place] == (still_open[-1] if still_open else -1)
    inside = np.zeros(len(spans))
    outermost = np.ones(len(spans), bool)
    for place in range(len(spans)):
        above, path = place, []
        while above != -1:
            inside[above] += lengths[place]
            path.append(above)
            above = around[above]
        outermost[place] = not any(names[one] == names[place] for one in path[1:])
    assert inclusive(around, lengths).tolist() == inside.tolist()
    assert outermost_of_name(around, names).tolist() == outermost.tolist()
