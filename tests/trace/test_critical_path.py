"""The critical path against programs that are simulated: their exact answers are known."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import call, host, kernel, read_kineto, write

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.critical_path.path import (
    WHAT_IF_CLASSES,
    critical_path,
    job_path,
    path_pieces,
)
from ridgeline.trace.critical_path.rank_path import rank_path
from ridgeline.trace.load import read_traces

LATENCY, RETURN, FREE = 5, 2, 2
"""Launch to start with an empty queue; GPU end to return of a wait; a wait for nothing."""


@dataclass(frozen=True)
class Action:
    """Host work, then a launch on a stream, or a wait for everything."""

    host_us: int
    kernel_us: int
    stream: int
    wait: bool


actions = st.builds(
    Action,
    host_us=st.integers(1, 40),
    kernel_us=st.integers(1, 120),
    stream=st.integers(0, 2),
    wait=st.booleans(),
)
programs = st.lists(actions, min_size=1, max_size=25)


def simulated(program: list[Action], gemm: float = 1.0) -> tuple[list[dict[str, Any]], float]:
    """Events of a run, and when it ends; kernels take `gemm` times their length."""
    now, ends, events = 0.0, {0: 0.0, 1: 0.0, 2: 0.0}, []
    for number, action in enumerate(program, start=1):
        events.append(host(now, action.host_us, "aten::mm"))
        now += action.host_us
        if action.wait:
            until = max(now + FREE, max(ends.values()) + RETURN)
            events.append(call(now, until - now, 0, "cudaDeviceSynchronize"))
            now = until
            continue
        start = max(now + LATENCY, ends[action.stream])
        length = action.kernel_us * gemm
        events.append(call(now, 2, number))
        events.append(kernel(start, length, stream=action.stream, correlation=number,
                             name="sgemm"))  # fmt: skip
        ends[action.stream] = start + length
        now += 2
    until = max(now + FREE, max(ends.values()) + RETURN)
    events.append(call(now, until - now, 0, "cudaDeviceSynchronize"))
    events.append(call(until, FREE, 0, "cudaDeviceSynchronize"))
    return events, until + FREE


def one_stream(program: list[Action]) -> list[Action]:
    return [Action(a.host_us, a.kernel_us, 0, a.wait) for a in program]


def read(folder: pytest.TempPathFactory, events: list[dict[str, Any]], name: str = "t") -> Trace:
    return read_kineto(write(folder.mktemp("t") / f"{name}.json", events))


@given(programs)
@settings(max_examples=60, deadline=None)
def test_the_pieces_of_the_path_add_up_to_the_window(
    tmp_path_factory: pytest.TempPathFactory, program: list[Action]
) -> None:
    events, end = simulated(program)
    trace = read(tmp_path_factory, events)
    path = critical_path([trace])
    pieces = path_pieces([trace])
    if not pieces:
        assert not [a for a in program if not a.wait], "only a run without kernels has no path"
        return
    assert path.path_us == pytest.approx(path.window_us, abs=1e-6)
    assert sum(part.us for part in path.classes) == pytest.approx(path.window_us, abs=1e-6)
    assert pieces[-1].start_us + pieces[-1].duration_us == pytest.approx(end)
    for before, after in pairwise(pieces):
        assert before.start_us + before.duration_us == pytest.approx(after.start_us)


@given(programs, st.sampled_from(WHAT_IF_CLASSES), st.floats(0, 100))
@settings(max_examples=60, deadline=None)
def test_nothing_changes_at_0_percent_and_shorter_is_never_longer(
    tmp_path_factory: pytest.TempPathFactory, program: list[Action], name: str, percent: float
) -> None:
    trace = read(tmp_path_factory, simulated(program)[0])
    if not len(trace.gpu):
        return
    nothing = critical_path([trace], {name: 0.0}).what_if
    some = critical_path([trace], {name: percent}).what_if
    more = critical_path([trace], {name: min(100.0, percent + 10)}).what_if
    assert nothing is not None
    assert some is not None
    assert more is not None
    assert nothing.saved_us == 0
    assert more.window_us <= some.window_us + 1e-6 <= nothing.window_us + 2e-6


@given(programs, st.sampled_from([10, 50, 90]))
@settings(max_examples=80, deadline=None)
def test_a_what_if_tells_what_a_second_run_would_take(
    tmp_path_factory: pytest.TempPathFactory, program: list[Action], percent: int
) -> None:
    program = [Action(5, 10, 0, wait=False), *one_stream(program)]
    events, before = simulated(program)
    _, after = simulated(program, gemm=1 - percent / 100)
    told = critical_path([read(tmp_path_factory, events)], {"gemm": percent}).what_if
    assert told is not None
    assert told.saved_us == pytest.approx(before - after, abs=1e-3)


def test_a_run_bound_by_its_host_gains_nothing_from_faster_kernels(tmp_path: Path) -> None:
    program = [Action(50, 5, 0, wait=False) for _ in range(20)]
    path = critical_path(
        [read_kineto(write(tmp_path / "t.json", simulated(program)[0]))], {"gemm": 90}
    )
    assert path.what_if is not None
    assert path.what_if.speedup < 1.01
    assert path.classes[0].name == "host"
    assert path.names[0].name == "aten::mm"


def polling(steps: int, kernel_us: float) -> tuple[list[dict[str, Any]], float]:
    """Each step launches one kernel and asks every 5 µs whether it has ended; and its end."""
    now, events = 0.0, []
    for number in range(1, steps + 1):
        events.append(host(now, 20, "aten::mm"))
        now += 20
        events.append(call(now, 2, number))
        start = now + LATENCY
        events.append(kernel(start, kernel_us, correlation=number, name="sgemm"))
        while now < start + kernel_us:
            now += 5
            events.append(call(now, 1, 0, "cudaEventQuery"))
        now += 1
    return events, start + kernel_us


def test_a_host_that_polls_goes_on_when_what_it_asks_for_has_ended(tmp_path: Path) -> None:
    (events, before), (_, after) = polling(8, 400), polling(8, 200)
    told = critical_path([read_kineto(write(tmp_path / "t.json", events))], {"gemm": 50}).what_if
    assert told is not None
    assert told.saved_us == pytest.approx(before - after, rel=0.01)


def with_a_full_queue(kernel_us: float, room: int = 300) -> tuple[list[dict[str, Any]], float]:
    """Twice as many launches as the queue has room for, and when the last kernel ends."""
    now, starts, end, events = 0.0, [], 0.0, []
    for number in range(2 * room):
        returned = now + 2
        if number >= room:
            returned = max(returned, starts[number - room] + 2)
        starts.append(max(returned + LATENCY, end))
        end = starts[-1] + kernel_us
        events += [call(now, returned - now, number + 1),
                   kernel(starts[-1], kernel_us, correlation=number + 1, name="sgemm")]  # fmt: skip
        now = returned + 1
    return events, end


def test_launches_into_a_full_queue_come_as_early_as_there_is_room(tmp_path: Path) -> None:
    (events, before), (_, after) = with_a_full_queue(200), with_a_full_queue(20)
    told = critical_path([read_kineto(write(tmp_path / "t.json", events))], {"gemm": 90}).what_if
    assert told is not None
    assert told.saved_us == pytest.approx(before - after, rel=0.01)


def test_a_thread_that_waits_for_another_hands_the_path_over(tmp_path: Path) -> None:
    events = [
        host(0, 100, "aten::mm", tid=1), call(90, 2, 1, tid=1), kernel(95, 10, correlation=1),
        host(110, 200, "MmBackward0", tid=2), call(300, 2, 2, tid=2),
        kernel(305, 10, correlation=2),
        host(315, 50, "aten::add_", tid=1), call(360, 2, 3, tid=1), kernel(365, 10, correlation=3),
    ]  # fmt: skip
    pieces = path_pieces([read_kineto(write(tmp_path / "t.json", events))])
    assert [piece.name for piece in pieces if piece.duration_us > 40] == [
        "aten::mm", "MmBackward0", "aten::add_",
    ]  # fmt: skip


def late_rank(folder: Path, rank: int, arrives: float) -> Trace:
    """Computes until `arrives`, then takes part in an all-reduce that ends at 1010 everywhere."""
    events = [
        call(0, 2, 1), kernel(5, arrives - 5, correlation=1, name="sgemm"),
        call(3, 2, 2),
        kernel(arrives, 1010 - arrives, correlation=2, name="ncclDevKernel_AllReduce_Sum"),
    ]  # fmt: skip
    extra = {"distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}}
    return read_kineto(write(folder / f"rank{rank}.json", events, **extra))


def test_across_ranks_the_path_runs_through_the_one_that_comes_last(tmp_path: Path) -> None:
    traces = [late_rank(tmp_path, 0, 300), late_rank(tmp_path, 1, 1000)]
    path = critical_path(traces)
    assert path.path_us == pytest.approx(path.window_us)
    assert path.ranks == {"1": pytest.approx(1.0)}
    assert path.classes[0].name == "gemm"
    half = critical_path(traces, {"gemm": 50}).what_if
    assert half is not None
    assert half.saved_us == pytest.approx(995 / 2), "the other rank only waited"
    free = critical_path(traces, {"communication": 100}).what_if
    assert free is not None
    assert free.saved_us == pytest.approx(10), "waiting for a late rank is not transfer"


def job_of(work: list[list[int]], transfer: float, gemm: float = 1.0) -> list[list[Any]]:
    """Events per rank: rounds of a matrix product of `work[rank][round]`, then an all-reduce."""
    now = [5.0] * len(work)
    ranks: list[list[Any]] = [[] for _ in work]
    for turn in range(len(work[0])):
        arrived = [at + own[turn] * gemm for at, own in zip(now, work, strict=True)]
        end = max(arrived) + transfer
        for rank, events in enumerate(ranks):
            number = 2 * turn + 1
            events += [
                call(0.1 * number, 0.1, number), call(0.1 * number + 0.1, 0.1, number + 1),
                kernel(now[rank], arrived[rank] - now[rank], correlation=number, name="sgemm"),
                kernel(arrived[rank], end - arrived[rank], correlation=number + 1,
                       name="ncclDevKernel_AllReduce_Sum"),
            ]  # fmt: skip
        now = [end] * len(work)
    return ranks


@given(
    st.integers(2, 4).flatmap(
        lambda ranks: st.lists(
            st.lists(st.integers(20, 400), min_size=6, max_size=6), min_size=ranks, max_size=ranks
        )
    ),
    st.integers(1, 50),
    st.integers(0, 60),
)
@settings(max_examples=40, deadline=None)
def test_a_what_if_over_ranks_is_the_run_with_shorter_kernels(
    tmp_path_factory: pytest.TempPathFactory, work: list[list[int]], transfer: int, percent: int
) -> None:
    recorded = job_of(work, transfer)
    paths = [rank_path(read(tmp_path_factory, events), {"gemm": percent}) for events in recorded]
    found = job_path(paths, {"gemm": percent})
    assert found.path_us == pytest.approx(found.window_us)
    longest = sum(max(turn) for turn in zip(*work, strict=True))
    on_path = {part.name: part.us for part in found.classes}
    assert on_path["gemm"] == pytest.approx(longest)
    assert on_path["communication"] == pytest.approx(6 * transfer)
    faster = job_of(work, transfer, gemm=1 - percent / 100)
    end, sooner = (
        max(event["ts"] + event["dur"] for events in ranks for event in events)
        for ranks in (recorded, faster)
    )
    if percent:
        assert found.what_if is not None
        assert found.what_if.saved_us == pytest.approx(end - sooner, abs=1e-3)


def test_what_a_rank_brings_to_the_path_is_a_small_part_of_its_trace(tmp_path: Path) -> None:
    events = [
        event
        for step in range(400)
        for event in (
            host(step * 100.0, 20, "aten::mm"), host(step * 100.0 + 40, 20, "aten::relu"),
            call(step * 100.0 + 10, 2, 2 * step + 1), call(step * 100.0 + 50, 2, 2 * step + 2),
            kernel(step * 100.0 + 15, 60, correlation=2 * step + 1, name="sgemm"),
            kernel(step * 100.0 + 80, 15, correlation=2 * step + 2, name="relu"),
        )
    ]  # fmt: skip
    trace = read_kineto(write(tmp_path / "t.json", events))
    brought = len(pickle.dumps(rank_path(trace, {"gemm": 10.0})))
    assert brought < trace.raw_bytes / 4


def test_a_copy_of_one_tick_waits_for_the_work_that_ended_as_it_began(tmp_path: Path) -> None:
    # Stamps are whole microseconds: the short copy seems to end with what it waited for.
    events = [
        host(0, 900, "step"), call(10, 5, 1), call(20, 5, 2, name="cudaMemcpyAsync"),
        call(30, 5, 3, name="cudaMemcpyAsync"), call(40, 800, 0, name="cudaStreamSynchronize"),
        kernel(20, 100, correlation=1),
        kernel(25, 700, correlation=2, stream=13, name="Memcpy HtoD (Pinned -> Device)",
               category="gpu_memcpy"),
        kernel(725, 1, correlation=3, name="Memcpy DtoH (Device -> Pinned)",
               category="gpu_memcpy"),
    ]  # fmt: skip
    path = critical_path([read_kineto(write(tmp_path / "t.json", events))])
    assert {one.name: one.us for one in path.classes}["copy"] == pytest.approx(701, abs=2)


def test_work_that_was_launched_long_before_it_runs_is_no_launch_latency(tmp_path: Path) -> None:
    """A profiler that starts while the GPU is at work does not see what the first kernel awaits."""
    events = [call(0, 5, 1), call(10, 95_045, 0, "cudaStreamSynchronize")]
    events.append(kernel(95_000, 50, correlation=1))
    events += [call(95_100.0 + 20 * n, 5, 2 + n) for n in range(20)]
    events += [kernel(95_110.0 + 20 * n, 12, correlation=2 + n) for n in range(20)]
    trace = read_kineto(write(tmp_path / "t.json", events))
    names = {part.name: part.us for part in critical_path([trace]).names}
    assert names["launched, and nothing shows what it waits for"] == pytest.approx(94_995, rel=1e-3)
    assert names["launch latency"] < 500


def test_a_wrong_class_names_the_right_ones(tmp_path: Path) -> None:
    trace = late_rank(tmp_path, 0, 300)
    with pytest.raises(InputError, match=r"gems.*gemm"):
        critical_path([trace], {"gems": 20})
    with pytest.raises(InputError, match="0 to 100"):
        critical_path([trace], {"gemm": 120})


@pytest.mark.slow
def test_on_real_traces_the_path_is_as_long_as_the_window(real_traces: Path) -> None:
    for path in sorted(real_traces.glob("*/*.json.gz")):
        (trace,) = read_traces(path)
        found = critical_path([trace])
        assert found.path_us == pytest.approx(found.window_us, abs=1e-3), path
        assert bool(found.window_us) == bool(len(trace.gpu)), path
