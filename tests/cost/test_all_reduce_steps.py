"""All-reduces step by step: all have the sum, and none is faster than theory allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.all_reduce_steps import all_reduce_steps
from ridgeline.cost.collective_volume import Fabric, all_reduce_bytes, ring_all_reduce_seconds


def fabric(domain_size: int, network: float = 50e9) -> Fabric:
    return Fabric(
        domain_size=domain_size,
        domain_bytes_per_second=400e9,
        network_bytes_per_second=network,
        domain_latency_seconds=1e-6,
        network_latency_seconds=5e-6,
    )


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["ring", "tree", "hierarchical"]))
def test_after_the_last_step_every_rank_has_every_contribution_once(
    domains: int, size: int, algorithm: str
) -> None:
    num_ranks = domains * size
    if num_ranks < 2 or (algorithm == "hierarchical" and domains < 2):
        return
    found = all_reduce_steps(algorithm, num_ranks, 1e6, fabric(size))  # type: ignore[arg-type]
    last = all_reduce_steps(algorithm, num_ranks, 1e6, fabric(size), len(found.steps))  # type: ignore[arg-type]
    assert last.held == ((num_ranks,) * num_ranks,) * num_ranks
    assert last.elapsed_seconds == pytest.approx(sum(step.seconds for step in found.steps))
    chosen = next(one for one in found.totals if one.algorithm == algorithm)
    least = all_reduce_bytes(num_ranks, 1e6)
    if algorithm != "tree":
        assert chosen.sent_bytes == pytest.approx(least)
    assert chosen.seconds >= least / 400e9


@given(st.integers(2, 24))
def test_a_ring_takes_what_the_formula_says(num_ranks: int) -> None:
    found = all_reduce_steps("ring", num_ranks, 1e9, fabric(32))
    ring = next(one for one in found.totals if one.algorithm == "ring")
    assert ring.seconds == pytest.approx(ring_all_reduce_seconds(num_ranks, 1e9, 400e9, 1e-6))


def test_small_buffers_want_few_steps_and_large_ones_few_bytes() -> None:
    assert all_reduce_steps("ring", 16, 1e3, fabric(16)).totals[0].algorithm == "tree"
    assert all_reduce_steps("ring", 16, 1e9, fabric(16)).totals[0].algorithm == "ring"
    assert all_reduce_steps("ring", 16, 1e9, fabric(4)).totals[0].algorithm == "hierarchical"


def test_halves_of_a_domain_cannot_run_the_hierarchical_one() -> None:
    with pytest.raises(ValueError, match="whole domains"):
        all_reduce_steps("hierarchical", 6, 1e6, fabric(4))
    with pytest.raises(ValueError, match="steps 1 to 10"):
        all_reduce_steps("ring", 6, 1e6, fabric(4), 11)
