"""A format of traces is one file: folders, workers and the cache find it there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.trace.test_nsight import KERNELS, an_export
from tests.trace.written import kernel, write

from ridgeline import load_traces
from ridgeline.errors import InputError
from ridgeline.trace import formats
from ridgeline.trace.load import for_each_rank, read_traces, trace_files
from ridgeline.trace.time.summary import summarize

OTHERPROF = '''
"""A profiler that writes one line: how many microseconds its one kernel took."""
from dataclasses import replace
import numpy as np
from ridgeline.trace.columns import GpuEvents, empty_trace, filled_table
from ridgeline.trace.formats import FileFormat

def read(path, details):
    us = float(path.read_text().split()[1])
    columns = {"start_us": [0], "duration_us": [us], "name": [0], "kind": [0], "device": [0]}
    gpu = filled_table(GpuEvents, {name: np.array(values) for name, values in columns.items()})
    return [replace(empty_trace(str(path)), names=("a kernel",), gpu=gpu, details=details)]

FORMAT = FileFormat(
    name="Otherprof", suffixes=(".oprf",), read=read,
    sniff=lambda path, start: start.startswith(b"OPRF"),
    refused={".oprf-raw": "convert it first"},
)
'''


@pytest.fixture
def otherprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    added = tmp_path / "formats"
    added.mkdir()
    (added / "otherprof.py").write_text(OTHERPROF)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(added)])
    formats.formats.cache_clear()
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(3):
        (folder / f"rank{rank}.oprf").write_text(f"OPRF {10 + rank}")
    (folder / "notes.oprf").write_text("no trace at all")
    yield folder
    sys.modules.pop(f"{formats.__name__}.otherprof", None)
    formats.formats.cache_clear()


def test_a_new_format_is_one_file(otherprof: Path, tmp_path: Path) -> None:
    found = trace_files([otherprof])
    assert [path.name for path in found] == ["rank0.oprf", "rank1.oprf", "rank2.oprf"]
    busy = [one.busy_us for ranks in for_each_rank(found, summarize) for one in ranks]
    assert busy == [10, 11, 12]
    renamed = otherprof / "rank0.oprf"
    renamed = renamed.rename(tmp_path / "a trace of some name")
    assert len(load_traces(renamed)) == 1
    with pytest.raises(InputError, match="convert it first"):
        read_traces(otherprof / "x.oprf-raw")


def test_every_format_is_cached_the_same_way(otherprof: Path, tmp_path: Path) -> None:
    row = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 9000, {0}, 7, 5, NULL, 1)"
    paths = [
        write(tmp_path / "x.json.gz", [kernel(0, 30)]),
        an_export(tmp_path / "two.sqlite", [KERNELS, row.format(0), row.format(1)]),
        otherprof / "rank1.oprf",
    ]
    for path in paths:
        fresh = read_traces(path)
        read_traces(path, cache=tmp_path / "cache")
        again = read_traces(path, cache=tmp_path / "cache")
        assert [summarize(trace) for trace in again] == [summarize(trace) for trace in fresh]
        assert [trace.rank for trace in again] == [trace.rank for trace in fresh]
        for one, other in zip(again, fresh, strict=True):
            assert np.array_equal(one.gpu.duration_us, other.gpu.duration_us)
    assert len(list((tmp_path / "cache").iterdir())) == len(paths)


def test_formats_do_not_claim_the_same_files() -> None:
    names = [ending for one in formats.formats() for ending in (*one.suffixes, *one.refused)]
    assert len(names) == len(set(names))
    assert sum(one.last_resort for one in formats.formats()) == 1
