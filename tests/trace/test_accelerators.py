"""What backends write into Kineto's JSON, whoever built the accelerator, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trace.simulated.kineto import write_run
from tests.trace.simulated.run import simulate
from tests.trace.simulated.truth import cases
from tests.trace.written import call, document, host, kernel, read_kineto, write

from ridgeline.cli.main import run
from ridgeline.trace.columns import Category, Kind
from ridgeline.trace.time.summary import summarize

GPUS = [{"id": n, "name": "NVIDIA H100"} for n in range(8)]


def on_mtia(start: float, length: float, name: str, **args: Any) -> dict[str, Any]:
    event = kernel(start, length, name=name, category="mtia_ccp_events", device=9, stream=1)
    return {**event, "args": {"stream": 1, **args}}


def test_jobs_copies_and_waits_of_mtia_are_told_apart(tmp_path: Path) -> None:
    """As Kineto writes them (HolisticTraceAnalysis, tests/data/mtia_trace_single_rank)."""
    events = []
    for number in range(300):
        at = 100.0 * number
        events += [
            call(at, 30, number, "runFunction - job_prep_and_submit_for_execution",
                 category="mtia_runtime"),
            on_mtia(at + 40, 20, "fc-dtype_Float", correlation=number, column="0", row="0"),
            on_mtia(at + 60, 8, "dma_request", direction="DEVICE_TO_HOST", size=16, sqid=1),
            on_mtia(at + 70, 25, "event_wait", wait_on_stream=104, seq_num=5),
            on_mtia(at + 95, 1, "event_record", seq_num=6),
        ]  # fmt: skip
    trace = read_kineto(write(tmp_path / "mtia.json", events, deviceProperties=[]))
    kinds = trace.gpu.kind.tolist()
    assert (kinds.count(Kind.KERNEL), kinds.count(Kind.MEMCPY), len(kinds)) == (300, 300, 600)
    copies = trace.gpu.kind == Kind.MEMCPY
    assert {trace.names[name] for name in trace.gpu.name[copies]} == {
        "Memcpy DtoH (Device -> Host)"
    }
    assert set(trace.gpu.bytes[copies].tolist()) == {16}
    assert set(trace.sync.wait_on_stream.tolist()) == {104}
    assert set(trace.gpu.device.tolist()) == {9}
    (found,) = summarize(trace)
    assert found.busy_us == pytest.approx(300 * 28)
    assert found.warnings == []


@pytest.mark.parametrize("vendor", ["xpu", "mlu", "gcu", "musa", "privateuse1"])
def test_the_categories_of_other_backends_are_known_by_their_ending(
    tmp_path: Path, vendor: str
) -> None:
    events = [
        call(0, 5, 1, "LaunchKernel", category=f"{vendor}_runtime"),
        call(5, 1, 2, "LaunchKernelDriver", category=f"{vendor}_driver"),
        kernel(10, 20, correlation=1),
        kernel(40, 10, category=f"{vendor}_memcpy", name="Memcpy H2D"),
        kernel(60, 10, category=f"{vendor}_memset", name="Memset"),
        kernel(0, 900, category=f"{vendor}_user_annotation", name="step"),
        kernel(80, 10, category=f"{vendor}_sync", name="Stream Sync"),
    ]
    trace = read_kineto(write(tmp_path / "x.json", events))
    assert trace.gpu.kind.tolist() == [Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET]
    assert trace.host.category.tolist() == [Category.RUNTIME, Category.DRIVER]
    assert (len(trace.gpu_annotations), len(trace.sync)) == (1, 1)
    assert (trace.warnings, trace.skipped) == ((), {})


_SYCL = {"cudaLaunchKernel": "urEnqueueKernelLaunchWithArgsExp",
         "cudaMemcpyAsync": "urEnqueueUSMMemcpy", "cudaStreamSynchronize": "urQueueFinish",
         "cudaDeviceSynchronize": "urQueueFinish", "cudaMalloc": "urUSMDeviceAlloc",
         "cudaFree": "urUSMFree"}  # fmt: skip
"""What torch calls on an Intel GPU, as its profiler writes it."""


@pytest.mark.parametrize("name", ["resnet-uncached", "resnet-loader-item"])
def test_calls_of_sycl_wait_and_allocate_as_those_of_cuda_do(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = cases()[name]
    (path,) = write_run(simulate(case.program(), case.seed), tmp_path, case.schema())
    assert run(["trace", "summary", str(path), "--json"]) == 0
    on_cuda = json.loads(capsys.readouterr().out)["verdict"]
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event.get("cat") == "cuda_runtime":
            event |= {"cat": "xpu_runtime", "name": _SYCL.get(event["name"], event["name"])}
    path.write_text(json.dumps(document))
    assert run(["trace", "summary", str(path), "--json"]) == 0
    on_xpu = json.loads(capsys.readouterr().out)["verdict"]
    assert [one["cause"] for one in on_xpu] == [one["cause"] for one in on_cuda]
    assert on_xpu[0]["worth_us"] == pytest.approx(on_cuda[0]["worth_us"], rel=0.01)


def first_finding(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["trace", "summary", str(path), "--json"]) == 0
    finding: dict[str, Any] = json.loads(capsys.readouterr().out)["verdict"][0]
    return finding


def of_the_host(count: int) -> list[dict[str, Any]]:
    return [host(10 * number, 9, "aten::mm") for number in range(count)]


def test_a_trace_without_any_sign_of_a_gpu_ran_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "x.json", of_the_host(2000), deviceProperties=[])
    found = first_finding(path, capsys)
    assert (found["cause"], found["confidence"]) == ("cpu-only", 0.9)


def test_launches_without_kernels_are_a_file_that_lacks_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [*of_the_host(2000), *(call(10 * n, 3, n) for n in range(1, 1322))]
    found = first_finding(write(tmp_path / "x.json", events, deviceProperties=GPUS), capsys)
    assert (found["cause"], found["evidence"]["launch_calls"]) == ("empty-window", 1321)
    assert "launches 1,321 kernels" in found["summary"]
    assert found["confidence"] < 0.5


def test_a_file_cut_before_its_kernels_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [*of_the_host(2000), *(kernel(10 * n, 5) for n in range(1000))]
    text = json.dumps(document(events, deviceProperties=GPUS)).encode()
    path = tmp_path / "x.json"
    path.write_bytes(text[: text.index(b'"kernel"') - 20])
    found = first_finding(path, capsys)
    assert "ends early" in found["summary"]
    assert (found["cause"], found["confidence"]) == ("empty-window", 0.4)


@pytest.mark.parametrize(
    ("events", "header", "said"),
    [
        ([], GPUS, "lists 8 × NVIDIA H100"),
        ([call(5, 2, 1, "cudaMalloc")], [], "calls a GPU's runtime"),
        ([kernel(5, 2, category="quantum_ops")] * 40, [], "'quantum_ops'"),
    ],
)
def test_a_sign_of_a_gpu_makes_the_finding_less_sure(
    tmp_path: Path,
    events: list[dict[str, Any]],
    header: list[dict[str, Any]],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path / "x.json", [*of_the_host(2000), *events], deviceProperties=header)
    found = first_finding(path, capsys)
    assert (found["cause"], said in found["summary"]) == ("cpu-only", True), found["summary"]
    assert found["confidence"] <= 0.5


@pytest.mark.parametrize(("backend", "confidence"), [("nccl", 0.5), ("cpu:gloo", 0.9)])
def test_processes_that_nccl_joins_have_gpus(
    tmp_path: Path, backend: str, confidence: float, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = {"rank": 0, "world_size": 2, "backend": backend}
    header = {"deviceProperties": [], "distributedInfo": joined}
    path = write(tmp_path / "x.json", of_the_host(2000), **header)
    found = first_finding(path, capsys)
    assert (found["cause"], found["confidence"]) == ("cpu-only", confidence)
    assert ("nccl" in found["summary"]) == (backend == "nccl")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (host(5, 2, "aten::cudnn_convolution"), "of a GPU's library"),
        (
            {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event", "pid": 1,
             "tid": 1, "ts": 5.0, "args": {"Device Type": 1, "Device Id": 0, "Bytes": 64}},
            "of a GPU's memory",
        ),
    ],
)  # fmt: skip
def test_operators_and_memory_of_a_gpu_are_a_trace_that_lacks_its_kernels(
    tmp_path: Path, event: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "x.json", [*of_the_host(100), event], deviceProperties=[])
    found = first_finding(path, capsys)
    assert (found["cause"], said in found["summary"]) == ("empty-window", True), found["summary"]
    assert found["confidence"] < 0.5


def test_a_profiler_that_was_stopped_before_anything_ran_says_nothing_of_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = first_finding(write(tmp_path / "x.json", [], deviceProperties=GPUS), capsys)
    assert (found["cause"], found["confidence"]) == ("empty-window", 0.4)
    assert found["summary"].startswith("Nothing was recorded")


def test_idle_time_before_work_that_nothing_launched_is_not_given_to_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages of managed memory move when they are touched: no call of the host asks for them."""
    events = [call(0, 15_000, 1, "cudaMallocManaged")]
    events += [
        kernel(15_000.0 + 1_000 * n, 50, name="Memcpy Unified DtoH", category="gpu_memcpy")
        for n in range(100)
    ]
    found = first_finding(write(tmp_path / "x.json", events, deviceProperties=GPUS), capsys)
    assert (found["cause"], found["confidence"]) == ("unexplained-idle", 0.4)


def test_a_start_before_pages_that_nothing_moved_is_worth_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever touches a page would touch it that much earlier."""
    events = [call(0, 112_000, 1, "cudaMallocManaged"), call(112_010, 40, 2)]
    events.append(kernel(112_500, 3_000, correlation=2))
    moved = {"name": "Memcpy Unified DtoH", "category": "gpu_memcpy", "stream": 20}
    events += [kernel(112_520.0 + 400 * n, 50, **moved) for n in range(20)]
    found = first_finding(write(tmp_path / "x.json", events, deviceProperties=GPUS), capsys)
    assert found["cause"] == "host-bound-start-up"
    assert found["worth_us"] == pytest.approx(112_000, rel=0.02)


def test_a_context_that_no_call_shows_is_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runtimes of OpenMP ask the driver for the primary context, which nsys does not record."""
    driver = {"category": "cuda_driver"}
    events = [
        call(0, 14, name="cuDevicePrimaryCtxSetFlags_v2", **driver),
        call(99_000, 10, name="cuStreamCreate", **driver),
        call(99_100, 3_000, name="cuModuleLoadDataEx", **driver),
        *(call(102_200.0 + 400 * n, 100, 1 + n, "cuLaunchKernel", **driver) for n in range(4)),
        *(kernel(102_320.0 + 400 * n, 60, correlation=1 + n) for n in range(4)),
        call(105_000, 46_000, name="cuDevicePrimaryCtxRelease_v2", **driver),
    ]
    found = first_finding(write(tmp_path / "x.json", events, deviceProperties=GPUS), capsys)
    assert (found["cause"], found["confidence"]) == ("host-bound-start-up", 0.55)
    assert found["worth_us"] == pytest.approx(102_000, rel=0.02)
    assert found["where"][0] == "a context after cuDevicePrimaryCtxSetFlags_v2 99.0 ms"
    assert not any("Release" in place for place in found["where"])
