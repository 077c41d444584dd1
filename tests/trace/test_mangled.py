"""Truncated, shuffled and mangled files end in an answer or in one line, never in a traceback."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trace.asked import QUESTIONS
from tests.trace.written import call, document, host, kernel, step

from ridgeline import load_traces
from ridgeline.errors import InputError

FEW = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@cache
def whole() -> bytes:
    events = []
    for number in range(1, 12):
        at = number * 100
        events += [
            step(at, 95, number),
            host(at, 50, "aten::add", **{"External id": number, "Input Dims": [[2, 3]]}),
            call(at + 1, 4, number),
            call(at + 60, 20, 100 + number, "cudaStreamSynchronize"),
            kernel(
                at + 9,
                50,
                correlation=number,
                name="ncclDevKernel {}" if number % 3 else "gemm",
                grid=[1, 2, 3],
                **{"Collective name": "allreduce", "In msg nelems": 4},
            ),
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": at + 2,
                "args": {
                    "Total Allocated": 512 * number,
                    "Bytes": 512,
                    "Addr": 2**63,
                    "Device Type": 1,
                    "Device Id": 0,
                },
            },
        ]
    return json.dumps(document(events, distributedInfo={"rank": 0}), indent=1).encode()


def answers_or_one_line(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        traces = load_traces(path, details=True)
        for trace in traces:
            for question in QUESTIONS:
                question(trace)
    except InputError as error:
        refusal = str(error)
    else:
        return
    assert refusal.startswith(str(path))
    assert "\n" not in refusal


@FEW
@given(end=st.integers(0, 10_000), packed=st.booleans())
def test_a_truncated_file(tmp_path: Path, end: int, packed: bool) -> None:
    text = gzip.compress(whole(), mtime=0) if packed else whole()
    answers_or_one_line(tmp_path / "x", text[: end % (len(text) + 1)])


@FEW
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 100_000), st.sampled_from(list(b'{}[]",:\\0-e\x00\xff\n'))),
        max_size=12,
    )
)
def test_a_file_with_wrong_bytes(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    text = bytearray(whole())
    for place, byte in edits:
        text[place % len(text)] = byte
    answers_or_one_line(tmp_path / "x", bytes(text))


@FEW
@given(seed=st.integers(0, 2**32), size=st.sampled_from([7, 64, 500]))
def test_a_file_in_shuffled_pieces(tmp_path: Path, seed: int, size: int) -> None:
    text = whole()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    Random(seed).shuffle(pieces)
    answers_or_one_line(tmp_path / "x", b"".join(pieces))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@FEW
@given(
    events=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "ph": st.sampled_from(["X", "M", "i", "s"]) | json_values,
                "cat": st.sampled_from(
                    [
                        "kernel",
                        "cpu_op",
                        "cuda_runtime",
                        "gpu_memcpy",
                        "python_function",
                        "cpu_instant_event",
                    ]
                )
                | json_values,
                "name": st.sampled_from(["[memory]", "thread_name", "ProfilerStep#1"])
                | json_values,
                "ts": st.integers(-5, 10**16) | json_values,
                "dur": st.floats(-5, 1e9) | json_values,
                "pid": json_values,
                "tid": json_values,
                "args": st.dictionaries(
                    st.sampled_from(["stream", "device", "correlation", "grid", "name", "Bytes"]),
                    st.integers(0, 9) | json_values,
                )
                | json_values,
            },
        )
        | json_values,
        max_size=5,
    )
)
def test_events_of_the_wrong_types(tmp_path: Path, events: list[Any]) -> None:
    text = json.dumps(
        {"traceEvents": events, "deviceProperties": events, "distributedInfo": events}
    )
    answers_or_one_line(tmp_path / "x", text.encode())
