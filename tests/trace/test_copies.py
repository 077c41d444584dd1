"""Copies have a direction, bytes and a bandwidth; those that belong to every step are offload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import host, kernel, read_kineto, step, write

from ridgeline.cli.main import run
from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.trace.load import load_traces
from ridgeline.trace.loaders import loader_workers
from ridgeline.trace.time.copies import copies

IN = "Memcpy HtoD (Pinned -> Device)"
OUT = "Memcpy DtoH (Device -> Pageable)"


def copy(start: float, length: float, size: int, name: str = IN, **args: Any) -> dict[str, Any]:
    return kernel(
        start, length, category="gpu_memcpy", name=name, stream=args.pop("stream", 9), bytes=size
    )


def answer(path: Path, events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> Any:
    assert run(["trace", "copies", str(write(path / "rank0.json", events)), "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    return rank


def test_copies_have_bytes_and_bandwidth_by_direction_and_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = answer(tmp_path, [
        kernel(0, 1000),
        copy(100, 100, 2_000_000),
        copy(900, 200, 8_000_000),
        copy(1200, 300, 900_000, OUT),
        kernel(1500, 10, category="gpu_memset", name="Memset (Device)", bytes=4000),
    ], capsys)  # fmt: skip
    found = {use["direction"]: use for use in rank["copies"]}
    assert set(found) == {"HtoD", "DtoH", "memset"}
    inward, outward = found["HtoD"], found["DtoH"]
    assert (inward["memory"], outward["memory"]) == ("pinned", "pageable")
    assert (inward["count"], inward["bytes"], inward["total_us"]) == (2, 10_000_000, 300)
    assert inward["exposed_us"] == 100, "of the second, what runs on after the kernel"
    assert inward["mean_bytes_per_second"] == pytest.approx(10e6 / 300e-6)
    assert inward["median_bytes_per_second"] == pytest.approx((2e6 / 100e-6 + 8e6 / 200e-6) / 2)
    assert outward["mean_bytes_per_second"] == pytest.approx(3e9)
    assert outward["exposed_us"] == 300


def test_bandwidth_over_time_keeps_every_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = answer(tmp_path, [
        kernel(0, 5000),
        copy(1000, 1000, 10_000_000),
        copy(1500, 1000, 30_000_000, stream=10),
        copy(4000, 0, 5_000_000),
    ], capsys)  # fmt: skip
    (series,) = rank["series"]
    assert series["bin_us"] == pytest.approx(100)
    rates = series["bytes_per_second"]
    assert sum(rates) * 100e-6 == pytest.approx(45e6)
    assert rates[12] == pytest.approx(1e10), "one copy"
    assert rates[17] == pytest.approx(4e10), "two at once"
    assert rates[30] == 0


def test_a_copy_without_a_size_counts_and_has_no_bandwidth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ROCm before 6.3 writes `kind` and no bytes."""
    unsized = kernel(0, 10, category="gpu_memcpy", name="CopyHostToDevice", kind="HtoD")
    (use,) = answer(tmp_path, [unsized, kernel(20, 10)], capsys)["copies"]
    assert (use["direction"], use["memory"], use["count"]) == ("HtoD", None, 1)
    assert (use["sized"], use["bytes"], use["mean_bytes_per_second"]) == (0, 0, None)


def offloading(
    steps: int, out_bytes: int, in_bytes: int, *, copy_us: float = 2000.0, parts: int = 8
) -> list[dict[str, Any]]:
    """Each step copies out layer by layer going forward, and in again going back."""
    events, now = [], 0.0
    for number in range(steps):
        first = now
        for name, size in ((OUT, out_bytes), (IN, in_bytes)):
            for _ in range(parts):
                events.append(kernel(now, 500, name="volta_sgemm_64x64_nn"))
                now += 500
                if size:
                    events.append(copy(now, copy_us, size // parts, name))
                    now += copy_us
        events.append(step(first, now - first, number))
    events.append(kernel(now, 10))
    return events


def test_copies_out_and_back_in_every_step_are_offload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = offloading(6, 2**30, 2**30)
    found = answer(tmp_path, events, capsys)["offload"]
    assert found["way"] == "out and back"
    assert found["out_bytes_per_step"] == found["in_bytes_per_step"] == 2**30
    assert run(["trace", "copies", str(tmp_path / "rank0.json")]) == 0
    assert "Offload: 1.07 GB a step leave the GPU" in capsys.readouterr().out
    verdict = trace_verdict([read_kineto(tmp_path / "rank0.json")])
    (finding,) = [one for one in verdict if one.cause == "copy-bound"]
    assert "offload" in finding.summary
    assert finding.cure.startswith("Offload less")


def test_parameters_that_are_streamed_in_are_offload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(tmp_path, offloading(6, 0, 2**29), capsys)["offload"]
    assert (found["way"], found["out_bytes_per_step"]) == ("in", 0)


@pytest.mark.parametrize(
    ("out_bytes", "in_bytes"),
    [(2**12, 2**26), (2**28, 2**12), (2**14, 2**14)],
    ids=["a batch comes in", "results go out", "next to nothing"],
)
def test_input_and_results_are_no_offload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out_bytes: int, in_bytes: int
) -> None:
    assert answer(tmp_path, offloading(6, out_bytes, in_bytes), capsys)["offload"] is None


def test_a_large_batch_that_comes_in_at_once_is_no_offload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, now = [], 0.0
    for number in range(6):
        events += [step(now, 20_000, number), copy(now, 9000, 2**27), copy(now + 9000, 9000, 2**28)]
        events.append(kernel(now + 18_100, 1800))
        now += 20_000
    assert answer(tmp_path, events, capsys)["offload"] is None


@pytest.mark.slow
def test_no_published_trace_is_called_offload(real_traces: Path) -> None:
    """They train and serve from GPU memory; two copy 70 MB of input in each step."""
    for name in ("ddp_compare", "h100_inference", "v100_resnet50_dataloader", "a100_dlrm_16rank"):
        for trace in load_traces(real_traces / name):
            assert [rank.offload for rank in copies(trace)] == [None], trace.file


def test_bandwidth_of_a_published_trace_is_what_its_copies_say(real_traces: Path) -> None:
    """150 pinned copies of 424 MB in 50.7 ms, by `bytes` and `dur` of the file."""
    (trace,) = load_traces(real_traces / "ddp_compare" / "a100_8rank_rank3.control.json.gz")
    found = {use.direction: use for use in copies(trace)[0].copies}["HtoD"]
    assert (found.memory, found.count, found.bytes) == ("pinned", 150, 423_923_260)
    assert found.mean_bytes_per_second == pytest.approx(423_923_260 / 50_656e-6)


@pytest.mark.parametrize(
    ("iterator", "workers"),
    [("_MultiProcessingDataLoaderIter", True), ("_SingleProcessDataLoaderIter", False)],
)
def test_a_trace_says_whether_its_loader_has_workers(
    tmp_path: Path, iterator: str, workers: bool
) -> None:
    label = f"enumerate(DataLoader)#{iterator}.__next__"
    events = [host(0, 100, label, "user_annotation"), kernel(200, 10)]
    assert loader_workers(read_kineto(write(tmp_path / "a.json", events))) is workers
    assert loader_workers(read_kineto(write(tmp_path / "b.json", events[1:]))) is None
