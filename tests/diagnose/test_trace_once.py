"""What bounds a run whose host starts up, prepares, feeds copies or puts away but once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, host, kernel, write

from ridgeline.cli.main import run

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


@pytest.fixture
def first_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Ask the command for the first finding on a trace of these events."""

    def asked(events: list[dict[str, Any]]) -> dict[str, Any]:
        path = write(tmp_path / "t.json", events)
        assert run(["trace", "summary", "--json", str(path)]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["verdict"][0]
        return found

    return asked


def copied(now: float, length: float, number: int, *, called: float) -> list[dict[str, Any]]:
    """A copy 400 µs after its call begins, which lasts `called`."""
    return [
        call(now, called, number, "cudaMemcpyAsync"),
        kernel(now + 400, length, correlation=number, category="gpu_memcpy", name=PAGEABLE),
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_copy_that_its_call_feeds_holds_the_host_up_though_it_returns_before(
    threads: int, first_of: Any
) -> None:
    """Without operators nothing but its calls says that a second thread waited for the first."""
    now, events = 100.0, []
    for number in range(1, 13, 3):
        events += copied(now, 20_000, number, called=20_360)
        now += 20_370
        for place, thread in ((1, 1), (2, threads)):
            events.append(call(now, 10, number + place, tid=thread))
            events.append(kernel(now + 40, 15_000 - 40, correlation=number + place))
            now += 20
            events[-1]["ts"] += 15_000 * (place - 1)
        events.append(call(now, 30_000, 0, "cudaStreamSynchronize"))
        now += 30_010
    found = first_of(events)
    assert found["cause"] == "copy-bound"
    assert found["worth_us"] == pytest.approx(4 * 20_400, rel=0.03)


def test_a_copy_that_is_only_asked_for_does_not_hold_the_host_up(first_of: Any) -> None:
    """The call returns at once, and kernels of the stream before run meanwhile."""
    now, events = 100.0, []
    for number in range(1, 41, 2):
        events += copied(now, 5000, number, called=8)
        events.append(call(now + 10, 6, number + 1))
        events.append(kernel(now + 400, 9_900, correlation=number + 1, stream=9))
        now += 10_000
    assert first_of(events)["cause"] == "compute-bound"


def test_memory_that_is_unmapped_after_the_work_is_put_away(first_of: Any) -> None:
    events = [
        call(0, 10, 1),
        kernel(20, 9000, correlation=1),
        call(15, 9010, 0, "cudaDeviceSynchronize"),
    ]
    for number in range(40):
        events.append(call(20_000 + 2000 * number, 1000, 0, "cuMemUnmap", category="cuda_driver"))
        events.append(call(21_000 + 2000 * number, 900, 0, "cuModuleUnload"))
    assert first_of(events)["cause"] == "compute-bound"


@pytest.mark.parametrize(
    ("start", "cause"), [(300_000, "host-bound-start-up"), (3000, "copy-bound")]
)
def test_a_program_that_only_starts_is_bound_by_its_start(
    start: float, cause: str, first_of: Any
) -> None:
    found = first_of(
        [
            call(0, start, 0, "cudaMalloc"),
            *copied(start + 10, 2000, 1, called=2500),
            call(start + 2600, 8, 2),
            kernel(start + 2620, 30, correlation=2),
        ]
    )
    assert found["cause"] == cause


@pytest.mark.parametrize(
    ("start", "cause"), [(3000, "compute-bound"), (30_000, "compute-bound"),
                         (110_000, "host-bound-start-up")],
)  # fmt: skip
def test_nobody_can_be_sure_of_what_bounds_a_program_that_mostly_starts(
    start: float, cause: str, first_of: Any
) -> None:
    """Whoever runs it once waits for its start; whoever wants to know of its kernels does not."""
    found = first_of([call(0, start, 0, "cudaMalloc"), call(start + 10, 8, 1),
                      kernel(start + 20, 9000, correlation=1)])  # fmt: skip
    assert found["cause"] == cause
    assert (found["confidence"] > 0.6) == (start == 3000)


def test_contexts_that_the_first_frees_make_are_no_cost_of_memory(first_of: Any) -> None:
    """`cudaFree` makes the context and a library's handle; memory that recurs costs little here."""
    events, now = [call(0, 400_000, 0, "cudaFree"), call(400_010, 900_000, 0, "cudaFree")], 1.4e6
    for number in range(1, 201):
        events += [call(now, 5, 0, "cudaMalloc"), call(now + 6, 8, number)]
        events += [kernel(now + 20, 30, correlation=number), call(now + 60, 5, 0, "cudaFree")]
        now += 2000
    assert first_of(events)["cause"] == "host-bound"


def test_the_time_between_moves_of_pages_comes_before_the_moves(first_of: Any) -> None:
    events = [call(0, 8, 1), kernel(20, 400, correlation=1)]
    events += [
        kernel(1000.0 * number, 200, name="Memcpy Unified DtoH", category="gpu_memcpy")
        for number in range(1, 60)
    ]
    assert first_of(events)["cause"] == "unexplained-idle"


def worked(since: float, steps: int = 3) -> list[dict[str, Any]]:
    """Steps of 20 ms, in nine tenths of which the GPU copies what the host has not pinned."""
    now, events = since, []
    for number in range(1, 2 * steps, 2):
        events += copied(now, 18_000, number, called=18_390)
        events.append(call(now + 18_400, 8, number + 1))
        events.append(kernel(now + 18_420, 1500, correlation=number + 1))
        now += 20_000
    return events


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ([host(0, 400_000, "init_model", "user_annotation")], "copy-bound"),
        ([host(0, 400_000, "aten::normal_")], "host-bound"),
    ],
)
def test_the_name_of_a_stretch_before_the_work_does_not_show_any_work(
    said: list[dict[str, Any]], cause: str, first_of: Any
) -> None:
    assert first_of([*said, *worked(400_000)])["cause"] == cause


def test_what_comes_before_the_first_step_is_no_part_of_any(first_of: Any) -> None:
    steps = [
        host(400_000 + 20_000 * number, 19_990, f"step {number}", "user_annotation")
        for number in range(6)
    ]
    found = first_of([host(0, 399_000, "aten::normal_"), *steps, *worked(400_000, steps=6)])
    assert found["cause"] == "copy-bound"


def test_a_first_launch_that_loads_its_kernel_is_start_up_and_a_second_one_is_not(
    first_of: Any,
) -> None:
    def launched(names: list[str]) -> list[dict[str, Any]]:
        now, events = 0.0, []
        for number, name in enumerate(names, 1):
            events.append(call(now, 450, number))
            events.append(kernel(now + 455, 100, correlation=number, name=name))
            now += 580
        return events

    once = first_of(launched([f"gemm_{number}" for number in range(20)]))
    again = first_of(launched(["gemm"] * 20))
    assert (once["cause"], again["cause"]) == ("host-bound-start-up", "host-bound")


def test_the_first_call_of_all_makes_the_context_whatever_it_is_asked_for(first_of: Any) -> None:
    """It is no work of a host on its way to the kernels."""
    events = [
        call(0, 80_000, 1, "cudaMemcpyToSymbol"),
        kernel(79_000, 2, correlation=1, category="gpu_memcpy", name=PAGEABLE),
    ]
    for number in range(2, 202):
        events.append(call(80_000 + 10 * number, 6, number))
        events.append(kernel(81_000 + 500 * number, 499, correlation=number))
    found = first_of(events)
    assert (found["cause"], found["confidence"]) == ("compute-bound", 0.85)


def test_a_way_to_the_first_kernel_that_no_step_holds_may_not_come_again(first_of: Any) -> None:
    events = [host(0, 6000, "aten::mm")]
    for number in range(1, 21):
        events.append(call(5990 + 5 * number, 4, number))
        events.append(kernel(6100 + 400 * number, 350, correlation=number))
    found = first_of(events)
    assert (found["cause"], found["confidence"]) == ("host-bound", 0.55)


def test_a_cause_that_kernels_of_which_nothing_is_known_may_be_worth_is_arguable(
    first_of: Any,
) -> None:
    """A sixth of the time goes into loading batches; kernels fill seven tenths."""
    now, events = 0.0, []
    for number in range(1, 21):
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        events.append(host(now, 1500, name))
        now += 1500
        events.append(call(now, 6, number))
        events.append(kernel(now + 10, 6500, correlation=number))
        events.append(call(now + 20, 6500, 0, "cudaStreamSynchronize"))
        events.append(host(now + 6530, 900, "aten::add"))
        now += 7450
    found = first_of(events)
    assert found["cause"] == "input-bound"
    assert found["confidence"] <= 0.55


def native_program(malloc_us: float) -> list[dict[str, Any]]:
    """One range of a program in C++: 200 ms before its first call, a kernel of 10 ms after it."""
    ready = 200_000.0 + malloc_us
    return [
        host(0, ready + 20_000, "Memory Allocation", "user_annotation"),
        call(200_000, malloc_us, name="cudaMalloc"),
        call(ready + 500, 10, 1),
        kernel(ready + 520, 10_000, correlation=1, name="matrixMulKernel"),
        call(ready + 540, 9_990, name="cudaDeviceSynchronize"),
    ]


def test_what_comes_before_the_call_that_makes_the_context_is_start_up(first_of: Any) -> None:
    """The profiler starts with CUDA: it shows the call alone, not what was loaded for it."""
    first = first_of(native_program(128_000.0))
    assert first["cause"] == "host-bound-start-up"
    assert first["evidence"]["start_up_us"] == pytest.approx(328_000.0, rel=0.01)
    assert "torch" not in first["cure"]


def test_a_program_without_torch_has_code_of_its_own_and_no_python(first_of: Any) -> None:
    events = []
    for number in range(1, 21):
        begun = 10_000.0 * number
        events += [
            host(begun, 9_000, "round", "user_annotation"),
            call(begun + 6_000, 10, number),
            kernel(begun + 6_020, 2_000, correlation=number, name="matrixMulKernel"),
        ]
    first = first_of(events)
    assert first["cause"] == "host-bound"
    assert "code of the program's own" in first["summary"]
    assert "in_own_code_us" in first["evidence"]
    assert "ython" not in first["summary"] + first["cure"]


def test_a_launch_that_loads_its_kernel_is_the_hosts_in_the_table_of_gaps_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        call(0, 10, 1),
        kernel(100, 1000, correlation=1),
        call(500, 40_600, 2),
        kernel(41_120, 1000, correlation=2, name="sort"),
    ]
    path = write(tmp_path / "rank0.json", events)
    assert run(["trace", "idle", "--json", str(path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["ranks"]
    assert found["gaps"][0]["cause"] == "host_wait"
    assert found["host_wait_by"]["launch"] == pytest.approx(40_020)
    assert found["dependency_wait_us"] == 0
    assert run(["trace", "summary", "--json", str(path)]) == 0
    findings = json.loads(capsys.readouterr().out)["verdict"]
    assert findings[0]["cause"] == "host-bound-start-up"
    assert all(finding["share"] > 0.01 for finding in findings)
