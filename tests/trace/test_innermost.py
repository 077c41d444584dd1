"""The innermost open event against a plain search, for any nesting and overlap."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import host, read_kineto, write

from ridgeline.trace import host_calls
from ridgeline.trace.columns import ABSENT, Trace
from ridgeline.trace.host_calls import innermost_at, last_later
from ridgeline.trace.nesting import within
from ridgeline.trace.sorting import by_start

spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(1, 2)), min_size=1, max_size=40
)
moments = st.lists(st.tuples(st.integers(-5, 110), st.integers(0, 1)), min_size=1, max_size=30)


def searched(trace: Trace, thread: int, moment: float, chosen: np.ndarray) -> int:
    """Of the events that are open at the moment the one that began last, shorter ones last."""
    rows = [
        row
        for row in range(len(trace.host))
        if trace.host.thread[row] == thread
        and chosen[row]
        and trace.host.start_us[row] <= moment < trace.host.end_us[row]
    ]
    starts, durations = trace.host.start_us, trace.host.duration_us
    return max(rows, key=lambda row: (starts[row], -durations[row], row), default=ABSENT)


@given(spans, moments, st.integers(0, 2**40))
@settings(max_examples=150, deadline=None)
def test_the_innermost_event_is_the_last_one_that_began_and_is_still_open(
    tmp_path_factory: pytest.TempPathFactory,
    laid_out: list[tuple[int, int, int]],
    asked: list[tuple[int, int]],
    bits: int,
) -> None:
    events = [host(start, length, "op", tid=thread) for start, length, thread in laid_out]
    trace = read_kineto(write(tmp_path_factory.mktemp("t") / "t.json", events))
    chosen = np.array([bits >> row & 1 == 1 for row in range(len(trace.host))])
    threads = np.array([min(thread, len(trace.threads) - 1) for _, thread in asked])
    times = np.array([float(moment) for moment, _ in asked])
    every = np.ones(len(trace.host), bool)
    for mask, given_mask in ((every, None), (chosen, chosen)):
        found = innermost_at(trace, threads, times, given_mask)
        wanted = [
            searched(trace, int(thread), float(moment), mask)
            for thread, moment in zip(threads, times, strict=True)
        ]
        assert found.tolist() == wanted


@given(st.sampled_from([2, 3, 16]), st.lists(st.integers(0, 20), max_size=40), st.data())
def test_the_last_later_value_is_found_from_any_place(
    width: int, values: list[int], data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(-1, len(values) - 1), max_size=20))
    bounds = data.draw(st.lists(st.integers(-1, 21), min_size=len(places), max_size=len(places)))
    with mock.patch.object(host_calls, "_WIDTH", width):
        found = last_later(
            np.array(values, float), np.array(places, np.int64), np.array(bounds, float)
        )
    assert found.tolist() == [
        max((k for k in range(place + 1) if values[k] > bound), default=-1)
        for place, bound in zip(places, bounds, strict=True)
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=40))
def test_spans_end_no_later_than_what_is_around_them(pairs: list[tuple[int, int]]) -> None:
    starts, durations = (np.array(part, float) for part in (
        [start for start, _ in pairs], [length for _, length in pairs]))  # fmt: skip
    order = by_start(starts, durations)
    starts, ends = starts[order], (starts + durations)[order]
    around, cut = within(starts, ends)
    for place, start in enumerate(starts):
        open_ones = [before for before in range(place) if cut[before] > start]
        assert around[place] == max(open_ones, default=ABSENT)
        assert cut[place] == min([ends[place], *(cut[before] for before in open_ones[-1:])])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=50))
def test_the_order_of_nesting_is_by_start_and_then_the_longer_first(
    pairs: list[tuple[int, int]],
) -> None:
    starts, durations = (np.array(part, float) for part in (
        [start for start, _ in pairs], [length for _, length in pairs]))  # fmt: skip
    order = by_start(starts, durations)
    assert order.tolist() == np.lexsort((-durations, starts)).tolist()
