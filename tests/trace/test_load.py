"""Ranks side by side, and the cache."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.trace.written import call, host, kernel, write

from ridgeline import RidgelineError
from ridgeline.trace import load
from ridgeline.trace.cache import MAGIC
from ridgeline.trace.columns import GpuEvents, column_types
from ridgeline.trace.load import for_each_rank, read_traces, trace_files
from ridgeline.trace.time.summary import summarize

EVENTS = [
    call(0, 5, 1),
    kernel(10, 20, correlation=1),
    host(0, 9, "aten::mm", **{"External id": 3}),
]


def test_the_cache_gives_the_same_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "rank3.json.gz", EVENTS, distributedInfo={"rank": 3, "world_size": 8})
    for details in (False, True):
        (fresh,) = read_traces(path, details=details)
        (first,) = read_traces(path, details=details, cache=tmp_path / "cache")
        (again,) = read_traces(path, details=details, cache=tmp_path / "cache")
        assert summarize(fresh) == summarize(first) == summarize(again)
        assert (again.rank, again.names, again.devices) == (3, fresh.names, fresh.devices)
        for column in column_types(GpuEvents):
            kept, read = getattr(again.gpu, column), getattr(fresh.gpu, column)
            assert np.array_equal(kept, read, equal_nan=kept.dtype == np.float64)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_trace_that_changed_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", EVENTS)
    read_traces(path, cache=tmp_path / "cache")
    write(path, [*EVENTS, kernel(50, 5)])
    (found,) = read_traces(path, cache=tmp_path / "cache")
    assert len(found.gpu) == 2


def test_a_damaged_entry_of_the_cache_is_read_anew_and_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", EVENTS)
    (fresh,) = read_traces(path, cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    whole = kept.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :] for at in
               (3, 18, 25, len(whole) // 2, len(whole) - 3)]  # fmt: skip
    wrong_type = whole.replace(b"<i4", b"<f4")
    for content in (whole[:-5], whole[:20], b"", b"x" * 99, whole + b"x", wrong_type, *flipped):
        kept.write_bytes(content)
        (again,) = read_traces(path, cache=tmp_path / "cache")
        assert summarize(again) == summarize(fresh)
        assert again.gpu.start_us.tolist() == fresh.gpu.start_us.tolist()
        assert kept.read_bytes() == whole


def test_an_entry_with_a_sound_checksum_and_wrong_columns_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", EVENTS)
    read_traces(path, cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    whole = kept.read_bytes()
    head = len(MAGIC)
    for body in (whole[head + 4 :].replace(b"<i4", b"<f4"), whole[head + 4 :] + b"more", b"", b"x"):
        kept.write_bytes(MAGIC + zlib.crc32(body).to_bytes(4, "little") + body)
        (again,) = read_traces(path, cache=tmp_path / "cache")
        assert len(again.gpu) == 1
        assert kept.read_bytes() == whole


@pytest.mark.parametrize("worth_bytes", [1, 1 << 30], ids=["in processes", "here"])
def test_many_ranks_are_asked_in_their_order(
    worth_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_BYTES_OF_A_WORKER", worth_bytes)
    for rank in range(12):
        write(tmp_path / f"rank{rank}.json", [kernel(0, 10 + rank)])
    answers = list(for_each_rank(trace_files([tmp_path]), summarize))
    assert [found[0].busy_us for found in answers] == [10 + rank for rank in range(12)]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_256_ranks_stay_below_two_gigabytes(tmp_path: Path, real_traces: Path) -> None:
    """Each rank is a real trace of 36 MB of text; workers and parent together, at their peaks."""
    pattern = real_traces / "v100_resnet50_dataloader" / "num_workers_0.pt.trace.json.gz"
    for rank in range(256):
        (tmp_path / f"rank{rank}.json.gz").symlink_to(pattern)
    script = (
        "import resource, sys; from ridgeline.trace.load import *;"
        "from ridgeline.trace.time.summary import summarize;"
        "n = len(list(for_each_rank(trace_files(sys.argv[1:]), summarize)));"
        "own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "worst = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;"
        "import os; print(n, own + worst * len(os.sched_getaffinity(0)))"
    )
    shown = subprocess.check_output([sys.executable, "-c", script, str(tmp_path)], text=True)
    count, kilobytes = map(int, shown.split())
    assert count == 256
    assert kilobytes < 2e6


def test_other_files_of_a_folder_are_no_ranks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"learning_rate": 0.1}')
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(RidgelineError, match="no trace in this folder"):
        trace_files([tmp_path])
    path = write(tmp_path / "deeper.json.gz", EVENTS)
    assert trace_files([tmp_path]) == [path]


@pytest.mark.parametrize(
    ("suffix", "cure"), [(".nsys-rep", "nsys export"), (".pickle", "trace memory")]
)
def test_a_file_of_another_kind_is_told_its_way(tmp_path: Path, suffix: str, cure: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"anything")
    with pytest.raises(RidgelineError, match=cure):
        read_traces(path)
