"""What collectives move, and scaling curves over them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.collective_volume import (
    Fabric,
    all_gather_bytes,
    all_reduce_bytes,
    all_reduce_seconds,
    doubling_all_reduce_seconds,
    ring_all_reduce_seconds,
    ring_from_bytes,
)
from ridgeline.cost.scaling import (
    DataParallelStep,
    amdahl_speedup,
    gustafson_speedup,
    scaling_curve,
)

NODES = Fabric(
    domain_size=8,
    domain_bytes_per_second=400e9,
    network_bytes_per_second=50e9,
    domain_latency_seconds=2e-6,
    network_latency_seconds=1e-5,
)
COUNTS = [1, 2, 4, 8, 16, 64, 256, 1024]


def simulated_ring(num_ranks: int) -> int:
    """Chunks that one rank sends until each has the sum of all: by passing real chunks around."""
    sums = [[{rank} for _ in range(num_ranks)] for rank in range(num_ranks)]
    sent = 0
    for step in range(2 * (num_ranks - 1)):
        moves = []
        for rank in range(num_ranks):
            chunk = (rank - step) % num_ranks
            moves.append(((rank + 1) % num_ranks, chunk, set(sums[rank][chunk])))
        for to, chunk, content in moves:
            sums[to][chunk] |= content
        sent += 1
    assert all(len(one) == num_ranks for rank in sums for one in rank)
    return sent


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
def test_the_volume_is_that_of_a_ring_that_is_walked(num_ranks: int) -> None:
    chunk = 1e6
    assert all_reduce_bytes(num_ranks, num_ranks * chunk) == pytest.approx(
        simulated_ring(num_ranks) * chunk
    )


@given(num_ranks=st.integers(1, 4096), size=st.floats(0, 1e12))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(num_ranks: int, size: float) -> None:
    assert all_reduce_bytes(num_ranks, size) == 2 * all_gather_bytes(num_ranks, size)
    assert all_reduce_bytes(num_ranks, size) <= 2 * size


def test_one_rank_sends_nothing() -> None:
    assert all_reduce_seconds(1, 1e9, NODES) == 0.0
    with pytest.raises(ValueError, match="at least one rank"):
        all_reduce_bytes(0, 1.0)


def test_two_levels_use_the_network_for_an_eighth_of_the_buffer() -> None:
    # 8 ranks per domain share the crossing; a flat ring would send all of it over one card.
    seconds = all_reduce_seconds(1024, 8e9, NODES)
    crossing = 2 * 127 / 128 * 1e9 / 50e9
    assert seconds == pytest.approx(crossing + 2 * 7 / 8 * 8e9 / 400e9, rel=0.01)
    assert seconds < ring_all_reduce_seconds(1024, 8e9, 50e9) / 3


@given(st.floats(1e3, 1e11))
def test_larger_groups_never_reduce_faster(size: float) -> None:
    times = [all_reduce_seconds(count, size, NODES) for count in COUNTS]
    assert times == sorted(times)


def test_a_hidden_all_reduce_scales_perfectly_and_an_exposed_one_does_not() -> None:
    hidden = DataParallelStep(forward_seconds=0.1, backward_seconds=0.2, gradient_bytes=1e9)
    exposed = DataParallelStep(forward_seconds=0.1, backward_seconds=0.2, gradient_bytes=1e12)
    assert all(
        point.efficiency == 1.0
        for point in scaling_curve("a", "weak", hidden, NODES, COUNTS).points
    )
    last = scaling_curve("b", "weak", exposed, NODES, COUNTS).points[-1]
    assert last.exposed_seconds > 1.0
    assert last.efficiency < 0.2


@given(
    st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 1e11), st.floats(0, 1)
)
def test_weak_scaling_beats_strong_and_both_fall(
    forward: float, backward: float, fixed: float, size: float, overlap: float
) -> None:
    step = DataParallelStep(
        forward_seconds=forward,
        backward_seconds=backward,
        fixed_seconds=fixed,
        gradient_bytes=size,
        overlap=overlap,
    )
    weak = scaling_curve("w", "weak", step, NODES, COUNTS).points
    strong = scaling_curve("s", "strong", step, NODES, COUNTS).points
    assert weak[0].efficiency == strong[0].efficiency == pytest.approx(1.0)
    for one, other in zip(weak, strong, strict=True):
        assert one.efficiency >= other.efficiency - 1e-9
    for points in (weak, strong):
        values = [point.efficiency for point in points]
        assert all(a >= b - 1e-9 for a, b in pairwise(values))


@given(share=st.floats(0.01, 1.0), count=st.integers(1, 4096))
def test_strong_scaling_without_communication_is_amdahls_law(share: float, count: int) -> None:
    step = DataParallelStep(
        forward_seconds=1 - share, backward_seconds=0.0, fixed_seconds=share, gradient_bytes=0.0
    )
    free = Fabric(domain_size=8, domain_bytes_per_second=1.0, network_bytes_per_second=1.0)
    point = scaling_curve("s", "strong", step, free, [count]).points[0]
    assert point.speedup == pytest.approx(amdahl_speedup(share, count))
    assert gustafson_speedup(share, count) >= amdahl_speedup(share, count) - 1e-9


def test_a_share_outside_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        gustafson_speedup(1.5, 8)


def doubled(num_ranks: int) -> int:
    """Exchanges until each rank has the sum of all: by passing real contributions around."""
    power = 1 << (num_ranks.bit_length() - 1)
    held = [{rank} for rank in range(num_ranks)]
    steps = 0
    for extra in range(power, num_ranks):
        held[extra - power] |= held[extra]
    steps += num_ranks > power
    distance = 1
    while distance < power:
        held = [
            held[rank] | held[rank ^ distance] if rank < power else held[rank]
            for rank in range(num_ranks)
        ]
        distance *= 2
        steps += 1
    for extra in range(power, num_ranks):
        held[extra] = held[extra - power]
    steps += num_ranks > power
    assert all(len(one) == num_ranks for one in held)
    return steps


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 7, 8, 16])
def test_doubling_takes_as_many_steps_as_it_takes(num_ranks: int) -> None:
    assert doubling_all_reduce_seconds(num_ranks, 0.0, 1.0, 1.0) == doubled(num_ranks)
    assert doubling_all_reduce_seconds(num_ranks, 1.0, 1.0) == doubled(num_ranks)


@given(
    num_ranks=st.integers(3, 4096),
    speed=st.floats(1e5, 1e12),
    latency=st.floats(1e-7, 1e-2),
    ring_host=st.floats(0.0, 1.0),
    doubling_host=st.floats(0.0, 1.0),
)
def test_the_ring_is_ahead_from_there_on_and_not_before(
    num_ranks: int, speed: float, latency: float, ring_host: float, doubling_host: float
) -> None:
    def ring(size: float) -> float:
        return ring_all_reduce_seconds(num_ranks, size, speed, latency, host_seconds=ring_host)

    def doubling(size: float) -> float:
        return doubling_all_reduce_seconds(
            num_ranks, size, speed, latency, host_seconds=doubling_host
        )

    size = ring_from_bytes(
        num_ranks,
        speed,
        latency,
        ring_host_seconds=ring_host,
        doubling_host_seconds=doubling_host,
    )
    for factor in (1.0, 1.5, 10.0, 1000.0):
        assert ring(size * factor) <= doubling(size * factor) * (1 + 1e-9)
    if size > 0.0:
        assert ring(size * 0.999) >= doubling(size * 0.999) * (1 - 1e-9)


def test_hosts_work_while_bytes_travel() -> None:
    short = ring_all_reduce_seconds(4, 1e3, 1e9, 1e-6, host_seconds=1e-3)
    long = ring_all_reduce_seconds(4, 1e9, 1e9, 1e-6, host_seconds=1e-3)
    assert short == 1e-3
    assert long == ring_all_reduce_seconds(4, 1e9, 1e9, 1e-6)
