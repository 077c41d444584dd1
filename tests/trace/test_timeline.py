"""The timeline of a page: one step event by event, the rest joined, nothing lost, in its budget."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import call, host, kernel, read_kineto, write

from ridgeline.cli.main import run
from ridgeline.trace.columns import Trace
from ridgeline.trace.load import load_traces
from ridgeline.trace.pictures.timeline import timeline
from ridgeline.trace.pictures.timeline_tracks import HOST_LEVELS, Track, nesting_levels
from ridgeline.trace.profiler_steps import profiler_steps

Event = dict[str, Any]
A_TRACK_AT_LEAST = 100


def a_run(
    path: Path, lengths: list[float], mark: str = "ProfilerStep#{}", kernels: int = 40
) -> Trace:
    """Steps of these lengths, each with as many kernels that fill half of it."""
    events: list[Event] = []
    now = 0.0
    for number, length in enumerate(lengths):
        if mark:
            events.append(host(now, length, mark.format(number), "user_annotation"))
        each = length / kernels
        for place in range(kernels):
            correlation = number * kernels + place + 1
            begin = now + place * each
            events += [
                host(begin, 0.4 * each, "aten::mm"), call(begin, 0.1 * each, correlation),
                kernel(begin + 0.3 * each, 0.5 * each, correlation=correlation),
            ]  # fmt: skip
        now += length
    return read_kineto(write(path, events))


def stands_for(track: Track) -> int:
    """How many events the slices of a track are."""
    return int(track.correlation[: track.joined].sum()) + len(track) - track.joined


@given(st.integers(100, 400), st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_a_timeline_keeps_its_budget_and_loses_no_event(
    tmp_path_factory: pytest.TempPathFactory, budget: int, seed: int
) -> None:
    chance = random.Random(seed)
    events, now = [], 0.0
    for _ in range(1500):
        length = chance.choice([1.0, 2.0, 400.0])
        events.append(kernel(now, length, name="k"))
        now += length + chance.choice([0.0, 0.5, 30.0])
    trace = read_kineto(write(tmp_path_factory.mktemp("t") / "t.json", events))
    drawn = timeline(trace, [], budget)
    (track,) = drawn.tracks
    assert len(track) <= budget + A_TRACK_AT_LEAST
    assert stands_for(track) == 1500
    assert drawn.merged == 1500 - (len(track) - track.joined)
    assert drawn.detail is not None
    own = track.start_us[track.joined :]
    starts = trace.gpu.start_us
    low, high = drawn.detail.start_us, drawn.detail.end_us
    assert np.isin(starts[(starts >= low) & (starts < high)], own).all()


@given(st.integers(0, 20))
@settings(max_examples=15, deadline=None)
def test_no_joined_slice_reaches_into_what_is_drawn_event_by_event(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    lengths = [chance.uniform(500, 2000) for _ in range(12)]
    trace = a_run(tmp_path_factory.mktemp("t") / "t.json", lengths)
    drawn = timeline(trace, [], 400)
    assert drawn.detail is not None
    low, high = drawn.detail.start_us, drawn.detail.end_us
    assert any(track.joined for track in drawn.tracks)
    for track in drawn.tracks:
        start = track.start_us[: track.joined]
        end = start + track.duration_us[: track.joined]
        assert ((end <= low + 1e-6) | (start >= high - 1e-6)).all()


def test_the_step_of_median_length_is_drawn_event_by_event(tmp_path: Path) -> None:
    trace = a_run(tmp_path / "t.json", [900.0, 1400.0, 1000.0, 1200.0, 1100.0, 300.0])
    drawn = timeline(trace, [], 450)
    assert drawn.detail is not None
    assert drawn.detail.name == "ProfilerStep#4, of median length"
    assert drawn.detail.is_step
    assert drawn.merged > 0


@pytest.mark.parametrize(
    ("mark", "named"),
    [
        ("iteration {}", "iteration 2, of median length"),
        ("train_step", "train_step, of median length"),
        ("Optimizer.step#Adam.step", "1/10 of the trace"),
        ("", "1/10 of the trace"),
    ],
)
def test_without_profiler_steps_an_iteration_or_a_like_part_stands_for_the_trace(
    tmp_path: Path, mark: str, named: str
) -> None:
    trace = a_run(tmp_path / "t.json", [900.0, 1400.0, 1000.0, 1200.0, 600.0], mark)
    drawn = timeline(trace, [], 400)
    assert drawn.detail is not None
    assert drawn.detail.name.startswith(named)


def test_a_step_that_is_larger_than_the_budget_gives_a_part_of_it(tmp_path: Path) -> None:
    trace = a_run(tmp_path / "t.json", [5000.0] * 4, kernels=400)
    drawn = timeline(trace, [], 600)
    assert drawn.detail is not None
    assert re.match(r"1/\d+ of ProfilerStep#1, of median length", drawn.detail.name)
    assert not drawn.detail.is_step
    assert 5000.0 <= drawn.detail.start_us < drawn.detail.end_us <= 10_000.0


def test_a_trace_that_fits_is_drawn_whole(tmp_path: Path) -> None:
    drawn = timeline(a_run(tmp_path / "t.json", [1000.0] * 3), [], 1000)
    assert drawn.merged == 0
    assert not any(track.joined for track in drawn.tracks)
    assert drawn.detail is not None
    assert drawn.detail.name == "ProfilerStep#0, of median length"


def test_a_kernel_knows_the_operator_that_launched_it(tmp_path: Path) -> None:
    drawn = timeline(a_run(tmp_path / "t.json", [1000.0] * 3), [], 1000)
    stream = next(track for track in drawn.tracks if track.role == "gpu")
    assert {drawn.names[place] for place in stream.operator.tolist()} == {"aten::mm"}
    assert stream.correlation.tolist() == list(range(1, 121))


def open_around(starts: list[float], ends: list[float]) -> list[int]:
    found, still = [], []
    for start, end in zip(starts, ends, strict=True):
        while still and still[-1] <= start:
            still.pop()
        found.append(len(still))
        still.append(end)
    return found


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)), max_size=40))
def test_levels_are_those_of_a_stack_also_where_spans_overlap(
    spans: list[tuple[int, int]],
) -> None:
    spans.sort(key=lambda one: (one[0], -one[1]))
    starts = np.array([start for start, _ in spans], float)
    lengths = np.array([length for _, length in spans], float)
    levels = nesting_levels(starts, lengths)
    for level in set(levels.tolist()):
        rows = np.flatnonzero(levels == level)
        assert (starts[rows][1:] >= (starts + lengths)[rows][:-1]).all()
    nested = open_around(starts.tolist(), (starts + lengths).tolist())
    assert (levels <= np.array(nested, int)).all() or levels.tolist() == nested


def drawings(page: Path) -> dict[str, Any]:
    found = re.search(r'id="drawings">(.*?)</script>', page.read_text())
    assert found is not None
    told: dict[str, Any] = json.loads(found.group(1))
    return told


@pytest.mark.slow
def test_the_page_of_a_real_run_holds_every_event_of_its_median_step(
    real_traces: Path, tmp_path: Path
) -> None:
    file = real_traces / "ddp_compare" / "a100_8rank_rank3.control.json.gz"
    page = tmp_path / "page.html"
    assert run(["trace", "report", str(file), "--html", str(page)]) == 0
    (line,) = drawings(page)["timelines"]
    assert page.stat().st_size < 2_000_000
    assert line["detail"]["name"] == "ProfilerStep#1012, of median length"
    (trace,) = load_traces(file)
    gpu = trace.gpu
    (chosen,) = [one for one in profiler_steps(trace) if one.number == 1012]
    low, high = line["detail"]["from"], line["detail"]["to"]
    origin = chosen.start_us - low
    shown = 0
    for track in line["tracks"]:
        if track["role"] == "gpu":
            starts = np.cumsum(track["starts"])[track["joined"] :] / 100
            shown += int(((starts >= low - 0.01) & (starts < high - 0.01)).sum())
    inside = (gpu.start_us - origin >= low) & (gpu.start_us - origin < high)
    assert shown == inside.sum() > 1000
    assert max(track["levels"] for track in line["tracks"]) > HOST_LEVELS
    joined = [sum(track["number"][: track["joined"]]) for track in line["tracks"]]
    assert sum(joined) > 10_000
