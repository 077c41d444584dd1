"""Verdicts on profiler traces that none of us made, held to labels worked out from their events.

The files are not part of this repository: `traces.toml` names them by address and commit, and
`bench/public_traces.py` prints each label against the verdict.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from bench.public_traces import AT_LEAST, Judgement, absent, disagreement, judge, wrong_figure
from tests.public.trace_table import CAUSES, FOLDER_VARIABLE, PublicTrace, read_trace_table

TRACES = read_trace_table().trace


@pytest.fixture(scope="module")
def folder() -> Path:
    name = os.environ.get(FOLDER_VARIABLE)
    if name is None:
        pytest.skip(f"{FOLDER_VARIABLE} names no folder of public traces; see traces.toml")
    return Path(name).resolve()


@pytest.fixture(scope="module")
def judgements(folder: Path) -> list[Judgement]:
    """What is said of every trace whose files are all there."""
    missing = absent(list(TRACES), folder)
    there = [trace for trace in TRACES if not trace.addresses().keys() & missing.keys()]
    if not there:
        pytest.skip(f"{folder} holds none of the files that traces.toml names")
    return [judge(trace, folder) for trace in there]


def labelled(**changes: object) -> PublicTrace:
    facts: dict[str, object] = {
        "name": "x", "repository": "https://github.com/a/b", "commit": "c" * 40,
        "files": {"d/e.json": "0" * 64}, "device": "T4", "what": "", "why": "",
        "causes": ("host-bound",),
    }  # fmt: skip
    return PublicTrace(**(facts | changes))  # type: ignore[arg-type]


def test_the_table_names_60_traces_of_30_repositories_at_their_commits() -> None:
    assert len(TRACES) == len({trace.name for trace in TRACES}) >= 60
    assert len({trace.repository for trace in TRACES}) >= 30
    for trace in TRACES:
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", trace.repository), trace.name
        assert re.fullmatch(r"[0-9a-f]{40}", trace.commit), trace.name
        assert trace.files, trace.name
        for path, digest in trace.files.items():
            assert not path.startswith("/"), trace.name
            assert ".." not in Path(path).parts, trace.name
            assert re.fullmatch(r"[0-9a-f]{64}", digest), trace.name


def test_each_label_is_a_cause_that_may_come_first_or_a_refusal() -> None:
    for trace in TRACES:
        assert trace.causes or trace.refused, trace.name
        assert set(trace.causes) <= CAUSES, trace.name
        assert len(trace.causes) <= 3, trace.name
        assert trace.why, trace.name
        assert 0 < trace.confidence_at_most <= 1, trace.name


def test_figures_are_times_of_the_gpu() -> None:
    for trace in TRACES:
        assert (trace.window_ms is None) == (trace.busy_ms is None), trace.name
        if trace.busy_ms is not None and trace.window_ms is not None:
            assert 0 < trace.busy_ms <= trace.window_ms, trace.name


def test_no_file_is_named_twice_with_different_contents() -> None:
    digests: dict[str, str] = {}
    for trace in TRACES:
        for place, digest in zip(trace.addresses(), trace.files.values(), strict=True):
            assert digests.setdefault(place, digest) == digest, place


def test_a_label_is_met_by_its_causes_alone_and_no_surer_than_allowed() -> None:
    trace = labelled(confidence_at_most=0.6)
    assert disagreement(trace, {"cause": "host-bound", "confidence": 0.6}) == ""
    assert disagreement(trace, {"cause": "host-bound", "confidence": 0.7}) == "surer than 0.6"
    assert disagreement(trace, {"cause": "input-bound", "confidence": 0.1}) == "another cause"
    other = labelled(causes=(), refused=True)
    assert disagreement(other, {"cause": "cpu-only", "confidence": 0.1})


def test_a_busy_time_beyond_a_thousandth_is_wrong() -> None:
    trace = labelled(window_ms=200.0, busy_ms=100.0)
    assert not wrong_figure(trace, [{"window": "trace", "busy_us": 100_050.0}])
    assert wrong_figure(trace, [{"window": "trace", "busy_us": 100_500.0}])
    assert not wrong_figure(trace, [{"window": "steps", "busy_us": 50_000.0}])


def test_a_file_that_is_not_what_was_labelled_is_found(tmp_path: Path) -> None:
    trace = labelled()
    (place,) = trace.located(tmp_path)
    assert absent([trace], tmp_path).keys() == {f"a/b/{'c' * 40}/d/e.json"}
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    assert not absent([trace], tmp_path)
    assert trace.changed(tmp_path) == [place]


@pytest.mark.slow
def test_public_files_are_those_that_were_labelled(folder: Path) -> None:
    assert not [path for trace in TRACES for path in trace.changed(folder)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_busy_times_of_public_traces_are_exact(judgements: list[Judgement]) -> None:
    assert not [judgement for judgement in judgements if judgement.wrong.startswith("busy ")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_verdicts_on_public_traces_meet_their_labels(judgements: list[Judgement]) -> None:
    wrong = {
        judgement.trace.name: (judgement.cause, judgement.wrong)
        for judgement in judgements
        if judgement.wrong
    }
    assert len(wrong) <= (1 - AT_LEAST) * len(judgements), wrong
