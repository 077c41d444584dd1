"""Memory snapshots: read as data alone, replayed to the byte."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.trace.formats.memory_snapshot import (
    NO_STACK,
    Snapshot,
    read_plain_pickle,
    read_snapshot,
)
from ridgeline.trace.memory.snapshot import SnapshotMemory, snapshot_memory

MIB = 2**20


def stack(line: int) -> list[dict[str, Any]]:
    """As torch records it: innermost first, torch's own frames before the user's."""
    return [
        {"name": "forward", "filename": "/env/site-packages/torch/nn/modules/linear.py", "line": 1},
        {"name": "step", "filename": "/home/me/train.py", "line": line},
        {"name": "<module>", "filename": "/home/me/train.py", "line": 99},
    ]


def an_event(action: str, addr: int, size: int, time_us: int, line: int = 0) -> dict[str, Any]:
    frames = stack(line) if line else []
    return {
        "action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us,
        "frames": frames,
    }  # fmt: skip


def a_block(address: int, size: int, state: str = "active_allocated") -> dict[str, Any]:
    return {
        "address": address, "size": size, "requested_size": size - 8, "state": state, "frames": [],
    }  # fmt: skip


def a_snapshot() -> dict[str, Any]:
    """Weights from before the history, one activation that comes and goes, one that stays."""
    weights, activation, kept = 0, 4 * MIB, 8 * MIB
    history = [
        an_event("alloc", activation, 4 * MIB, 100, line=10),
        an_event("alloc", kept, MIB, 200, line=20),
        an_event("free_requested", activation, 4 * MIB, 300, line=30),
        an_event("free_completed", activation, 4 * MIB, 400, line=30),
        an_event("oom", 0, 2**40, 500, line=40) | {"device_free": 7},
    ]
    blocks = [
        a_block(weights, 4 * MIB),
        a_block(activation, 4 * MIB, "inactive"),
        a_block(kept, MIB),
    ]
    segment = {
        "device": 0, "address": 0, "total_size": 9 * MIB, "stream": 0, "segment_type": "large",
        "allocated_size": 5 * MIB, "active_size": 5 * MIB, "blocks": blocks,
        "segment_pool_id": (0, 0), "is_expandable": False,
    }  # fmt: skip
    empty = dict(segment, address=64 * MIB, total_size=2 * MIB,
                 blocks=[a_block(64 * MIB, 2 * MIB, "inactive")])  # fmt: skip
    return {
        "segments": [segment, empty], "device_traces": [history], "external_annotations": [],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
    }  # fmt: skip


def write(path: Path, content: object, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_snapshot_gives_peak_fragmentation_and_growth_to_the_byte(
    tmp_path: Path, protocol: int
) -> None:
    snapshot = read_snapshot(write(tmp_path / "snapshot.pickle", a_snapshot(), protocol))
    (memory,) = snapshot_memory(snapshot)
    assert memory.reserved_bytes == 11 * MIB
    assert memory.active_bytes == 5 * MIB
    assert memory.requested_bytes == 5 * MIB - 16
    assert memory.unusable_free_bytes == 4 * MIB, "the empty segment can be given back"
    assert memory.fragmentation == pytest.approx(4 / 11)
    assert memory.peak_bytes == 9 * MIB
    assert memory.peak_time_seconds == pytest.approx(100e-6)
    assert memory.growth_bytes == MIB
    assert memory.out_of_memory == 1
    assert max(level for _, level in memory.timeline) == memory.peak_bytes


@pytest.mark.parametrize(("kind", "lost"), [("small", 2 * MIB), ("large", 38 * MIB)])
def test_whole_pages_of_an_expandable_segment_are_not_lost(
    tmp_path: Path, kind: str, lost: int
) -> None:
    sizes = [("active_allocated", 3), ("inactive", 62), ("active_allocated", 1), ("inactive", 16)]
    blocks = [a_block(0, size * MIB, state) for state, size in sizes]
    segment = a_snapshot()["segments"][0] | {
        "total_size": 82 * MIB, "segment_type": kind, "is_expandable": True, "blocks": blocks,
    }  # fmt: skip
    content = a_snapshot() | {"segments": [segment], "device_traces": []}
    (memory,) = snapshot_memory(read_snapshot(write(tmp_path / "s.pickle", content)))
    assert memory.unusable_free_bytes == lost


def test_the_peak_is_told_by_the_lines_of_the_users_code(tmp_path: Path) -> None:
    (memory,) = snapshot_memory(read_snapshot(write(tmp_path / "s.pickle", a_snapshot())))
    held = {entry.site: entry.bytes for entry in memory.peak_by_site}
    assert held == {
        "/home/me/train.py:10 step": 4 * MIB,
        "/home/me/train.py:20 step": MIB,
        NO_STACK: 4 * MIB,
    }
    assert [entry.site for entry in memory.growth_by_site] == ["/home/me/train.py:20 step"]


def test_memory_that_rises_from_part_to_part_is_growth() -> None:
    def history(leak: bool) -> list[dict[str, Any]]:
        events = []
        for step in range(64):
            events.append(an_event("alloc", 1000 + step, 100, 10 * step, line=5))
            if not leak or step % 4:
                events.append(an_event("free_completed", 1000 + step, 100, 10 * step + 5))
        return events

    for leak in (True, False):
        blocks = [a_block(1000 + step, 100) for step in range(0, 64, 4)] if leak else []
        content = a_snapshot() | {"device_traces": [history(leak)]}
        content["segments"] = [dict(content["segments"][0], blocks=blocks, total_size=6400)]
        (memory,) = snapshot_memory(msgspec.convert(content, Snapshot))
        assert memory.growing is leak
        assert memory.growth_sentence.startswith("grows" if leak else "does not grow")
        assert ("train.py:5 step: 16 blocks, 1.60 kB" in memory.growth_sentence) is leak
        assert len(memory.part_lows_bytes) == 8


class Malicious:
    """What a hostile file holds: a call that the standard reader would make."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.target),))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "it-ran"
    content = a_snapshot() | {"extra": Malicious(mark)}
    path = write(tmp_path / "snapshot.pickle", content, protocol)
    with pytest.raises(InputError, match=r"mkdir.*could run code") as caught:
        read_snapshot(path)
    assert not mark.exists()
    assert "\n" not in str(caught.value)
    pickle.loads(path.read_bytes())  # noqa: S301
    assert mark.exists(), "the same file does run under the standard reader: the test can fail"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "could run code"),
        (b"\x80\x02cbuiltins\neval\nq\x00.", "could run code"),
        (b"Pidentifier\n.", "could run code"),
        (b"\x82\x01.", "not a whole pickle"),  # an extension code that nobody registered
        (b"]R.", "not a whole pickle"),
        (b"", "not a whole pickle"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", "not a whole pickle"),
        (b"PK\x03\x04", "not a whole pickle"),
        (pickle.dumps([1, 2]), "without `segments`"),
        (pickle.dumps({"segments": [{"device": "zero"}]}), "not a torch memory snapshot"),
    ],
)
def test_what_is_no_snapshot_gets_one_clear_line(
    tmp_path: Path, program: bytes, words: str
) -> None:
    path = tmp_path / "odd.pickle"
    path.write_bytes(program)
    with pytest.raises(InputError, match=words) as caught:
        read_snapshot(path)
    assert str(path) in str(caught.value)


@given(cut=st.integers(min_value=0, max_value=2000), flip=st.integers(0, 255), at=st.integers(0))
def test_a_damaged_snapshot_never_ends_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, at: int
) -> None:
    whole = bytearray(pickle.dumps(a_snapshot()))
    whole[at % len(whole)] = flip
    path = tmp_path_factory.mktemp("damaged") / "s.pickle"
    path.write_bytes(whole[: max(1, len(whole) - cut)])
    with suppress(InputError):
        found = snapshot_memory(read_snapshot(path))
        assert msgspec.json.decode(msgspec.json.encode(found), type=list[SnapshotMemory]) == found


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
        max_leaves=20,
    )
)
def test_plain_data_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = tmp_path_factory.mktemp("plain") / "v.pickle"
    assert read_plain_pickle(write(path, value, 4)) == value


def test_memory_of_threads_without_python_is_held_by_what_autograd_ran_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Innermost are the frames that recorded the stack, which hold nothing."""
    names = (
        "torch::unwind::unwind()",
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long)",
        "at::_ops::empty_memory_format::redispatch(c10::DispatchKeySet)",
        "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)",
        "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)",
    )
    frames = [{"name": name, "filename": "??", "line": 0} for name in names]
    whole = a_snapshot()
    for events in whole["device_traces"]:
        for event in events:
            event["frames"] = frames if event["addr"] == 8 * MIB else frames[:4]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(whole))
    assert run(["trace", "memory", str(path)]) == 0
    shown = capsys.readouterr().out
    for holder in ("autograd MmBackward0", "aten::mm", "(no stack recorded)"):
        assert holder in shown
    assert "unwind" not in shown
