"""Each question gives the figures that a small trace has by construction, and copes with real ones.

Several of the small traces are ones on which HolisticTraceAnalysis 0.5.0 is wrong (see the
reference's `hta_wrong_or_crashes`): the right figure stands here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.trace.asked import QUESTIONS
from tests.trace.test_reference import FILES
from tests.trace.written import call, host, kernel, read_kineto, step, write

from ridgeline import RidgelineError, Trace, load_traces
from ridgeline.cli.main import run
from ridgeline.trace.communication.collectives import communication
from ridgeline.trace.communication.overlap import overlap
from ridgeline.trace.memory.allocations import memory_use
from ridgeline.trace.roofline.operator_flops import flops_of
from ridgeline.trace.time.idle import idle_time
from ridgeline.trace.time.kernels import kernel_use
from ridgeline.trace.time.launch import launches
from ridgeline.trace.time.operators import operator_times
from ridgeline.trace.time.steps import step_times
from ridgeline.trace.time.summary import summarize
from ridgeline.trace.time.sync import sync_points

Made = Callable[..., Trace]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    def make(*events: dict[str, Any], **extra: Any) -> Trace:
        return read_kineto(write(tmp_path / "made.json", list(events), **extra), details=True)

    return make


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("name", FILES)
def test_every_real_trace_answers_every_question(real_traces: Path, name: str) -> None:
    (file,) = real_traces.glob(f"{name}.*json.gz")
    (trace,) = load_traces(file, details=True)
    for question in QUESTIONS:
        answer = question(trace)
        kind = (
            list[type(answer[0]) if answer else Any] if isinstance(answer, list) else type(answer)
        )
        text = msgspec.json.encode(answer)  # plain values, no numpy
        assert msgspec.json.decode(text, type=kind) == answer


def test_a_kernel_without_a_launch_is_nobody_s_host_wait(made: Made) -> None:
    """HTA takes the first row of the table as its launch (DLRM ranks 1 and 3)."""
    trace = made(host(0, 1, "aten::first"), kernel(10, 5), kernel(40, 5, correlation=77))
    found = summarize(trace)[0]
    assert (found.unknown_wait_us, found.host_wait_us) == (25, 0)


def test_kernels_of_a_graph_share_its_launch(made: Made) -> None:
    trace = made(
        call(0, 30, 5, "cudaGraphLaunch"),
        kernel(20, 10, correlation=5),
        kernel(31, 4, correlation=5),
        kernel(36, 4, correlation=5),
        call(50, 5, 6),
        kernel(60, 2, correlation=6),
    )
    found = launches(trace)[0]
    assert (found.launched, found.launch_calls) == (4, 2)
    assert (found.graph_launches, found.graph_events) == (1, 3)
    assert found.graph_time_share == pytest.approx(18 / 20)
    assert found.queues[0].max_depth == 1
    assert found.delay_us["median"] == pytest.approx((20 + 31) / 2)


@pytest.mark.parametrize(
    "name", ["hipLaunchKernel", "cuLaunchKernelEx", "hipExtModuleLaunchKernel"]
)
def test_launches_are_known_by_correlation_and_not_by_name(made: Made, name: str) -> None:
    """HTA's launch statistics have no row for any AMD trace."""
    trace = made(call(0, 5, 3, name), kernel(12, 4, correlation=3))
    assert launches(trace)[0].launched == 1


def test_a_driver_call_inside_the_runtime_s_is_the_same_launch(made: Made) -> None:
    trace = made(
        call(2, 3, 9, "cuLaunchKernel", category="cuda_driver"),
        call(0, 8, 9),
        kernel(20, 5, correlation=9),
    )
    found = launches(trace)[0]
    assert found.delay_us["median"] == 20
    assert found.launch_call_us == 8


def test_queue_depth_counts_what_is_launched_and_not_started(made: Made) -> None:
    trace = made(
        *(call(at, 1, at + 1) for at in (0, 10, 20)),
        kernel(100, 50, correlation=1),
        kernel(150, 50, correlation=11),
        kernel(200, 9, correlation=21),
    )
    queue = launches(trace)[0].queues[0]
    assert queue.max_depth == 3
    assert queue.median_depth == 1  # 0, 1, 2 found in the queue
    assert queue.mean_depth == pytest.approx((10 * 1 + 10 * 2 + 80 * 3 + 50 * 2 + 50 * 1) / 200)


def test_idle_gaps_name_the_call_and_its_line(made: Made) -> None:
    trace = made(
        call(0, 5, 1),
        kernel(10, 10, correlation=1),
        host(20, 970, "train.py(7): load", "python_function"),
        host(30, 900, "torch/utils/data/dataloader.py(5): __next__", "python_function"),
        host(
            100,
            800,
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            "user_annotation",
        ),
        call(1000, 5, 2),
        kernel(1010, 5, correlation=2),
    )
    (found,) = idle_time(trace)
    (gap,) = found.gaps
    assert (gap.length_us, gap.cause) == (990, "host_wait")
    assert gap.host_call == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert gap.line == "train.py:7 load"
    assert found.host_wait_by["loader"] == 900
    assert found.host_wait_by["launch"] == 10
    assert sum(found.host_wait_by.values()) == pytest.approx(found.host_wait_us)


def test_a_stream_that_overruns_says_so(made: Made) -> None:
    trace = made(kernel(0, 30), kernel(20, 30), kernel(70, 10))
    (stream,) = idle_time(trace)[0].streams
    assert (stream.unknown_wait_us, stream.overrun_us) == (20, 10)
    assert kernel_use(trace)[0].total_us == 20 + 30 + 10
    assert any("run into the next" in warning for warning in summarize(trace)[0].warnings)


def test_kernels_add_up_by_name_and_class(made: Made) -> None:
    trace = made(
        kernel(
            0,
            30,
            name="sm90_xmma_gemm_bf16bf16_tilesize128",
            **{"blocks per SM": 0.5, "est. achieved occupancy %": 40},
        ),
        kernel(
            30,
            10,
            name="ampere_sgemm_128x64_nn",
            **{"blocks per SM": 3, "est. achieved occupancy %": 80},
        ),
        kernel(60, 40, name="Memcpy DtoH (Device -> Pageable)", category="gpu_memcpy"),
    )
    (found,) = kernel_use(trace)
    assert {use.name: use.total_us for use in found.classes} == {"gemm": 40, "copy": 40}
    assert found.tensor_core_share == pytest.approx(0.75)
    assert found.occupancy_percent == pytest.approx(50)
    assert found.sm_efficiency == pytest.approx((30 * 0.5 + 10) / 100)


def test_a_kernel_that_is_slow_now_and_then_is_told_by_its_percentiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = [float(length) for length in range(1, 101)]
    path = write(tmp_path / "r.json", [kernel(1000.0 * n, one) for n, one in enumerate(lengths)])
    assert run(["trace", "kernels", str(path), "--json"]) == 0
    (use,) = json.loads(capsys.readouterr().out)["ranks"][0]["kernels"]
    assert (use["median_us"], use["mean_us"]) == (50.5, 50.5)
    assert use["p90_us"] == pytest.approx(90.1)
    assert use["p99_us"] == pytest.approx(99.01)
    assert run(["trace", "kernels", str(path)]) == 0
    assert "50.5 µs" in capsys.readouterr().out


def test_a_grid_gives_blocks_where_rocm_does_not(made: Made) -> None:
    trace = made(kernel(0, 100, grid=[33, 2, 1], block=[64, 1, 1]))
    assert kernel_use(trace)[0].sm_efficiency == pytest.approx(66 / 132)


def test_a_grid_that_a_collector_writes_as_text_counts_the_same(made: Made) -> None:
    trace = made(kernel(0, 100, grid="[33, 2, 1]", block="[64, 1, 1]"))
    assert kernel_use(trace)[0].sm_efficiency == pytest.approx(66 / 132)
    assert trace.gpu.threads_per_block.tolist() == [64]
    assert not trace.warnings


def test_overlap_knows_communication_of_any_library(made: Made) -> None:
    """HTA sees communication only in names that match ^nccl.*Kernel."""
    trace = made(
        kernel(0, 100, name="gemm"),
        kernel(50, 100, name="multimem_all_reduce_kernel", stream=20),
        kernel(150, 50, name="anything", stream=20, **{"Collective name": "allreduce"}),
    )
    (found,) = overlap(trace)
    assert (found.communication_us, found.overlap_us, found.exposed_us) == (150, 50, 100)
    assert found.kernels[0].exposed_us == 50


def test_bandwidth_is_that_of_nccl_tests(made: Made) -> None:
    said = {
        "Collective name": "allreduce",
        "In msg nelems": 1_000_000,
        "Out msg nelems": 1_000_000,
        "Group size": 8,
        "dtype": "BFloat16",
        "Process Group Name": "0",
    }
    trace = made(
        kernel(0, 100, name="ncclDevKernel_AllReduce_Sum_bf16", **said),
        kernel(200, 50, name="ncclDevKernel_AllReduce_Sum_bf16", **said),
    )
    (found,) = communication(trace)
    (use,) = found.collectives
    assert (use.kind, use.bytes, use.count, found.histogram) == (
        "all-reduce",
        2_000_000,
        2,
        {str(2**20): 2},
    )
    assert use.median_us == 75
    assert use.algorithm_bytes_per_second == pytest.approx(2e6 / 75e-6)
    assert use.bus_bytes_per_second == pytest.approx(2e6 / 75e-6 * 1.75)
    assert use.fastest_bus_bytes_per_second == pytest.approx(2e6 / 50e-6 * 1.75)


def test_sizes_come_from_the_range_around_the_launch(made: Made) -> None:
    trace = made(
        host(
            0,
            50,
            "nccl:all_reduce",
            "user_annotation",
            **{"Input Dims": [[1000]], "Input type": ["float"]},
        ),
        call(10, 5, 1),
        kernel(30, 10, correlation=1, name="ncclKernel_Generic"),
    )
    (use,) = communication(trace)[0].collectives
    assert (use.kind, use.bytes, use.dtype) == ("all-reduce", 4000, "float")


def test_a_wait_costs_the_host_and_then_the_gpu(made: Made) -> None:
    trace = made(
        call(0, 5, 1),
        kernel(10, 100, correlation=1),
        host(20, 100, "train.py(3): loss", "python_function"),
        host(30, 85, "aten::_local_scalar_dense"),
        call(31, 5, 2, "cudaMemcpyAsync"),
        kernel(110, 2, correlation=2, category="gpu_memcpy", name="Memcpy DtoH (Device -> Pinned)"),
        call(40, 75, 0, "cudaStreamSynchronize"),
        call(130, 5, 3),
        kernel(140, 10, correlation=3),
    )
    found = sync_points(trace)
    (point,) = found.points
    assert (point.call, point.operator, point.line) == (
        "cudaStreamSynchronize",
        "aten::_local_scalar_dense",
        "train.py:3 loss",
    )
    assert (point.host_us, point.gpu_gap_us) == (75, 28)


def test_a_copy_into_pageable_memory_waits_too(made: Made) -> None:
    trace = made(
        call(0, 50, 1, "cudaMemcpyAsync"),
        kernel(
            10, 30, correlation=1, category="gpu_memcpy", name="Memcpy DtoH (Device -> Pageable)"
        ),
        call(60, 5, 2, "cudaMemcpyAsync"),
        kernel(70, 30, correlation=2, category="gpu_memcpy", name="Memcpy DtoH (Device -> Pinned)"),
    )
    assert sync_points(trace).count == 1


def test_steps_have_phases_that_add_up(made: Made) -> None:
    events: list[dict[str, Any]] = []
    for number in range(5):
        at = number * 1000
        length = 900 if number != 2 else 1900
        events += [
            step(at if number < 3 else at + 1000, length, number),
        ]
        at = at if number < 3 else at + 1000
        events += [
            host(at, 100, "enumerate(DataLoader)#_Iter.__next__", "user_annotation"),
            host(at + 100, 200, "aten::linear"),
            host(at + 300, 300, "autograd::engine::evaluate_function: MmBackward0", tid=2),
            host(at + 600, 50, "Optimizer.step#SGD.step", "user_annotation"),
        ]
    found = step_times(made(*events))
    assert [row.length_us for row in found.steps] == [1000, 1000, 2000, 1000, 900]
    assert [row.number for row in found.steps if row.outlier] == [2]
    assert found.outlier == 2
    phases = found.steps[0].phases_us
    assert phases == {"data": 100, "optimizer": 50, "backward": 300, "forward": 200, "other": 350}
    assert not found.steps[-1].whole


def test_the_step_window_is_the_whole_steps(made: Made) -> None:
    """HTA drops the last step without a word, and by the GPU's stamp where there is one."""
    trace = made(
        step(0, 90, 1),
        step(100, 90, 2),
        step(200, 90, 3),
        kernel(50, 20),
        kernel(190, 30),
        kernel(250, 10),
        kernel(0, 300, category="gpu_user_annotation", name="ProfilerStep#1"),
    )
    found = summarize(trace, "steps")[0]
    assert (found.window, found.window_us, found.busy_us) == ("steps", 200, 30)
    with pytest.raises(RidgelineError, match="no ProfilerStep"):
        summarize(made(kernel(0, 1)), "steps")


def test_operators_own_what_they_launch(made: Made) -> None:
    shapes = {"Input Dims": [[128, 64], [64, 32]], "Input type": ["float", "float"]}
    trace = made(
        host(0, 100, "aten::linear"),
        host(10, 80, "aten::mm", **shapes),
        call(20, 5, 1),
        kernel(50, 40, correlation=1),
        call(95, 2, 2),
        kernel(100, 7, correlation=2),
        kernel(200, 9, correlation=99),
    )
    found = operator_times(trace)
    times = {use.name: use for use in found.operators}
    assert (times["aten::linear"].gpu_total_us, times["aten::linear"].gpu_self_us) == (47, 7)
    assert (times["aten::mm"].gpu_self_us, times["aten::linear"].host_self_us) == (40, 20)
    assert times["aten::mm"].flops == 2 * 128 * 64 * 32
    assert found.gpu_outside_us == 9
    by_shape = operator_times(trace, by="shape").operators
    assert '[[[128,64],[64,32]],["float","float"]]' in [use.shapes for use in by_shape]


@pytest.mark.parametrize(
    ("operator", "dims", "flops"),
    [
        ("aten::bmm", "[[4, 8, 16], [4, 16, 32]]", 2 * 4 * 8 * 16 * 32),
        ("aten::addmm", "[[32], [8, 16], [16, 32]]", 2 * 8 * 16 * 32),
        ("aten::mm", "[[8, 16], [17, 32]]", None),
        ("aten::linear", "[[8, 16], [32, 16]]", None),
        (
            "aten::_scaled_dot_product_flash_attention",
            "[[2, 3, 5, 7], [2, 3, 11, 7], [2, 3, 11, 7]]",
            2 * 2 * 3 * 5 * 11 * 14,
        ),
    ],
)
def test_flops_are_two_per_multiplication(operator: str, dims: str, flops: int | None) -> None:
    assert flops_of(operator, f"[{dims},[]]") == flops


def test_memory_knows_its_peak_and_its_holders(made: Made) -> None:
    def memory(at: float, size: int, address: int, total: int) -> dict[str, Any]:
        return {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": at,
            "args": {
                "Total Reserved": 1000,
                "Total Allocated": total,
                "Bytes": size,
                "Addr": address,
                "Device Type": 1,
                "Device Id": 0,
            },
        }

    trace = made(
        host(0, 50, "aten::mm"),
        host(60, 50, "aten::add"),
        memory(10, 300, 1, 400),
        memory(20, -300, 1, 100),
        memory(70, 500, 2, 600),
        memory(80, 200, 1, 800),
        memory(90, -500, 2, 300),
    )
    (device,) = memory_use(trace).devices
    assert (device.device, device.peak_bytes, device.before_bytes) == ("gpu 0", 800, 100)
    assert device.fragmentation == pytest.approx(0.2)
    assert [(h.operator, h.bytes) for h in device.holders] == [("aten::add", 700)]
    assert memory_use(made(kernel(0, 1))).note is not None


def test_utilization_is_flops_over_window_and_peak(made: Made) -> None:
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]
    trace = made(
        host(0, 10, "aten::linear", **shapes),
        host(1, 8, "aten::mm", **shapes),
        kernel(20, 300),
        deviceProperties=device,
    )
    found = summarize(trace)[0]
    assert found.flops == 2 * 4096**3
    assert found.flops_utilization == pytest.approx(2 * 4096**3 / 300e-6 / 989.4e12)
    convolving = made(
        host(1, 8, "aten::mm", **shapes), host(9, 1, "aten::convolution"), kernel(20, 9)
    )
    assert summarize(convolving)[0].flops is None
