"""Compressed gradients and local steps: what they send, when they pay, when they lose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.collective_volume import Fabric
from ridgeline.cost.gradient_compression import (
    Compression,
    Gradient,
    best_compression,
    exchange,
    local_sgd_speedup,
    local_step_seconds,
    message_bytes,
    sync_interval_for,
)

RESNET = Gradient(matrices=((64, 147), (256, 64), (512, 4608), (2048, 512), (1000, 2048)))
LARGE = Gradient(matrices=((4096, 4096),) * 100, other_elements=4096 * 100)
ETHERNET = Fabric(domain_size=1, domain_bytes_per_second=1e9, network_bytes_per_second=1e9)
NVLINK = Fabric(domain_size=8, domain_bytes_per_second=350e9, network_bytes_per_second=50e9)
HBM = 2e12
CHOICES = [
    Compression(scheme="fp16"),
    Compression(scheme="int8"),
    Compression(scheme="top-k", density=0.01),
    Compression(scheme="powersgd", rank=4),
]


def test_messages_by_hand() -> None:
    count = RESNET.num_elements
    assert message_bytes(RESNET, Compression(scheme="none")) == 4 * count
    assert message_bytes(RESNET, Compression(scheme="fp16")) == 2 * count
    assert message_bytes(RESNET, Compression(scheme="int8", group=256)) == count * (1 + 4 / 256)
    assert message_bytes(RESNET, Compression(scheme="top-k", density=0.01)) == pytest.approx(
        0.08 * count
    )
    rank_2 = 4 * 2 * (64 + 147 + 256 + 64 + 512 + 4608 + 2048 + 512 + 1000 + 2048)
    assert message_bytes(RESNET, Compression(scheme="powersgd", rank=2)) == rank_2


def test_a_rank_above_the_matrix_is_the_matrix() -> None:
    thin = Gradient(matrices=((2, 1000),), other_elements=10)
    assert message_bytes(thin, Compression(scheme="powersgd", rank=8)) == 4 * (2 * 1002 + 10)


@pytest.mark.parametrize("scheme", ["int8", "top-k"])
def test_gathered_schemes_send_more_with_more_ranks_and_reduced_ones_do_not(scheme: str) -> None:
    gathered = Compression(scheme=scheme)  # type: ignore[arg-type]
    sent = [exchange(LARGE, gathered, ranks, ETHERNET, HBM).sent_bytes for ranks in (2, 16, 128)]
    assert sent[2] == pytest.approx(127 * sent[0])
    reduced = [
        exchange(LARGE, Compression(scheme="powersgd"), ranks, ETHERNET, HBM).sent_bytes
        for ranks in (16, 128)
    ]
    assert reduced[1] < 1.06 * reduced[0]


@pytest.mark.parametrize("scheme", ["int8", "sign"])
def test_two_steps_send_no_more_than_gathering_and_little_more_with_more_ranks(
    scheme: str,
) -> None:
    gathered = Compression(scheme=scheme)  # type: ignore[arg-type]
    two_step = Compression(scheme=scheme, two_step=True)  # type: ignore[arg-type]
    for ranks in (2, 16, 128):
        whole = message_bytes(LARGE, two_step)
        sent = exchange(LARGE, two_step, ranks, ETHERNET, HBM).sent_bytes
        assert sent == pytest.approx(2 * (ranks - 1) / ranks * whole)
        assert sent <= exchange(LARGE, gathered, ranks, ETHERNET, HBM).sent_bytes * (1 + 1e-12)


def test_random_places_send_half_of_the_largest_and_do_not_gather() -> None:
    random, largest = Compression(scheme="random-k"), Compression(scheme="top-k")
    assert message_bytes(LARGE, random) == message_bytes(LARGE, largest) / 2
    sent = [exchange(LARGE, random, ranks, ETHERNET, HBM).sent_bytes for ranks in (16, 128)]
    assert sent[1] < 1.06 * sent[0]


def test_encoding_that_was_measured_stands_in_place_of_its_bound() -> None:
    one = exchange(LARGE, Compression(scheme="int8"), 4, ETHERNET, HBM, encode_seconds=0.25)
    assert one.encode_seconds == 0.25


def test_a_gather_takes_the_time_of_its_bytes() -> None:
    one = exchange(LARGE, Compression(scheme="top-k"), 16, ETHERNET, HBM)
    assert one.travel_seconds == pytest.approx(one.sent_bytes / 1e9)


def test_compression_pays_on_a_slow_network() -> None:
    best = best_compression(
        LARGE, CHOICES, 16, ETHERNET, memory_bytes_per_second=HBM,
        compute_seconds=0.3, hidden_seconds=0.15,
    )  # fmt: skip
    assert best.scheme == "powersgd"
    assert best.speedup > 10


def test_compression_loses_where_the_backward_pass_hides_the_gradients() -> None:
    best = best_compression(
        LARGE, CHOICES, 8, NVLINK, memory_bytes_per_second=HBM,
        compute_seconds=0.3, hidden_seconds=0.15,
    )  # fmt: skip
    assert best.scheme == "none"
    assert best.speedup == 1.0


@given(ranks=st.integers(2, 512), hidden=st.floats(0.0, 1.0))
def test_an_exchange_that_is_hidden_costs_its_encoding_only(ranks: int, hidden: float) -> None:
    for choice in CHOICES:
        one = exchange(RESNET, choice, ranks, NVLINK, HBM)
        seconds = one.step_seconds(1.0, hidden)
        assert seconds >= 1.0 + one.encode_seconds
        if hidden >= one.travel_seconds:
            assert seconds == 1.0 + one.encode_seconds


@given(
    compute=st.floats(0.01, 10), sync=st.floats(0.0, 100), every=st.integers(1, 1000),
    efficiency=st.floats(0.01, 0.99),
)  # fmt: skip
def test_local_steps_reach_the_efficiency_that_was_asked_for(
    compute: float, sync: float, every: int, efficiency: float
) -> None:
    assert local_step_seconds(compute, sync, every) >= compute
    found = sync_interval_for(efficiency, compute, sync)
    assert compute / local_step_seconds(compute, sync, found) >= efficiency - 1e-6
    if found > 1:
        assert compute / local_step_seconds(compute, sync, found - 1) < efficiency + 1e-6


def test_local_sgd_gains_nothing_where_gradients_travel_for_free() -> None:
    assert local_sgd_speedup(0.3, 0.1, 16, hidden_seconds_each_step=0.2) < 1.0
    assert local_sgd_speedup(0.1, 1.0, 500) == pytest.approx(11.0, rel=0.03)
    with pytest.raises(ValueError, match="every 1 or more"):
        local_step_seconds(1.0, 1.0, 0)
