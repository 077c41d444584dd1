"""Each moment of a step belongs to one phase, and waits for gradients are told from computing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.processes import run_ranks

from ridgeline.train.watch.phases import NAMES, Phases

CPU = torch.device("cpu")
TREES = st.recursive(
    st.builds(lambda name: (name, []), st.sampled_from(NAMES)),
    lambda inner: st.tuples(st.sampled_from(NAMES), st.lists(inner, max_size=3)),
    max_leaves=12,
)


def ticking(lengths: Iterator[float] | None = None) -> Iterator[float]:
    return accumulate(lengths or iter(lambda: 1.0, 0.0))


@given(forest=st.lists(TREES, max_size=4))
def test_phases_add_up_to_the_time_inside_them_and_inner_ones_pause_the_outer(forest: list) -> None:
    ticks = ticking()
    phases = Phases(CPU, clock=lambda: next(ticks))
    expected = dict.fromkeys(NAMES, 0.0)

    def walk(tree: tuple) -> None:
        name, inner = tree
        with phases.phase(name):
            for one in inner:
                walk(one)
        # One tick from each mark inside to the next, of which `name` owns these.
        expected[name] += 1 + len(inner)

    for tree in forest:
        walk(tree)
    assert phases.take() == expected
    assert phases.take() == dict.fromkeys(NAMES, 0.0)


def test_what_is_open_while_it_is_read_goes_on_in_the_next_reading() -> None:
    times = iter([0.0, 10.0, 13.0])
    phases = Phases(CPU, clock=lambda: next(times))
    with phases.phase("forward"):
        assert phases.take()["forward"] == 10.0
    assert phases.take()["forward"] == 3.0


def test_nothing_is_timed_while_paused() -> None:
    ticks = ticking()
    phases = Phases(CPU, clock=lambda: next(ticks))
    with phases.paused(), phases.phase("forward"):
        loss = phases.watched(torch.ones((), requires_grad=True) * 2)
        loss.backward()
    assert phases.take() == dict.fromkeys(NAMES, 0.0)


def test_without_other_ranks_the_tail_of_backward_is_next_to_nothing() -> None:
    ticks = ticking()
    phases = Phases(CPU, clock=lambda: next(ticks))
    layer = torch.nn.Linear(64, 64)
    with phases.phase("backward"):
        loss = phases.watched(layer(torch.ones(4, 64)).sum())
        loss.backward()
    taken = phases.take()
    assert (taken["backward"], taken["communication"]) == (1.0, 1.0), "nothing is between"


@pytest.mark.multiprocess
def test_a_late_rank_shows_as_communication_on_those_that_wait_for_it() -> None:
    """Under DDP and FSDP2, one rank spends 2 s more in backward: the other waits as long."""
    quick, late = run_ranks(2, "tests.train.watch.phases_worker:measure", 2.0)
    for kind in ("ddp", "fsdp"):
        # A machine may let either rank wait for a core, for up to half as long.
        assert quick[kind]["communication"] > 1.0, kind
        assert late[kind]["communication"] < 1.0, kind
        assert late[kind]["backward"] > 1.0, kind
        assert quick[kind]["backward"] < 1.0, kind
