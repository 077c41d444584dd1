"""Random valid traces whose answers are known: every microsecond is coloured and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trace.written import call, document, kernel, read_kineto

from ridgeline.trace import file_text
from ridgeline.trace.time.idle import LAUNCH_GAP_US, WAITS
from ridgeline.trace.time.summary import summarize

NAMES = {"gemm": "compute", "ncclDevKernel_AllReduce": "talk", "multimem_all_reduce_kernel": "talk"}
LONGEST = 400

gpu_event = st.fixed_dictionaries(
    {
        "start": st.integers(50, LONGEST), "length": st.integers(0, 60),
        "stream": st.sampled_from([0, 7, 22]),
        "what": st.sampled_from([*NAMES, "gpu_memcpy", "gpu_memset"]),
        "lead": st.none() | st.integers(0, 50),
    }
)  # fmt: skip


def written_events(work: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trace of the work; `lead` is how long before its start each event was launched."""
    events = []
    for number, item in enumerate(work, start=1):
        copy = item["what"] not in NAMES
        events.append(
            kernel(item["start"], item["length"], stream=item["stream"], correlation=number,
                   name="Memcpy" if copy else item["what"],
                   category=item["what"] if copy else "kernel")
        )  # fmt: skip
        if item["lead"] is not None:
            events.append(call(item["start"] - item["lead"], 3, number))
    return events


def coloured(work: list[dict[str, Any]], sorts: tuple[str, ...]) -> Any:
    """Which whole microseconds the work of these sorts covers."""
    line = np.zeros(LONGEST + 100, bool)
    for item in work:
        if NAMES.get(item["what"], "copy") in sorts:
            line[item["start"] : item["start"] + item["length"]] = True
    return line


def waits_of(work: list[dict[str, Any]], busy: Any, low: int, high: int) -> dict[str, float]:
    """Idle time by cause, gap by gap, straight from the definition."""
    found = dict.fromkeys(WAITS, 0.0)
    at = low
    while at < high:
        if busy[at]:
            at += 1
            continue
        end = at
        while end < high and not busy[end]:
            end += 1
        # An event of no length ends a gap for its successor's purposes only if nothing follows.
        following = [item for item in sorted(work, key=order) if item["start"] >= end]
        lead = following[0]["lead"]
        if lead is None:
            cause = "unknown_wait"
        elif following[0]["start"] - lead > at:
            cause = "host_wait"
        else:
            cause = "dependency_wait" if end - at >= LAUNCH_GAP_US else "kernel_wait"
        found[cause] += end - at
        at = end
    return found


def order(item: dict[str, Any]) -> tuple[int, int]:
    return item["start"], item["length"]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    work=st.lists(gpu_event, min_size=1, max_size=12, unique_by=lambda item: item["start"]),
    base=st.sampled_from([0, 1_683_564_901_548_726]),
    piece_bytes=st.sampled_from([50, 300, 2**19]),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_summary_of_a_random_trace_is_the_counted_one(
    tmp_path: Path, work: list[dict[str, Any]], base: int, piece_bytes: int, shuffle: Any
) -> None:
    events = written_events(work)
    for event in events:
        event["ts"] += base
    shuffle.shuffle(events)
    path = tmp_path / "random.json"
    path.write_text(json.dumps(document(events)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_text, "PIECE_BYTES", piece_bytes)
        found = summarize(read_kineto(path))[0]
    low = min(item["start"] for item in work)
    high = max(item["start"] + item["length"] for item in work)
    compute, talk = coloured(work, ("compute",)), coloured(work, ("talk",))
    busy = coloured(work, ("compute", "talk", "copy"))
    assert found.gpu_events == len(work)
    assert found.window_us == high - low
    assert found.busy_us == busy.sum()
    assert found.idle_us == high - low - busy.sum()
    assert found.compute_us == compute.sum()
    assert found.communication_us == talk.sum()
    assert found.overlap_us == (compute & talk).sum()
    assert found.communication_exposed_us == (talk & ~compute).sum()
    assert found.copy_us == coloured(work, ("copy",)).sum()
    waits = {name: getattr(found, f"{name}_us") for name in WAITS}
    assert waits == waits_of(work, busy, low, high)
