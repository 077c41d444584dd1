"""The shared traces give the reference's figures, to a hundredth of a microsecond.

The reference is an independent exact computation. Where it and we differ by definition, the test
says so: it counts a gap before an event without a launch by its length (we say `unknown`), it lets
overlapping events of a stream subtract from the waits, and it knows communication by `nccl` alone
but gives the rest beside it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline import Trace, load_traces
from ridgeline.trace.host_calls import launch_start_us
from ridgeline.trace.time.idle import (
    LAUNCH_GAP_US,
    Gaps,
    Wait,
    device_gaps,
    overrun_us,
    stream_gaps,
)
from ridgeline.trace.time.kernels import sm_efficiency, weighted, without_overruns
from ridgeline.trace.time.launch import launches
from ridgeline.trace.time.summary import summarize, summarize_view
from ridgeline.trace.windows import views

FILES = (
    "a100_critical_path/alexnet_cuda_sync", "a100_critical_path/event_sync_multi_stream",
    "a100_dlrm_16rank/rank0", "b200_vllm_tp8/eager_trace",
    "ddp_compare/a100_8rank_rank3.control", "ddp_compare/v100_2rank_rank1.test",
    "edge_cases/cpu_only_rank34.pt.trace", "edge_cases/distributed_info_not_found",
    "edge_cases/mi250_minitoy_train_ROCm6_2_kineto", "edge_cases/triton_example",
    "h100_inference/Qwen_Qwen1.5-0.5B-Chat__1016005",
    "h100_inference/gaunernst_bert-small-uncased__1016001",
    "h100_inference/google_owlv2-large-patch14-ensemble__1016001",
    "mi300x_ddp/resnet_act_checkpoint", "mi300x_inference/Qwen_Qwen1.5-0.5B-Chat__1016005",
    "mi300x_inference/sglang_Qwen3-8B_decode_hipgraph",
    "mi300x_inference/vllm_prefilldecode_piecewise_hipgraph", "rtx2080ti_linear/linear_kineto",
    *(f"v100_dlrm_8rank_nccl/worker{rank}_step_12" for rank in range(8)),
    "v100_resnet50_dataloader/num_workers_0.pt.trace",
    "v100_resnet50_dataloader/num_workers_4.pt.trace",
)  # fmt: skip
CLOSE_US = 0.01


def expected_of(
    reference: dict[str, Any], name: str, window: str = "exact_whole_trace"
) -> tuple[str, dict[str, Any]]:
    """File and figures of a rank."""
    for entry in reference.values():
        for rank, file in enumerate(entry["files"]):
            if file.startswith(name + "."):
                figures = entry[window]
                if figures == "same":
                    figures = entry["exact_hta_window"]
                return file, figures[str(rank)]
    raise AssertionError(f"the reference has no {name}")


def folded(gaps: Gaps) -> tuple[float, float, float]:
    """Host wait, kernel wait, other: gaps without a launch counted by their length."""
    unknown, length = gaps.cause == Wait.UNKNOWN, gaps.length_us
    short = float(length[unknown & (length < LAUNCH_GAP_US)].sum())
    long = float(length[unknown & (length >= LAUNCH_GAP_US)].sum())
    return (
        gaps.total_us(Wait.HOST),
        gaps.total_us(Wait.KERNEL) + short,
        gaps.total_us(Wait.DEPENDENCY) + long,
    )


@pytest.fixture(params=FILES, ids=lambda name: name.rpartition("/")[2][:24])
def case(
    request: pytest.FixtureRequest, real_traces: Path, hta_reference: dict[str, Any]
) -> tuple[Trace, dict[str, Any]]:
    file, expected = expected_of(hta_reference, request.param)
    return load_traces(real_traces / file)[0], expected


@pytest.mark.sweep(every=5)
def test_a_real_trace_gives_the_reference_figures(case: tuple[Trace, dict[str, Any]]) -> None:
    trace, expected = case
    found = summarize(trace)[0]
    assert found.gpu_events == expected["gpu_events"]
    if not found.gpu_events:
        return
    assert found.window_us == pytest.approx(expected["span_us"], abs=CLOSE_US)
    assert found.busy_us == pytest.approx(expected["busy_us"], abs=CLOSE_US)
    assert found.idle_us == pytest.approx(expected["idle_us"], abs=CLOSE_US)
    assert found.copy_us == pytest.approx(expected["memory_us"], abs=CLOSE_US)
    other_libraries = expected.get("ext_comm")
    if other_libraries:
        assert found.communication_us == pytest.approx(other_libraries["comm_us"], abs=0.05)
        assert found.communication_exposed_us == pytest.approx(
            other_libraries["exposed_us"], abs=0.05
        )
    else:
        assert found.communication_us == pytest.approx(expected["comm_us"], abs=CLOSE_US)
        assert found.compute_us == pytest.approx(expected["compute_us"], abs=CLOSE_US)
        assert found.overlap_us == pytest.approx(expected["overlap_us"], abs=CLOSE_US)
    waits = found.host_wait_us + found.dependency_wait_us + found.kernel_wait_us
    assert waits + found.unknown_wait_us == pytest.approx(found.idle_us, abs=CLOSE_US)


@pytest.mark.sweep(every=5)
def test_a_real_trace_waits_as_in_the_reference(case: tuple[Trace, dict[str, Any]]) -> None:
    trace, expected = case
    if not expected["gpu_events"]:
        return
    (view,) = views(trace)
    device = expected["device_idle_hostwait_kernelwait_other_us"]
    assert folded(device_gaps(view)) == pytest.approx(tuple(device), abs=CLOSE_US)
    streams = expected["stream_idle_hostwait_kernelwait_other_us"]
    assert sorted(streams, key=int) == [str(s) for s in np.unique(trace.gpu.stream)]
    for stream, waits in streams.items():
        host, kernel, other = folded(stream_gaps(view, int(stream)))
        shared = overrun_us(view, int(stream))
        assert (host, kernel - shared, other) == pytest.approx(tuple(waits), abs=CLOSE_US)


@pytest.mark.sweep(every=5)
def test_a_real_trace_is_launched_as_in_the_reference(case: tuple[Trace, dict[str, Any]]) -> None:
    trace, expected = case
    if not expected["gpu_events"]:
        return
    found, said = launches(trace)[0], expected["launch"]
    assert found.launched == said["matched"]
    assert found.delay_us["median"] == pytest.approx(
        said["delay_start_to_start_median_us"], abs=CLOSE_US
    )
    assert 100 * found.shorter_than_launch_share == pytest.approx(
        said["gpu_shorter_than_api_pct"], abs=CLOSE_US
    )


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("name", FILES, ids=lambda name: name.rpartition("/")[2][:24])
def test_the_window_of_hta_gives_the_reference_figures(
    real_traces: Path, hta_reference: dict[str, Any], name: str
) -> None:
    """HTA leaves out what was launched after the start of the last of several profiler steps."""
    file, expected = expected_of(hta_reference, name, "exact_hta_window")
    (trace,) = load_traces(real_traces / file)
    if not expected["gpu_events"]:
        return
    (view,) = views(trace)
    if len(view.steps) >= 2:
        launched = launch_start_us(trace)[view.rows] < view.steps[-1].start_us
        rows = view.rows[launched]
        start, end = trace.gpu.start_us[rows].min(), trace.gpu.end_us[rows].max()
        view = replace(view, rows=rows, start_us=float(start), end_us=float(end))
    found = summarize_view(view)
    assert found.gpu_events == expected["gpu_events"]
    assert found.window_us == pytest.approx(expected["span_us"], abs=CLOSE_US)
    assert found.idle_us == pytest.approx(expected["idle_us"], abs=CLOSE_US)
    assert found.copy_us == pytest.approx(expected["memory_us"], abs=CLOSE_US)
    if "ext_comm" not in expected:
        assert found.compute_us == pytest.approx(expected["compute_us"], abs=CLOSE_US)
        assert found.overlap_us == pytest.approx(expected["overlap_us"], abs=CLOSE_US)


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize(
    ("workers", "efficiency", "occupancy"), [(0, 62.65, 49.1), (4, 68.32, 48.9)]
)
def test_the_resnet_pair_has_the_plugin_s_sm_efficiency(
    real_traces: Path, workers: int, efficiency: float, occupancy: float
) -> None:
    """torch_tb_profiler 0.4.3 on its own sample: from the first step to the end of the last."""
    name = f"num_workers_{workers}.pt.trace.json.gz"
    (trace,) = load_traces(real_traces / "v100_resnet50_dataloader" / name)
    (view,) = views(trace)
    lengths = without_overruns(view)
    found = sm_efficiency(view, lengths)
    assert found is not None
    span = max(view.steps[-1].end_us, view.end_us) - view.steps[0].start_us
    assert 100 * found * view.window_us / span == pytest.approx(efficiency, abs=0.01)
    weighted_occupancy = weighted(trace.gpu.occupancy_percent[view.rows], lengths)
    assert weighted_occupancy == pytest.approx(occupancy, abs=0.1)
