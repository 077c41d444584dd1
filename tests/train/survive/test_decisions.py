"""What is decided without torch: the layout on fewer ranks, spikes, who holds the others up."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.train.check import fitted
from ridgeline.train.nodes import Nodes
from ridgeline.train.survive.guard import Spikes
from ridgeline.train.survive.watchdog import Beat, blame


@given(
    dp=st.integers(1, 12),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2]),
    micro_batch=st.integers(1, 3),
    batches=st.integers(1, 6),
    zero=st.sampled_from([0, 1, 2, 3]),
    world=st.integers(1, 60),
)
def test_a_smaller_layout_fits_keeps_the_batch_and_no_larger_one_would_do(
    dp: int, tp: int, pp: int, micro_batch: int, batches: int, zero: int, world: int
) -> None:
    assume(zero == 0 or dp > 1)
    wanted = Layout(
        dp=dp,
        fsdp=dp if zero else 1,
        zero=zero,
        tp=tp,
        pp=pp,
        micro_batch=micro_batch,
        global_batch=dp * micro_batch * batches,
    )
    if world < tp * pp:
        with pytest.raises(InputError, match="one replica"):
            fitted(wanted, world)
        return
    found = fitted(wanted, world)
    assert found.num_devices <= world
    assert (found.tp, found.pp, found.global_batch) == (tp, pp, wanted.global_batch)
    assert found.fsdp == (found.dp if zero else 1)
    better = range(found.dp + 1, min(dp, world // (tp * pp)) + 1)
    assert not any(wanted.global_batch % (other * micro_batch) == 0 for other in better)
    if world >= wanted.num_devices:
        assert found == wanted


@given(st.lists(st.floats(1.0, 2.0), min_size=20, max_size=200), st.floats(1.0, 10.0))
def test_a_spike_is_what_lies_above_the_losses_of_late_in_their_own_deviations(
    losses: list[float], deviations: float
) -> None:
    spikes = Spikes(1e9)
    assert not any(spikes.judge(loss, 1.0) for loss in losses)
    judge = Spikes(deviations)
    for loss in losses[:20]:
        judge.judge(loss, None)
    mean = math.fsum(losses[:20]) / 20
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in losses[:20]) / 20)
    limit = mean + deviations * spread
    assert not judge.judge(limit - 1e-6, None)
    judge = Spikes(deviations)
    for loss in losses[:20]:
        judge.judge(loss, None)
    assert "above" in judge.judge(limit + 1e-6, None)


def test_what_is_no_number_is_bad_from_the_first_step_on_and_a_fall_never_is() -> None:
    spikes = Spikes(0.0)
    assert "nan" in spikes.judge(math.nan, 1.0)
    assert "inf" in spikes.judge(1.0, math.inf)
    assert not spikes.judge(1e9, 1.0)
    falling = Spikes(3.0)
    assert not any(falling.judge(10.0 - step, 1.0) for step in range(100))


def beat(rank: int, step: int = 7, collective: str = "", call: str = "sleep at x.py:1") -> Beat:
    return Beat(
        rank=rank,
        host=f"host{rank}",
        pid=1,
        count=1,
        step=step,
        phase="forward",
        call=call,
        collective=collective,
        still_seconds=9.0,
    )


def test_who_is_silent_is_named_before_who_is_behind_and_that_before_who_does_not_wait() -> None:
    waits = "all_reduce of 10 in group default_pg"
    silent = blame([beat(0, collective=waits), beat(1, step=6)], [1])
    assert silent.startswith("not heard from: rank 1 on host1, last in step 7, forward: sleep")
    assert "rank 0 waits in all_reduce" in silent
    behind = blame([beat(0, collective=waits), beat(1, step=5, collective=waits)], [])
    assert behind.startswith("rank 1 on host1 stands still in step 6")
    outside = blame([beat(0, collective=waits), beat(1), beat(2, collective=waits)], [])
    assert outside.startswith("rank 1 on host1 stands still in step 8, forward: sleep at x.py:1")
    all_wait = blame([beat(0, collective=waits), beat(1, collective=waits)], [])
    assert all_wait.startswith("all ranks wait")
    assert blame([beat(0)], []).startswith("rank 0 on host0 stands still")


@pytest.mark.parametrize(
    ("count", "rendezvous", "named"),
    [("3:2", "a:1", "--nodes"), ("x", "a:1", "--nodes"), ("2", "a", "--rendezvous")],
)
def test_machines_that_cannot_be_read_name_the_option(
    count: str, rendezvous: str, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        Nodes.read(count, rendezvous)
