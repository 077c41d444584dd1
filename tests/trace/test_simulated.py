"""The simulator keeps to the physics of its machine, and its traces say what it simulated."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.trace.simulated.faults import CAUSES, FAULTS
from tests.trace.simulated.kineto import Schema, write_run
from tests.trace.simulated.machine import QUEUE, Work
from tests.trace.simulated.program import GOOD_COMPUTE, gpu_of
from tests.trace.simulated.run import Run, simulate
from tests.trace.simulated.truth import BORDER, cases, filled_by_kernels, truth_of
from tests.trace.simulated.workloads import WORKLOADS, gpt
from tests.trace.written import read_kineto

from ridgeline.trace.load import load_traces
from ridgeline.trace.roofline.operator_flops import executed_flops
from ridgeline.trace.time.summary import summarize

RUNS = ("gpt-healthy", "resnet-loader-item", "decode-graph-healthy", "gpt-python-gross",
        "gpt-uncached", "fsdp-slow-link", "ddp-late-host", "gpt-side-stream",
        "gpt-offload")  # fmt: skip


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    case = cases()[request.param]
    return simulate(case.program(), case.seed)


def by_stream(run: Run) -> dict[tuple[int, int], list[Work]]:
    found: dict[tuple[int, int], list[Work]] = defaultdict(list)
    for one in run.work:
        found[one.rank, one.stream].append(one)
    return found


def times(one: Work) -> tuple[float, float]:
    assert one.start_us is not None
    assert one.end_us is not None
    return one.start_us, one.end_us


@pytest.mark.sweep(every=4)
def test_work_of_one_stream_never_overlaps_and_keeps_its_order(run: Run) -> None:
    for line in by_stream(run).values():
        for before, after in pairwise(line):
            assert times(before)[1] <= times(after)[0]


def test_nothing_starts_before_its_launch_returns_nor_before_what_it_waits_for(run: Run) -> None:
    for one in run.work:
        start, end = times(one)
        assert start > one.ready_us
        assert end >= start
        assert all(times(other)[1] <= start for other in one.after)


def test_the_queue_never_holds_more_than_its_bound(run: Run) -> None:
    for line in by_stream(run).values():
        for old, new in zip(line, line[QUEUE:], strict=False):
            if not new.in_graph and new.kind == "kernel":
                assert times(old)[0] <= new.ready_us + 1e-6


def test_collectives_end_together_after_the_last_rank_has_come(run: Run) -> None:
    meetings = {id(one.meeting): one.meeting for one in run.work if one.meeting}
    for meeting in meetings.values():
        assert len(meeting.there) == meeting.size
        ends = {times(one)[1] for one in meeting.there}
        last = max(times(one)[0] for one in meeting.there)
        assert len(ends) == 1
        assert ends.pop() == pytest.approx(last + meeting.transfer_us)


def test_one_copy_at_a_time_in_each_direction() -> None:
    case = cases()["gpt-offload"]
    copies = [one for one in simulate(case.program(), 1).work if one.kind == "gpu_memcpy"]
    for direction in ("HtoD", "DtoH"):
        own = sorted((times(one) for one in copies if direction in one.name), key=lambda at: at[0])
        assert own
        assert all(before[1] <= after[0] for before, after in pairwise(own))


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("gpu", ["v100", "a100", "h100", "mi300x"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_kernel_is_faster_than_its_roof(workload: str, gpu: str) -> None:
    program = WORKLOADS[workload](gpu)
    device = gpu_of(gpu)
    for op in program.ops:
        for kernel in op.all_kernels():
            assert kernel.time_us(device) > kernel.roof_us(device)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_healthy_program_keeps_its_gpu_at_work(workload: str) -> None:
    run = simulate(WORKLOADS[workload]("a100"), 3)
    busy = sum(end - start for start, end in map(times, run.work))
    assert busy > 0.85 * run.duration_us * len(run.ranks)


@pytest.mark.parametrize("version", ["old", "plain", "new"])
def test_what_is_read_back_is_exactly_what_was_simulated(tmp_path: Path, version: str) -> None:
    case = cases()["resnet-loader-item"]
    run = simulate(case.program(), case.seed)
    (path,) = write_run(run, tmp_path, Schema(version=version))
    (summary,) = summarize(read_kineto(path))
    spans = sorted(times(one) for one in run.work if one.kind)
    busy, until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(end - max(start, until), 0.0)
        until = max(until, end)
    rounding = 0.001 if version == "new" else 1.0
    assert summary.gpu_events == len(spans)
    assert summary.window_us == pytest.approx(until - spans[0][0], abs=2 * rounding)
    assert summary.busy_us == pytest.approx(busy, abs=rounding * len(spans))
    assert summary.steps == case.program().steps


def test_a_profiler_that_starts_late_records_kernels_whose_launch_it_missed(
    tmp_path: Path,
) -> None:
    case = cases()["gpt-warm-healthy"]
    run = simulate(case.program(), case.seed)
    (trace,) = load_traces(write_run(run, tmp_path, case.schema()))
    since = run.recorded_from_us(0)
    assert len(trace.gpu) == sum(times(one)[0] >= since for one in run.work if one.kind)
    launched = set(trace.host.correlation[trace.host.is_call].tolist())
    missed = [number for number in trace.gpu.correlation.tolist() if number not in launched]
    assert 100 < len(missed) < len(trace.gpu) / 2


def test_waits_of_the_host_are_recorded_where_they_were(tmp_path: Path) -> None:
    case = cases()["decode-warm-item-finish"]
    run = simulate(case.program(), case.seed)
    (trace,) = load_traces(write_run(run, tmp_path, case.schema()))
    waits = [span for span in run.ranks[0].spans if "Synchronize" in span.name]
    recorded = {trace.names[name] for name in trace.sync.name.tolist()}
    assert recorded == {"Stream Sync", "Context Sync"}
    assert len(trace.sync) == sum(one.start_us >= run.recorded_from_us(0) for one in waits)


def test_shapes_say_the_flops_that_the_kernels_did(tmp_path: Path) -> None:
    program = gpt("a100", steps=2, gemm=0.4)
    run = simulate(program, 1)
    (trace,) = load_traces(write_run(run, tmp_path, Schema()), details=True)
    counted = executed_flops(trace, -1e9, 1e12)
    matrices = ("gemm", "gemm_odd", "flash", "flash_backward")
    done = 2 * sum(kernel.flops for op in program.ops for kernel in op.all_kernels()
                   if kernel.sort in matrices)  # fmt: skip
    assert counted == pytest.approx(done, rel=1e-6)


def test_a_matmul_at_a_third_of_its_roof_takes_as_much_longer() -> None:
    healthy, slow = (simulate(cases()["gpt-odd-gemm"].program(without), 1).duration_us
                     for without in ("odd-gemm", ""))  # fmt: skip
    program = cases()["gpt-odd-gemm"].program("odd-gemm")
    gpu = gpu_of("a100")
    gemm = program.steps * sum(
        kernel.time_us(gpu) for op in program.ops for kernel in op.all_kernels()
        if kernel.sort == "gemm"
    )  # fmt: skip
    assert slow - healthy == pytest.approx(gemm * (GOOD_COMPUTE / 0.33 - 1), rel=0.03)


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    case = cases()["dlrm-pageable"]
    runs = [simulate(case.program(), seed).duration_us for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_fault_elsewhere_leaves_the_jitter_as_it_was() -> None:
    """Two runs that differ in one stall differ by that stall, not by other luck."""
    case = cases()["gpt-stall"]
    program = case.program()
    stalled = simulate(program, 1).duration_us - simulate(case.program("stall"), 1).duration_us
    trouble = program.trouble
    assert stalled == pytest.approx(trouble.stall_us * len(trouble.stall_steps), rel=0.01)


def test_every_fault_has_a_cause_and_a_case() -> None:
    assert all(CAUSES[fault] for fault in FAULTS)
    assert FAULTS.keys() == {fault for case in cases().values() for fault in case.faults}


@pytest.mark.sweep("gpt-healthy", "resnet-loader-hidden")
@pytest.mark.parametrize("name", cases())
def test_what_no_fault_bounds_is_filled_by_its_kernels(name: str) -> None:
    """Else two faults hide each other, and there is no single truth."""
    case = cases()[name]
    if "no-gpu" in case.faults:
        return
    healthy = simulate(replace(case, faults={}).program(), case.seed)
    assert filled_by_kernels(healthy, talk=True) > 0.8
    truth = truth_of(case)
    bound = max(truth.by_cause.values(), default=0.0) >= BORDER[0] * truth.duration_us
    if not bound and "cpu-only" not in truth.causes:
        assert truth.filled > 0.8, truth.by_cause
