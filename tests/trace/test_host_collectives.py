"""Collectives that the host carries out are communication too: gloo, and oneCCL on CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace.written import call, host, kernel, read_kineto, write

from ridgeline.trace.communication.host_collectives import HostCommunication, all_communication
from ridgeline.trace.load import load_traces


def test_collectives_of_the_host_have_an_entry_of_their_own(real_traces: Path) -> None:
    """Ten all-reduces of gloo on two threads side by side, rank 34 of 300, no GPU."""
    (trace,) = load_traces(
        real_traces / "edge_cases" / "cpu_only_rank34.pt.trace.json.gz", details=True
    )
    (found,) = all_communication(trace)
    assert isinstance(found, HostCommunication)
    assert (found.rank, found.world_size, found.calls, found.sized_calls) == (34, 300, 10, 10)
    assert {(use.kind, use.kernel) for use in found.collectives} == {
        ("all-reduce", "gloo:all_reduce")
    }
    sizes = sorted(use.bytes or 0 for use in found.collectives)
    assert sizes[-1] >= 2082411 * 4
    spans = sum(use.total_us for use in found.collectives)
    assert 0.5 * spans < found.communication_us < 0.6 * spans, "two threads at once"
    largest = max(found.collectives, key=lambda use: use.bytes or 0)
    assert largest.bus_bytes_per_second == pytest.approx(
        (largest.bytes or 0) / largest.median_us * 1e6 * 2 * 299 / 300
    )


def test_what_nccl_opens_around_its_kernels_is_no_collective_of_the_host(
    tmp_path: Path,
) -> None:
    events = [
        host(0, 50, "nccl:all_reduce", "user_annotation"),
        host(0, 60, "c10d::allreduce_"),
        host(0, 30, "oneccl_bindings_for_pytorch::allreduce"),
        host(40, 30, "oneccl_bindings_for_pytorch::wait::cpu::allreduce"),
        call(10, 5, 1),
        kernel(30, 10, correlation=1, name="ncclKernel_Generic"),
    ]
    trace = read_kineto(write(tmp_path / "made.json", events))
    on_gpu, on_host = all_communication(trace)
    assert isinstance(on_host, HostCommunication)
    assert (on_gpu.calls, on_host.calls, on_host.communication_us) == (1, 1, 30)
