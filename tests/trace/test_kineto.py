"""What the reader makes of the many ways in which profilers write a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.trace.written import call, document, host, kernel, read_kineto, step, write

from ridgeline import RidgelineError, Trace, load_traces
from ridgeline.trace import file_text
from ridgeline.trace.columns import ABSENT, Category, Kind
from ridgeline.trace.formats.kineto import growing_table

EVENTS = [
    step(0, 900, 1),
    call(10, 5, 1),
    kernel(20, 100, correlation=1, name='odd } , {"ph" name \\ "quoted"'),
    call(30, 5, 2),
    kernel(
        150,
        10,
        correlation=2,
        category="gpu_memcpy",
        bytes=64,
        name="Memcpy HtoD (Pinned -> Device)",
    ),
    {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 10, "cat": "ac2g", "name": "ac2g"},
    host(
        5,
        50,
        "aten::mm",
        **{
            "External id": 3,
            "Input Dims": [[8, 4], [4, 2]],
            "Input type": ["float", "float"],
            "Call stack": "a.py(1): f",
        },
    ),
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
]


def read(path: Path, text: bytes, **options: Any) -> Trace:
    path.write_bytes(text)
    return read_kineto(path, **options)


def same(a: Trace, b: Trace) -> bool:
    return all(
        np.array_equal(getattr(getattr(a, table), column), getattr(getattr(b, table), column))
        for table in ("gpu", "host")
        for column in ("start_us", "duration_us", "correlation")
    ) and [a.names[n] for n in a.gpu.name] == [b.names[n] for n in b.gpu.name]


@pytest.fixture
def plain(tmp_path: Path) -> Trace:
    return read_kineto(write(tmp_path / "plain.json", EVENTS))


def test_a_trace_becomes_columns(plain: Trace) -> None:
    assert plain.gpu.start_us.tolist() == [20, 150]
    assert plain.gpu.kind.tolist() == [Kind.KERNEL, Kind.MEMCPY]
    assert plain.gpu.bytes.tolist() == [ABSENT, 64]
    assert plain.host.category.tolist().count(Category.RUNTIME) == 2
    assert plain.names[plain.gpu.name[0]] == 'odd } , {"ph" name \\ "quoted"'
    assert plain.thread_names == {0: "main"}
    assert (plain.num_events, plain.warnings, plain.rank) == (8, (), None)
    assert plain.devices[0].name == "NVIDIA H100"


@pytest.mark.parametrize("indent", [None, 0, 1, 4])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("piece_bytes", [64, 1000, 2**19])
def test_indentation_compression_and_borders_change_nothing(
    tmp_path: Path,
    plain: Trace,
    monkeypatch: pytest.MonkeyPatch,
    indent: int | None,
    suffix: str,
    piece_bytes: int,
) -> None:
    monkeypatch.setattr(file_text, "PIECE_BYTES", piece_bytes)
    found = read_kineto(write(tmp_path / f"other{suffix}", EVENTS, indent=indent))
    assert same(found, plain)
    assert found.warnings == ()


def test_objects_nested_in_an_event_are_no_borders(
    tmp_path: Path, plain: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_text, "PIECE_BYTES", 100)
    nested = [{"ph": n} for n in "abcdef"]
    events = [{**event, "args": {**event.get("args", {}), "extra": nested}} for event in EVENTS]
    found = read_kineto(write(tmp_path / "nested.json", events))
    assert same(found, plain)
    assert found.warnings == ()


def test_an_array_of_events_alone_is_a_trace(tmp_path: Path, plain: Trace) -> None:
    assert same(read(tmp_path / "array.json", json.dumps(EVENTS).encode()), plain)


def test_the_key_of_the_events_is_the_one_at_the_top(tmp_path: Path, plain: Trace) -> None:
    text = json.dumps(
        {"metadata": {"traceEvents": [{"ph": "X"}], "s": '"traceEvents": ['}, **document(EVENTS)}
    )
    assert same(read(tmp_path / "decoy.json", text.encode()), plain)


def test_what_stands_after_the_events_is_read_too(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "traceEvents": EVENTS,
            "distributedInfo": {"rank": 3, "world_size": 8},
            "baseTimeNanoseconds": 1767189312000000000,
        }
    )
    found = read(tmp_path / "tail.json", text.encode())
    assert (found.rank, found.world_size) == (3, 8)
    assert found.clock_offset_ns == 1767189312000000000


def test_a_file_without_rank_takes_the_number_in_its_name(tmp_path: Path) -> None:
    assert read_kineto(write(tmp_path / "rank12.json", EVENTS)).rank == 12
    assert read_kineto(write(tmp_path / "trace12.json", EVENTS)).rank is None


@pytest.mark.parametrize("cut", [400, 700, 1100])
def test_a_truncated_file_is_read_up_to_its_last_whole_event(
    tmp_path: Path, plain: Trace, cut: int
) -> None:
    text = json.dumps(document(EVENTS)).encode()
    found = read(tmp_path / "cut.json", text[:cut])
    assert found.warnings == ("the file ends early; read up to there",)
    assert 0 < found.num_events < plain.num_events


def test_a_truncated_gzip_stream_is_read_up_to_its_end(tmp_path: Path) -> None:
    text = gzip.compress(json.dumps(document(EVENTS * 300)).encode(), compresslevel=1)
    found = read(tmp_path / "cut.json.gz", text[: len(text) // 2])
    assert 0 < found.num_events < 300 * len(EVENTS)
    assert "the gzip stream ends early; read up to there" in found.warnings


def test_what_follows_the_document_is_ignored_with_a_warning(tmp_path: Path, plain: Trace) -> None:
    text = json.dumps(document(EVENTS)).encode()
    found = read(tmp_path / "more.json", text + b"\n{]garbage")
    assert same(found, plain)
    assert found.warnings == ("ignored what follows the events: it is no valid JSON",)
    packed = read(tmp_path / "more.json.gz", gzip.compress(text) + b"garbage")
    assert same(packed, plain)
    assert packed.warnings == ("ignored what follows the end of the gzip stream",)


def test_a_gzip_file_of_several_streams_is_one_text(tmp_path: Path, plain: Trace) -> None:
    text = json.dumps(document(EVENTS)).encode()
    found = read(tmp_path / "two.json.gz", gzip.compress(text[:500]) + gzip.compress(text[500:]))
    assert same(found, plain)
    assert found.warnings == ()


def test_a_damaged_event_costs_only_itself(tmp_path: Path) -> None:
    parts = [json.dumps(event) for event in EVENTS]
    parts[2] = parts[2].replace('"dur"', '"dur')
    found = read(tmp_path / "bad.json", ('{"traceEvents": [' + ",".join(parts) + "]}").encode())
    assert found.gpu.start_us.tolist() == [150]
    assert found.warnings == ("1 events could not be read and were left out",)


def test_numbers_that_are_none_and_bad_escapes_are_mended(tmp_path: Path) -> None:
    events = [kernel(0, 5, name="A"), kernel(9, 5, name="B")]
    text = json.dumps(document(events)).replace('"A"', '"A\\q"')
    text = text.replace('"stream": 7', '"est. achieved occupancy %": nan, "stream": 7')
    found = read(tmp_path / "nan.json", text.encode())
    assert [found.names[n] for n in found.gpu.name] == ["A\\q", "B"]
    assert np.isnan(found.gpu.occupancy_percent).all()
    assert found.warnings == ()


def test_the_schema_of_torch_1_8_is_understood(tmp_path: Path) -> None:
    events = [
        {**kernel(10, 5, correlation=4, category="Kernel"), "tid": "stream 7"},
        {**call(1, 2, 4, category="Runtime"), "tid": "123"},
        {**host(0, 9, "aten::mm", "Operator"), "tid": 123},
    ]
    found = read_kineto(write(tmp_path / "old.json", events))
    assert len(found.gpu) == 1
    assert len(set(found.host.thread.tolist())) == 1
    assert found.gpu.stream.tolist() == [7]


def test_only_the_category_makes_gpu_work(tmp_path: Path) -> None:
    """HTA counts these as GPU work: a Triton operator with a stream, and CUPTI's records."""
    events = [
        kernel(100, 2, name="triton_poi_fused_add_0"),
        host(10, 90, "triton_poi_fused_add_0", stream=7),
        {**kernel(0, 76000, category="cuda_sync", name="Context Sync"), "tid": -1},
        kernel(0, 50000, category="gpu_user_annotation", name="ProfilerStep#1"),
    ]
    found = read_kineto(write(tmp_path / "x.json", events))
    assert len(found.gpu) == 1
    assert (len(found.sync), len(found.gpu_annotations), len(found.host)) == (1, 1, 1)


def test_a_category_nobody_told_us_about_is_named(tmp_path: Path) -> None:
    events = [*EVENTS, kernel(1, 2, category="quantum_kernel"), kernel(9, 2, category="KERNEL")]
    found = read_kineto(write(tmp_path / "x.json", events))
    assert found.warnings == ("1 events of category 'quantum_kernel' were not used",)
    assert len(found.gpu) == 3  # KERNEL is a spelling of kernel


def test_stamps_since_1970_with_nanoseconds_keep_them(tmp_path: Path) -> None:
    """Float64 has a quarter of a microsecond at this size."""
    base = "17128674023482"
    text = json.dumps(document([kernel(1, 2.5), kernel(2, 3.125)]))
    text = text.replace('"ts": 1,', f'"ts": {base}56.123,').replace(
        '"ts": 2,', f'"ts": {base}57.126,'
    )
    found = read(tmp_path / "x.json", text.encode())
    assert np.diff(found.gpu.start_us).tolist() == pytest.approx([1.003], abs=1e-9)


def test_details_are_read_on_request(tmp_path: Path, plain: Trace) -> None:
    assert plain.shapes == ()
    found = read_kineto(write(tmp_path / "x.json", EVENTS), details=True)
    (row,) = np.flatnonzero(found.host.shape != ABSENT)
    assert found.shapes[found.host.shape[row]] == '[[[8,4],[4,2]],["float","float"]]'
    assert found.stacks[found.host.stack[row]] == "a.py(1): f"


@pytest.mark.parametrize("rows", [1, 4, 2**17])
def test_what_only_some_parts_of_a_file_say_is_absent_in_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    frames = [host(n, 1, "a.py(1): f", "python_function") for n in range(5)]
    told = [call(10, 1, 7), call(12, 1, 8),
            host(14, 1, "aten::mm", **{"External id": 3, "Call stack": "a.py(1): f"})]  # fmt: skip
    path = write(tmp_path / "x.json", [*frames, *told, *frames])
    monkeypatch.setattr(growing_table, "_ROWS", rows)
    monkeypatch.setattr(file_text, "PIECE_BYTES", 128)
    found = read_kineto(path, details=True).host
    assert found.correlation.tolist() == [ABSENT] * 5 + [7, 8] + [ABSENT] * 6
    assert found.external_id.tolist() == [ABSENT] * 7 + [3] + [ABSENT] * 5
    assert found.stack.tolist() == [ABSENT] * 7 + [0] + [ABSENT] * 5
    assert found.shape.tolist() == [ABSENT] * 13, "which no event of the file says"


@pytest.mark.parametrize("second", [2, "2", "two"])
def test_threads_of_two_processes_with_one_number_are_two(
    tmp_path: Path, second: int | str
) -> None:
    events = [host(0, 1, "a"), {**host(2, 1, "b"), "pid": second}, host(4, 1, "c"),
              {**host(6, 1, "d"), "tid": "1"}]  # fmt: skip
    found = read_kineto(write(tmp_path / "x.json", events))
    assert found.host.thread.tolist() == [0, 1, 0, 0], "a number as text is the number"
    assert found.threads[1] == (2 if second == "2" else second, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"hello", "no profiler trace"),
        (b'{"a": [1]}', "no profiler trace"),
        (b"\x1f\x8bxx", "no profiler trace"),
        (b"\x00\xff" * 99, "no profiler trace"),
    ],
)
def test_what_is_no_trace_is_said_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(RidgelineError, match=message) as caught:
        load_traces(path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_folders_and_globs_name_ranks_in_their_order(tmp_path: Path) -> None:
    for rank in (10, 9, 1):
        write(tmp_path / f"rank{rank}.json.gz", EVENTS)
    assert [trace.rank for trace in load_traces(tmp_path)] == [1, 9, 10]
    assert [trace.rank for trace in load_traces(f"{tmp_path}/rank1*.json.gz")] == [1, 10]
    with pytest.raises(RidgelineError, match=r"did you mean .*rank9.json.gz"):
        load_traces(tmp_path / "rank9.json.g")


def test_columns_become_data_frames(plain: Trace) -> None:
    pandas = pytest.importorskip("pandas")
    frame = plain.to_pandas("gpu")
    assert isinstance(frame, pandas.DataFrame)
    assert frame["kind"].tolist() == ["kernel", "memcpy"]
    polars = pytest.importorskip("polars")
    other = plain.to_polars("gpu")
    assert isinstance(other, polars.DataFrame)
    assert other["kind"].to_list() == frame["kind"].tolist()
    with pytest.raises(RidgelineError, match="no table 'gpus'"):
        plain.to_pandas("gpus")
