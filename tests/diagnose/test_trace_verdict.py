"""What bounds a run, from traces alone: published ones, and small ones with one cause each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.labelled_traces import SHARED, shared_traces
from tests.trace.written import call, host, kernel, read_kineto, write

from ridgeline.diagnose.trace_rules import all_trace_rules
from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.hardware import device
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.load import load_traces


@pytest.mark.sweep(every=4)
@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared traces")
@pytest.mark.parametrize("name", shared_traces())
def test_the_first_cause_of_a_published_trace(name: str) -> None:
    capture = shared_traces()[name]
    found = trace_verdict(load_traces(capture.paths))
    assert found[0].cause in capture.causes, [(f.cause, f.share) for f in found]
    for finding in found:
        assert 0 <= finding.share <= 1.001
        assert 0 <= finding.confidence <= 1
        assert finding.evidence
        assert finding.cure


def verdict(tmp_path: Path, events: list[dict[str, Any]], **extra: Any) -> list[TraceFinding]:
    return trace_verdict([read_kineto(write(tmp_path / "t.json", events, **extra))])


def train(
    steps: int,
    *,
    loader: float = 0.0,
    kernel_us: float = 400.0,
    wait: bool = False,
    host_us: float = 0.0,
    copy_us: float = 0.0,
    talk_us: float = 0.0,
    name: str = "sm90_xmma_gemm_bf16bf16",
) -> list[dict[str, Any]]:
    """A loop that launches ten kernels per step, well ahead of the GPU unless it waits."""
    now, free, number, events = 0.0, 0.0, 0, []

    def launched(length: float, called: str, **options: Any) -> None:
        nonlocal now, free, number
        number += 1
        events.append(call(now, 4, number))
        start = max(now + 6, free)
        events.append(kernel(start, length, correlation=number, name=called, **options))
        now, free = now + 10, start + length

    for _ in range(steps):
        if loader:
            label = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            events.append(host(now, loader, label))
            now += loader
        if copy_us:
            launched(copy_us, "Memcpy HtoD (Pageable -> Device)", category="gpu_memcpy")
        if host_us:
            events.append(host(now, host_us, "aten::mul"))
            now += host_us
        for _ in range(10):
            launched(kernel_us, name)
        if talk_us:
            launched(talk_us, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
        if wait:
            events.append(host(now, max(free - now, 0) + 4, "aten::item"))
            events.append(call(now, max(free - now, 0) + 3, 0, "cudaStreamSynchronize"))
            now = max(free, now) + 3
            events.append(host(now, 1500, "aten::mul"))
            now += 1500
    return events


def test_a_loop_that_keeps_the_gpu_busy_is_compute_bound(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8))
    assert [finding.cause for finding in found] == ["compute-bound"]


def test_what_is_put_away_long_after_the_work_is_no_part_of_it(tmp_path: Path) -> None:
    """A program checks its results for a second, unrecorded, and frees its memory at the end."""
    late = [call(1e6, 300, 0, "cudaFree"), call(1e6 + 400, 20, 0, "cudaStreamDestroy")]
    found = verdict(tmp_path, [*train(8), *late])
    assert [finding.cause for finding in found] == ["compute-bound"]
    assert found[0].evidence["window_us"] == 32_000


def test_kernels_beside_which_a_cause_weighs_little_make_it_arguable(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, loader=4300, kernel_us=400))
    assert found[0].cause == "input-bound"
    assert found[0].confidence == 0.55
    assert found[1].share > 0.75


@pytest.mark.parametrize(("copy_us", "sure"), [(1000, 0.55), (2000, 0.8)])
def test_copies_are_sure_where_unknown_kernels_could_hardly_lose_as_much(
    tmp_path: Path, copy_us: float, sure: float
) -> None:
    found = verdict(tmp_path, train(8, kernel_us=300, copy_us=copy_us, name="solve"))
    assert (found[0].cause, found[0].confidence) == ("copy-bound", sure)


@pytest.mark.parametrize(("stall_us", "sure"), [(900, 0.55), (300, 0.75)])
def test_as_much_time_that_nothing_explains_makes_the_first_a_guess(
    tmp_path: Path, stall_us: float, sure: float
) -> None:
    """Half of the kernels start long after their launch though nothing else runs."""
    events, now = [], 0.0
    for number in range(1, 41):
        events += [host(now, 1000, "aten::mul"), call(now + 1000, 4, 2 * number)]
        events.append(kernel(now + 1006, 800, correlation=2 * number))
        events.append(call(now + 1010, 4, 2 * number + 1))
        events.append(kernel(now + 1806 + stall_us, 800, correlation=2 * number + 1))
        events.append(host(now + 1014, 1592 + stall_us, "aten::mul"))
        now += 2606 + stall_us
    found = verdict(tmp_path, events)
    assert (found[0].cause, found[0].confidence) == ("host-bound", sure)
    assert "device-stall" in [finding.cause for finding in found]


@pytest.mark.parametrize(("loader", "host_us", "sure"), [(3200, 1000, 0.7), (3200, 800, 0.9)])
def test_dispatch_that_could_not_bound_the_run_has_to_weigh_more_than_what_does(
    tmp_path: Path, loader: float, host_us: float, sure: float
) -> None:
    found = verdict(tmp_path, train(8, loader=loader, host_us=host_us, kernel_us=300))
    assert found[0].cause == "input-bound"
    assert "host-bound" in [finding.cause for finding in found]
    assert found[0].confidence == sure


@pytest.mark.parametrize(
    ("host_us", "first"), [(1500, "host-bound"), (1200, "communication-bound")]
)
def test_dispatch_that_costs_twice_as_much_as_what_could_bound_the_run_comes_first_as_a_guess(
    tmp_path: Path, host_us: float, first: str
) -> None:
    """Steps that send for a tenth of the run, and then steps whose host is late for a fifth."""
    sending = train(10, kernel_us=100, talk_us=330)
    late = train(10, kernel_us=100, host_us=host_us)
    ends = [event["ts"] + event["dur"] for event in sending]
    launched = max(event["ts"] for event in sending if event["cat"] == "cuda_runtime")
    sending.append(call(launched + 5, max(ends) - launched, 0, "cudaStreamSynchronize"))
    for event in late:
        event["ts"] += max(ends) + 6
        if event["args"].get("correlation"):
            event["args"]["correlation"] += 1000
    found = verdict(tmp_path, sending + late)
    assert (found[0].cause, found[0].confidence) == (first, 0.55)


def test_waiting_for_the_loader_is_input_bound(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, loader=6000, kernel_us=300))
    assert found[0].cause == "input-bound"
    assert found[0].share == pytest.approx(0.45, abs=0.1)


def test_a_loader_that_works_while_the_gpu_is_busy_costs_nothing(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, loader=3000, kernel_us=400))
    assert [finding.cause for finding in found] == ["compute-bound"]


def test_a_batch_that_is_there_holds_nothing_though_taking_it_takes_a_millisecond(
    tmp_path: Path,
) -> None:
    """Steps of 100 ms: a large batch comes over a queue in 1.5, then the host is slow."""
    events, taken = [], "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for step in range(4):
        events.append(host(100_000.0 * step, 1500, taken))
        for number in range(40):
            at, called = 100_000.0 * step + 1600 + 2400 * number, 40 * step + number + 1
            events.append(host(at, 2300, "aten::mul"))
            events.append(call(at + 2290, 5, called))
            events.append(kernel(at + 2300, 1000, correlation=called))
    found = verdict(tmp_path, events)
    assert found[0].cause == "host-bound"
    assert found[0].worth_us > 0.5 * found[0].evidence["window_us"]


def test_a_batch_that_takes_a_little_longer_than_most_was_not_waited_for(tmp_path: Path) -> None:
    """Ten steps of 4 ms on the host: eight batches come in 0.3 ms, and the last two in 0.8."""
    events, taken = [], "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for step in range(10):
        start = 4000.0 * step
        events.append(host(start, 800 if step >= 8 else 300, taken))
        for number in range(20):
            at, called = start + 900 + 150 * number, 20 * step + number + 1
            events.append(host(at, 140, "aten::mul"))
            events.append(call(at + 130, 5, called))
            events.append(kernel(at + 140, 2, correlation=called))
    found = verdict(tmp_path, events)
    assert found[0].cause == "launch-bound"
    assert found[0].worth_us > 0.5 * found[0].evidence["window_us"]


def test_kernels_that_fill_the_window_and_could_lose_as_much_come_first(tmp_path: Path) -> None:
    """Additions at 59 % of the roof of memory for 4.1 of 5.5 ms, then Python after a wait."""
    events, elements = [], 1 << 26
    for step in range(4):
        begin = 5500.0 * step
        for number in range(10):
            at, called = begin + 20 * number, 10 * step + number + 1
            shapes = {"Input Dims": [[elements], [elements]], "Input type": ["float", "float"]}
            events.append(host(at, 15, "aten::add", **shapes))
            events.append(call(at + 5, 5, called))
            name = "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
            events.append(kernel(begin + 20 + 410 * number, 410, correlation=called, name=name))
        events.append(call(begin + 300, 3821, 0, "cudaDeviceSynchronize"))
        events.append(host(begin + 4125, 1370, "train.py(7): log", "python_function"))
    gpu = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]
    path = write(tmp_path / "t.json", events, deviceProperties=gpu)
    first, second, *_ = trace_verdict(load_traces([path], details=True))
    assert first.cause == "memory-bound"
    assert second.worth_us < first.worth_us < 1.15 * second.worth_us
    assert first.confidence == 0.55


def test_a_host_that_would_be_next_to_hold_all_up_is_quicker_too(tmp_path: Path) -> None:
    """Rank 0 comes 20 ms late to each of four meetings; rank 1, just behind it, seems busy."""
    talks, files = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", []
    for rank, (own, until, first) in enumerate([(51_000, 20_000, 20_000), (46_000, 46_000, 0)]):
        events = []
        for step in range(4):
            at, begin = own * step + first, 51_000.0 * step + first
            if at >= until:
                events.append(host(at - until, until - 50, "aten::mul"))
            events += [call(at - 40, 5, 2 * step + 1), call(at - 30, 5, 2 * step + 2)]
            events.append(kernel(begin, 30_000, correlation=2 * step + 1))
            wait = {"stream": 9, "correlation": 2 * step + 2, "name": talks}
            events.append(kernel(begin + 30_000, 51_000.0 - first - 30_000, **wait))
            if rank == 0:
                events.append(call(at - 20, 31_000, 0, "cudaDeviceSynchronize"))
        world = {"backend": "nccl", "rank": rank, "world_size": 2}
        files.append(write(tmp_path / f"rank{rank}.json", events, distributedInfo=world))
    found = {finding.cause: finding for finding in trace_verdict(load_traces(files))}
    late = found["host-bound"]
    assert late.worth_us == pytest.approx(80_000, rel=0.05)  # 35,000 if rank 1 stayed so
    assert "of rank 0's, for which the others wait" in late.summary


def test_reading_a_value_in_every_step_is_sync_bound(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, wait=True))
    assert found[0].cause == "sync-bound"
    assert found[0].evidence["waits"] == 8
    assert "aten::item" in found[0].where


def test_a_host_that_is_slower_than_the_gpu_is_host_bound_though_it_waits(tmp_path: Path) -> None:
    """Without the waits the GPU's 0.2 ms a step would pass beside the host's 1.6, no more."""
    found = verdict(tmp_path, train(8, wait=True, kernel_us=20))
    assert found[0].cause == "host-bound"
    waits = [finding.worth_us for finding in found if finding.cause == "sync-bound"]
    assert all(worth <= 8 * 200 for worth in waits)


def test_a_wait_that_costs_most_of_the_window_still_comes_before_the_host(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, wait=True, kernel_us=160))
    assert found[0].cause == "sync-bound"
    assert found[0].share == pytest.approx(0.48, abs=0.05)


@pytest.mark.parametrize(
    ("loader", "host_us", "first"),
    [(2900, 300, "input-bound"), (2600, 800, "input-bound"), (600, 3500, "host-bound")],
)
def test_of_two_waits_for_the_host_the_one_whose_cure_brings_more_comes_first(
    tmp_path: Path, loader: float, host_us: float, first: str
) -> None:
    """The GPU needs 2.2 ms a step: without its loader the second host would keep up with it."""
    found = verdict(tmp_path, train(8, loader=loader, host_us=host_us, kernel_us=220))
    assert found[0].cause == first
    spared = min(loader if first == "input-bound" else host_us, loader + host_us + 100 - 2200)
    before_the_first_kernel = min(loader, 2200) if first == "input-bound" else host_us
    assert found[0].worth_us == pytest.approx(7 * spared + before_the_first_kernel, rel=0.12)


def test_a_cure_of_the_host_is_worth_no_more_than_it_leaves_to_the_gpu(tmp_path: Path) -> None:
    """Of 6 ms in the loader 3 ms are hidden: without all of it a step takes 3 ms less, not 6."""
    found = verdict(tmp_path, train(8, loader=6000, kernel_us=300))
    assert found[0].worth_us == pytest.approx(7 * (6000 + 100 - 3000) + 6000, rel=0.03)


def test_loading_that_idles_the_gpu_is_told_from_loading_that_does_not(tmp_path: Path) -> None:
    """Kernels still running hide half of each call but the first, which nothing precedes."""
    found = verdict(tmp_path, train(8, loader=6000, kernel_us=300))
    idle = found[0].evidence["loader_wait_us"]
    assert isinstance(idle, float)
    assert idle == pytest.approx(7 * (6000 - 2900) + 6000, rel=0.05)


def test_copies_that_nothing_hides_are_copy_bound(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, copy_us=6000))
    assert found[0].cause == "copy-bound"
    assert "pin" in found[0].cure.lower()


def test_exposed_collectives_are_communication_bound(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, talk_us=3000))
    assert found[0].cause == "communication-bound"
    assert found[0].share == pytest.approx(3 / 7, abs=0.02)


def test_plain_fp32_is_named_beside_what_bounds_the_run(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, name="volta_sgemm_128x64_nn"))
    assert [finding.cause for finding in found] == ["compute-bound", "no-tensor-cores"]


def test_tiny_kernels_from_an_empty_queue_are_launch_bound(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(50, kernel_us=2.0))
    assert found[0].cause == "launch-bound"
    assert found[0].confidence >= 0.8


@pytest.mark.parametrize(("small", "sure"), [(10, True), (90, False)])
def test_kernels_too_small_for_their_launches_may_be_what_saves_most(
    tmp_path: Path, small: int, sure: bool
) -> None:
    """The queue is full, so that no gap shows what fewer kernels would save."""
    events, now, number = [], 1000.0, 0
    for _ in range(10):
        for length in (800.0, *[3.0] * small):
            number += 1
            events += [call(number, 0.5, number), kernel(now, length, correlation=number)]
            now += length + 0.8
    found = verdict(tmp_path, events)
    assert found[0].cause in {"compute-bound", "memory-bound", "gpu-bound"}
    assert (found[0].confidence > 0.6) == sure


def attention(dims: list[int], kernels: list[str]) -> list[dict[str, Any]]:
    """Layers of kernels of a millisecond, a softmax over these sizes among them."""
    events, now = [], 0.0
    args = {"Input Dims": [dims, [], []], "Input type": ["c10::BFloat16", "Scalar", "Scalar"]}
    for number in range(len(kernels) * 8):
        name = kernels[number % len(kernels)]
        if name == "softmax_warp_forward":
            events.append(host(20.0 * number, 15, "aten::_softmax", **args))
        events.append(call(20.0 * number + 5, 4, number + 1))
        events.append(kernel(100 + now, 1000, correlation=number + 1, name=name))
        now += 1000
    return events


@pytest.mark.parametrize(
    ("dims", "kernels", "worth_us"),
    [
        ([8, 16, 2048, 2048], ["sm90_gemm_qk", "softmax_warp_forward", "sm90_gemm_pv"], 8000),
        ([8, 16, 1, 2048], ["sm90_gemm_qk", "softmax_warp_forward", "sm90_gemm_pv"], None),
        ([8, 16, 2048, 2048], ["sm90_gemm_head", "softmax_warp_forward"] + ["reduce"] * 8, None),
    ],
)
def test_the_softmax_of_attention_written_out_could_go_as_a_whole(
    tmp_path: Path, dims: list[int], kernels: list[str], worth_us: float | None
) -> None:
    """For one query there is nothing to fuse; nor where no product follows."""
    gpu = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]
    path = write(tmp_path / "trace.json", attention(dims, kernels), deviceProperties=gpu)
    found = trace_verdict(load_traces([path], details=True))
    kernel_finding = next(one for one in found if one.cause in {"compute-bound", "memory-bound"})
    moved_us = 2 * 2.0 * math.prod(dims) / device("h100").memory.bandwidth_bytes_per_second * 1e6
    attainable = 8000 - 8 * moved_us / 0.8
    expected = attainable if worth_us is None else worth_us
    assert kernel_finding.worth_us == pytest.approx(expected, rel=0.01)


def test_a_close_second_makes_the_first_a_guess(tmp_path: Path) -> None:
    found = verdict(tmp_path, train(8, talk_us=3000, copy_us=2600))
    assert {found[0].cause, found[1].cause} == {"communication-bound", "copy-bound"}
    assert found[0].confidence < 0.6


def test_work_that_waits_for_another_stream_is_no_fault_of_the_host(tmp_path: Path) -> None:
    events = []
    for number in range(1, 21):
        events += [
            call(10.0 * number, 4, number),
            kernel(1000.0 * number, 300, correlation=number, stream=number % 2),
        ]
    found = verdict(tmp_path, events)
    assert found[0].cause == "dependency-wait"
    assert not [finding for finding in found if finding.cause.startswith("host")]


def test_every_cause_has_one_owner_and_a_place_in_the_reference() -> None:
    causes = [cause for rule in all_trace_rules().values() for cause in rule.CAUSES]
    assert len(causes) == len(set(causes))
    page = (Path(__file__).parents[2] / "docs" / "reference" / "trace-verdict.md").read_text()
    assert [cause for cause in causes if f"`{cause}`" not in page] == []


@pytest.mark.parametrize("many", [0, 20])
def test_kernels_that_fill_the_window_of_a_host_that_is_as_long_do_not_bound_it(
    tmp_path: Path, many: int
) -> None:
    # The host launches without a pause and waits for nothing; quicker kernels only idle longer.
    events, free = [], 0.0
    for number in range(1, 401):
        begun = 20.0 * number
        events += [host(begun, 18, "aten::mm"), call(begun + 10, 2, number)]
        behind = number <= many  # the GPU has more to do at first, and catches up
        start = max(begun + 12, free)
        events.append(kernel(start, 24 if behind else 16, correlation=number, name="ampere_sgemm"))
        free = start + (24 if behind else 16)
    first, *rest = verdict(tmp_path, events)
    assert first.cause in {"host-bound", "launch-bound"}
    assert first.worth_us > 0.1 * 8000
    assert first.evidence["saved_without_gpu_work_us"] < 0.02 * 8000
    kernels = {one.cause: one for one in rest}
    assert kernels["no-tensor-cores"].worth_us < 0.02 * 8000
    assert kernels.keys() & {"compute-bound", "gpu-bound"}
