"""Truncated, shuffled and mangled files end in an answer or in one line, never in a traceback."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tracemalloc
import types
import zlib
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trace.asked import QUESTIONS
from tests.trace.written import call, document, host, kernel, step

from ridgeline import load_traces
from ridgeline.cli.main import run
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


@pytest.mark.slow
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


SOUND = 400
"""Kernels of the traces below, half of them before what is damaged and half behind it."""
STRETCH_BYTES = 2**25


def around(stretch: bytes) -> bytes:
    """A trace with something in the middle of its events, right after a comma."""
    events = [kernel(100 * number, 50, correlation=number) for number in range(SOUND)]
    text = json.dumps(document(events)).encode()
    middle = text.index(b"},", len(text) // 2) + 2
    return text[:middle] + stretch + text[middle:]


def summary_of(
    path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], float]:
    """What the command says of the file, and the seconds of CPU that it took."""
    path.write_bytes(content)
    began = process_time()
    assert run(["trace", "summary", str(path), "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    return rank, process_time() - began


def peak_while_reading(path: Path) -> int:
    tracemalloc.start()
    try:
        load_traces(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("byte", [b" ", b"\n", b"\0"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_stretch_of_blanks_costs_neither_events_nor_memory(
    tmp_path: Path, byte: bytes, packed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    content = around(byte * STRETCH_BYTES)
    content = gzip.compress(content, compresslevel=1) if packed else content
    found, _ = summary_of(tmp_path / "x", content, capsys)
    assert (found["gpu_events"], found["warnings"]) == (SOUND, [])
    assert peak_while_reading(tmp_path / "x") < STRETCH_BYTES / 2


@pytest.mark.slow
@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    "damage",
    [b'{"name":"aaaaaaaa', b'{"name":"\\"\\"\\"', b"[[[[[[[[", b'{"a":{"a":', b"}}}}}}}}"],
    ids=["string", "escapes", "brackets", "braces", "closing braces"],
)
def test_a_damaged_stretch_costs_little_more_than_itself(
    tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first stretch is an event that may be whole; what is beyond is given up."""
    start = damage[:9] if damage.startswith(b'{"name":"') else b""
    content = around(start + damage[len(start) :] * (STRETCH_BYTES // len(damage[len(start) :])))
    found, _ = summary_of(tmp_path / "x", content, capsys)
    assert SOUND - 2 <= found["gpu_events"] <= SOUND
    assert found["warnings"] == ["1 events could not be read and were left out"]
    assert peak_while_reading(tmp_path / "x") < 3 * STRETCH_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before the events", "after them"])
def test_time_grows_with_the_stretch_and_no_faster(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = []
    for factor in (1, 4):
        text, stretch = around(b""), b"\n" * (factor * STRETCH_BYTES // 2)
        content = stretch + text if where == "before the events" else text + stretch
        found, took = summary_of(tmp_path / "x", content, capsys)
        assert (found["gpu_events"], found["warnings"]) == (SOUND, [])
        seconds.append(took)
    assert seconds[1] < 12 * seconds[0] + 1  # the square would be 16, and had minutes


def with_times(ts: str, dur: str, *, category: str = "kernel") -> bytes:
    strange = f'{{"ph":"X","cat":"{category}","name":"odd","pid":0,"tid":7,"ts":{ts},"dur":{dur}}},'
    return around(strange.encode())


@pytest.mark.sweep(every=7)
@pytest.mark.parametrize("category", ["kernel", "cpu_op", "cuda_runtime", "gpu_memcpy"])
@pytest.mark.parametrize(
    ("ts", "dur"),
    [
        ("1e300", "5"), ("-1e300", "5"), ("5", "1e300"), ("NaN", "5"), ("5", "NaN"),
        ("Infinity", "5"), ("5", "-Infinity"), ("1e17", "5"), ("5", "4e15"), ("3e14", "5"),
        ("5", "9e14"), ("-2e15", "5"), ("1e999", "5"), ('"nan"', "5"), ("null", "5"),
    ],
)  # fmt: skip
def test_a_time_beyond_reason_is_left_out_and_counted(
    tmp_path: Path, ts: str, dur: str, category: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _ = summary_of(tmp_path / "x", with_times(ts, dur, category=category), capsys)
    assert found["gpu_events"] == SOUND
    assert found["window_us"] == pytest.approx(100 * (SOUND - 1) + 50)
    assert found["warnings"] == ["1 events could not be read and were left out"]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("odd", ['"NaN"', '"Infinity"', '"-sNaN"', "1e300", "-1e300"])
def test_a_decimal_time_beyond_reason_is_left_out_and_counted(
    tmp_path: Path, odd: str, first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stamps since 1970 with nanoseconds are read as decimals."""
    text = b'{"traceEvents":['
    events = [
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1712867402348{n:03}.125,"dur":1}}'
        for n in range(SOUND)
    ]
    strange = f'{{"ph":"X","cat":"kernel","name":"odd","pid":0,"tid":7,"ts":{odd},"dur":1}}'
    events.insert(0 if first else SOUND // 2, strange)
    text += ",".join(events).encode() + b"]}"
    found, _ = summary_of(tmp_path / "x", text, capsys)
    assert (found["gpu_events"], found["window_us"]) == (SOUND, pytest.approx(SOUND))
    assert found["warnings"] == ["1 events could not be read and were left out"]


def test_times_that_are_all_beyond_reason_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [kernel(1.7e18 + number, 5) for number in range(SOUND)]  # nanoseconds since 1970
    (tmp_path / "x").write_text(json.dumps(document(events)))
    assert run(["trace", "summary", str(tmp_path / "x"), "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "none of its 400 events can be read" in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_other_encodings_of_json_are_read(
    tmp_path: Path, encoding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = around(b"").decode().replace("gemm", "gemm é 核")
    for content in (text.encode(encoding), gzip.compress(text.encode(encoding))):
        found, _ = summary_of(tmp_path / "x", content, capsys)
        assert (found["gpu_events"], found["warnings"]) == (SOUND, [])
        (trace,) = load_traces(tmp_path / "x")
        assert trace.names[trace.gpu.name[0]] == "gemm é 核"


def test_gzip_is_unpacked_by_isal_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with the interface of `isal.isal_zlib`, whose errors are of its own class too."""
    used = []

    class Damage(Exception):
        pass

    class Stream:
        def __init__(self, wbits: int) -> None:
            self.stream = zlib.decompressobj(wbits)
            used.append(wbits)

        def decompress(self, text: bytes, most: int) -> bytes:
            try:
                return self.stream.decompress(text, most)
            except zlib.error as error:
                raise Damage(str(error)) from None

        def __getattr__(self, name: str) -> object:
            return getattr(self.stream, name)

    monkeypatch.setitem(sys.modules, "isal", types.ModuleType("isal"))
    library = types.SimpleNamespace(decompressobj=Stream, error=Damage)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", library)
    whole, damaged = gzip.compress(around(b"")), bytearray(gzip.compress(around(b"") * 50))
    damaged[len(damaged) // 2] ^= 0xFF
    for content in (whole, bytes(damaged)):
        (tmp_path / "x.json.gz").write_bytes(content)
        (trace,) = load_traces(tmp_path / "x.json.gz")
        assert len(trace.gpu) == SOUND
    assert used
    assert any("damaged" in warning for warning in trace.warnings)


def test_a_file_packed_with_zstd_is_read_or_told_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(99))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match="zstd -d") as caught:
        load_traces(path)
    assert str(path) in str(caught.value)
    monkeypatch.delitem(sys.modules, "zstandard")
    zstandard = pytest.importorskip("zstandard")
    path.write_bytes(zstandard.compress(around(b"")))
    (trace,) = load_traces(path)
    assert len(trace.gpu) == SOUND


@FEW
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, 100_000),
            st.sampled_from([b"1e300", b"NaN", b"\0" * 40, b"}, {", b'"', b"[" * 30, b"\xff\xfe"]),
        ),
        min_size=1,
        max_size=6,
    ),
    packed=st.booleans(),
)
def test_an_answer_about_a_mangled_file_is_finite(
    tmp_path: Path, edits: list[tuple[int, bytes]], packed: bool
) -> None:
    text = bytearray(whole())
    for place, piece in edits:
        text[place % len(text) : place % len(text)] = piece
    (tmp_path / "x").write_bytes(gzip.compress(bytes(text), mtime=0) if packed else bytes(text))
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = run(["trace", "summary", str(tmp_path / "x"), "--json"])
    assert code in (0, 2)
    if code == 2:
        assert len(errors.getvalue().splitlines()) == 1
        return
    for rank in json.loads(output.getvalue(), parse_constant=float)["ranks"]:
        assert 0 <= rank["window_us"] < 1e9
        assert 0 <= rank["busy_us"] <= rank["window_us"] * (1 + 1e-9) + 1e-6


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
