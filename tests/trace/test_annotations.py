"""`ridgeline trace annotations`: host and GPU time, GPU idle and MFU by the user's named ranges."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, host, kernel, step, write

from ridgeline.cli.main import run
from ridgeline.hardware.catalogue import match_reported_name

H100 = "NVIDIA H100 80GB HBM3"
Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """The command's answer about a trace of these events."""

    def ask(*events: dict[str, Any], arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        devices = [{"id": 0, "name": H100}]
        path = write(tmp_path / "rank0.json", list(events), deviceProperties=devices)
        assert run(["trace", "annotations", str(path), "--json", *arguments]) == 0
        (rank,) = json.loads(capsys.readouterr().out)["ranks"]
        found: dict[str, Any] = rank
        return found

    return ask


def named(start: float, length: float, name: str, tid: int = 1) -> dict[str, Any]:
    return host(start, length, name, "user_annotation", tid)


def matmul(start: float, size: int, tid: int = 1) -> dict[str, Any]:
    dims = {"Input Dims": [[size, size], [size, size]], "Input type": ["float", "float"]}
    return host(start, 4, "aten::mm", tid=tid, **dims)


NODE = "autograd::engine::evaluate_function: MmBackward0"


def training(start: float, number: int) -> list[dict[str, Any]]:
    """A step of 1 ms: forward launches 100 µs, autograd's thread 200 µs in the backward range."""
    first = 10 * number
    return [
        step(start, 1000, number),
        named(start + 10, 200, "forward"),
        matmul(start + 20, 64),
        call(start + 21, 2, first + 1),
        kernel(start + 100, 60, correlation=first + 1),
        call(start + 30, 2, first + 2),
        kernel(start + 200, 40, correlation=first + 2),
        named(start + 300, 400, "backward"),
        host(start + 310, 300, NODE, tid=2),
        matmul(start + 320, 128, tid=2),
        call(start + 321, 2, first + 3, tid=2),
        kernel(start + 400, 150, correlation=first + 3),
        named(start + 500, 50, "nccl:all_reduce", tid=2),
        call(start + 510, 2, first + 4, tid=2),
        kernel(start + 560, 50, correlation=first + 4, name="ncclDevKernel_AllReduce"),
    ]


def test_ranges_hold_what_was_launched_inside_them(asked: Asked) -> None:
    rank = asked(*training(0, 1), *training(1000, 2), kernel(1900, 7))
    found = {
        use["name"]: [use[key] for key in ("count", "host_us", "gpu_us", "gpu_self_us")]
        for use in rank["ranges"]
    }
    assert found == {
        "ProfilerStep#*": [2, 2000, 600, 0],
        "backward": [2, 800, 400, 300],
        "forward": [2, 400, 200, 200],
        "nccl:all_reduce": [2, 100, 100, 100],
    }
    assert (rank["gpu_us"], rank["gpu_outside_us"]) == (607, 7)


def test_the_gpu_is_idle_inside_a_range_while_nothing_runs(asked: Asked) -> None:
    rank = asked(*training(0, 1))
    found = {use["name"]: (use["gpu_span_us"], use["gpu_idle_us"]) for use in rank["ranges"]}
    assert found == {
        "ProfilerStep#*": (510, 210),
        "backward": (210, 10),
        "forward": (140, 40),
        "nccl:all_reduce": (50, 0),
    }


def test_calls_that_overlap_on_the_gpu_count_their_time_once(asked: Asked) -> None:
    events = [
        event
        for number in (0, 1)
        for event in (
            named(number * 10, 5, "work"),
            call(number * 10 + 1, 2, number + 1),
            kernel(100 + number * 50, 100, correlation=number + 1, stream=number + 7),
        )
    ]
    (use,) = asked(*events)["ranges"]
    assert (use["gpu_us"], use["gpu_span_us"], use["gpu_idle_us"]) == (200, 150, 0)


def test_the_flops_of_a_range_over_its_gpu_time_are_its_mfu(asked: Asked) -> None:
    rank = asked(*training(0, 1))
    flops = {use["name"]: use["flops"] for use in rank["ranges"]}
    assert flops == {
        "ProfilerStep#*": 2 * (64**3 + 128**3),
        "backward": 2 * 128**3,
        "forward": 2 * 64**3,
        "nccl:all_reduce": 0,
    }
    h100 = match_reported_name(H100)
    assert h100 is not None
    forward = next(use for use in rank["ranges"] if use["name"] == "forward")
    assert forward["flops_utilization"] == pytest.approx(
        2 * 64**3 / 140e-6 / h100.peaks[h100.training_dtype]
    )


def test_a_tree_tells_a_name_apart_by_what_is_around_it(asked: Asked) -> None:
    events = [
        named(0, 100, "outer"),
        named(10, 20, "inner"),
        named(200, 50, "inner"),
        named(210, 20, "inner"),
    ]
    by_path = asked(*events, arguments=("--tree",))["ranges"]
    assert {use["path"]: (use["depth"], use["host_us"]) for use in by_path} == {
        "outer": (0, 100),
        "outer/inner": (1, 20),
        "inner": (0, 50),
        "inner/inner": (1, 20),
    }
    by_name = {use["name"]: (use["count"], use["host_us"]) for use in asked(*events)["ranges"]}
    assert by_name == {"outer": (1, 100), "inner": (3, 70)}


def test_iterations_are_one_row_and_layers_are_several(asked: Asked) -> None:
    turns = [named(place * 10, 9, f"iter {place}") for place in range(5)]
    layers = [named(place * 10 + 1, 5, f"layer_{place % 2}") for place in range(5)]
    rank = asked(*turns, *layers)
    assert {use["name"]: use["count"] for use in rank["ranges"]} == {
        "iter *": 5,
        "layer_0": 3,
        "layer_1": 2,
    }


@pytest.mark.slow
def test_ranges_that_old_profilers_write_among_operators_are_ranges(
    real_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch 1.8: six steps, the loader and the optimizer are operators to it."""
    (file,) = (real_traces / "v100_resnet50_dataloader").glob("num_workers_0*")
    found = {}
    for word, window in (("annotations", ("--window", "steps")), ("steps", ())):
        assert run(["trace", word, str(file), "--json", *window]) == 0
        (found[word],) = json.loads(capsys.readouterr().out)["ranks"]
    use = {one["name"]: one for one in found["annotations"]["ranges"]}
    assert use["ProfilerStep#*"]["count"] == 5
    assert use["Optimizer.step#SGD.step"]["gpu_us"] > 0
    loader = next(one for name, one in use.items() if name.startswith("enumerate(DataLoader)#"))
    phases = [step["phases_us"]["data"] for step in found["steps"]["steps"] if step["whole"]]
    assert loader["host_us"] == pytest.approx(sum(phases))


def test_a_trace_without_ranges_says_how_to_name_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rank0.json", [kernel(0, 5)])
    assert run(["trace", "annotations", str(path)]) == 0
    assert "record_function" in capsys.readouterr().out


def test_ranges_of_a_recommender_hold_all_of_its_gpu_time(
    real_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = (real_traces / "v100_dlrm_8rank_nccl").glob("worker0_*.json.gz")
    assert run(["trace", "annotations", str(file), "--json", "--top", "99"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["gpu_outside_us"] == pytest.approx(0, abs=1e-6)
    use = {one["name"]: one for one in rank["ranges"]}
    assert use["ProfilerStep#*"]["gpu_us"] == pytest.approx(rank["gpu_us"])
    assert use["## backward ##"]["gpu_us"] > 2000  # launched by autograd's own thread
    assert sum(one["gpu_self_us"] for one in rank["ranges"]) == pytest.approx(rank["gpu_us"])


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("file", "name", "prefix"),
    [
        ("h100_inference/Qwen*", "ProfilerStep#*", "ProfilerStep#6"),
        ("h100_inference/google*", "ProfilerStep#*", "ProfilerStep#6"),
        ("mi300x_ddp/*", "DistributedDataParallel.forward", "DistributedDataParallel.forward"),
        ("mi300x_ddp/*", "nccl:broadcast", "nccl:broadcast"),
    ],
)
def test_spans_on_the_gpu_are_those_that_the_profiler_writes(
    real_traces: Path, file: str, name: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kineto's own `gpu_user_annotation` events say the same of what one thread launched."""
    (path,) = real_traces.glob(f"{file}.json.gz")
    written = [
        event["dur"]
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event.get("cat") == "gpu_user_annotation" and event["name"] == prefix
    ]
    assert run(["trace", "annotations", str(path), "--json", "--top", "99"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    use = next(one for one in rank["ranges"] if one["name"] == name)
    assert use["gpu_span_us"] == pytest.approx(sum(written), abs=0.1)
