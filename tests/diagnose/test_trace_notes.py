"""What a verdict adds and never puts first: unknown kernels, and collectives without buckets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, kernel, read_kineto, step, write

from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.records.finding import TraceFinding

RESNET = [64 * 3 * 49, 64, 64, 64 * 64, 256, 256 * 64, 128 * 128 * 9, 512, 512 * 512 * 9, 1000]
"""Elements of parameters of a ResNet-50; most of its 161 are biases and norms."""
GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def verdict(path: Path, events: list[dict[str, Any]], **extra: Any) -> list[TraceFinding]:
    return trace_verdict([read_kineto(write(path / "rank0.json", events, **extra))])


def all_reduce(elements: int) -> dict[str, Any]:
    return {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
        "Group size": 8, "dtype": "Float", "Process Group Name": "0",
    }  # fmt: skip


def steps_of(
    kernels: list[tuple[str, float, dict[str, Any]]], steps: int, *, stream: int = 7
) -> list[dict[str, Any]]:
    """Steps whose work is launched well ahead and runs without a gap."""
    events, now, number = [], 2000.0, 0
    for place in range(steps):
        first = now
        for name, length, said in kernels:
            number += 1
            events.append(call(first - 1500 + number % 100, 0.5, number))
            events.append(kernel(now, length, correlation=number, name=name, stream=stream, **said))
            now += length
        events.append(step(first - 1500, now - first, place))
    return events


def test_all_reduces_of_single_tensors_are_not_bucketed(tmp_path: Path) -> None:
    """Ten steps of 202 all-reduces, 21 µs each, after a backward pass of 10 ms."""
    parts = [(GEMM, 200.0, {})] * 50
    parts += [(REDUCE, 21.0, all_reduce(RESNET[place % 6])) for place in range(202)]
    found = verdict(tmp_path, steps_of(parts, 10))
    (one,) = [finding for finding in found if finding.cause == "not-bucketed"]
    assert one.evidence["all_reduces"] == 2020
    assert one.evidence["all_reduces_per_step"] == 202
    assert "2020 all-reduces" in one.summary
    whole = 10 * (50 * 200 + 202 * 21)
    assert one.share == pytest.approx(10 * 201 * 21 / whole, rel=0.02)
    assert "bucket" in one.cure
    assert found[0].cause != "not-bucketed"
    assert "communication-bound" in [finding.cause for finding in found]


def test_all_reduces_in_buckets_are_left_alone(tmp_path: Path) -> None:
    parts = [(GEMM, 200.0, {})] * 40 + [(REDUCE, 900.0, all_reduce(6_553_600))] * 40
    found = verdict(tmp_path, steps_of(parts, 4))
    assert "not-bucketed" not in [finding.cause for finding in found]


def test_all_reduces_of_tensor_parallelism_cannot_be_joined(tmp_path: Path) -> None:
    """Small and many, but each needs the product before it, and all have the activations' size."""
    parts = [(GEMM, 30.0, {}), (REDUCE, 21.0, all_reduce(8192))] * 80
    parts += [(GEMM, 30.0, {}), (REDUCE, 9.0, all_reduce(1))]
    parts += [(GEMM, 30.0, {}), (REDUCE, 9.0, all_reduce(2)), (REDUCE, 9.0, all_reduce(3))]
    found = verdict(tmp_path, steps_of(parts, 4))
    assert "not-bucketed" not in [finding.cause for finding in found]


def test_gradients_that_are_sent_as_they_come_are_not_bucketed_either(tmp_path: Path) -> None:
    """A hook per parameter: products of the backward pass lie between, the sizes tell."""
    parts = [
        part
        for place in range(80)
        for part in ((GEMM, 30.0, {}), (REDUCE, 21.0, all_reduce(RESNET[place % 6])))
    ]
    found = verdict(tmp_path, steps_of(parts, 4))
    assert "not-bucketed" in [finding.cause for finding in found]


def test_small_all_reduces_that_compute_covers_are_worth_nothing(tmp_path: Path) -> None:
    compute = steps_of([(GEMM, 100.0, {})] * 60, 4)
    talk = steps_of([(REDUCE, 21.0, all_reduce(size)) for size in RESNET[:5] * 40], 4, stream=20)
    talk = [event for event in talk if event["cat"] == "kernel"]
    found = verdict(tmp_path, compute + talk)
    assert "not-bucketed" not in [finding.cause for finding in found]


def test_kernels_that_nobody_knows_are_said_to_be_unknown(tmp_path: Path) -> None:
    parts = [("void acme::hop::send<8>(int4*)", 300.0, {}), (GEMM, 200.0, {})] * 10
    info = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}}
    found = verdict(tmp_path, steps_of(parts, 4), **info)
    (one,) = [finding for finding in found if finding.cause == "unknown-kernels"]
    assert found[0].cause != "unknown-kernels"
    assert one.share == pytest.approx(0.6)
    assert "8 ranks" in one.summary
    assert one.where == ["send"]


def test_a_few_unknown_kernels_are_no_finding(tmp_path: Path) -> None:
    parts = [("void acme::hop::send<8>(int4*)", 100.0, {}), (GEMM, 200.0, {})] * 10
    found = verdict(tmp_path, steps_of(parts, 4))
    assert "unknown-kernels" not in [finding.cause for finding in found]
