"""Profiles of XLA's profiler, written here field by field as its protocol says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.trace.columns import Category, Kind
from ridgeline.trace.load import load_traces, trace_files
from ridgeline.trace.time.launch import launches
from ridgeline.trace.time.summary import summarize

KERNELS = 600
STEP_PS = 50_000_000
BASE_NS = 911_061_000


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


class PlaneWriter:
    """An XPlane whose names get their numbers as they are met."""

    def __init__(self, name: str) -> None:
        self.content = field(2, name)
        self.names: dict[str, int] = {}
        self.stats: dict[str, int] = {}

    def stat(self, key: str, value: int | str) -> bytes:
        number = self.stats.setdefault(key, len(self.stats) + 1)
        return field(1, number) + field(4 if isinstance(value, int) else 5, value)

    def event(self, name: str, start_ps: int, length_ps: int, **stats: int | str) -> bytes:
        number = self.names.setdefault(name, len(self.names) + 1)
        said = b"".join(field(4, self.stat(key, value)) for key, value in stats.items())
        return field(1, number) + field(2, start_ps) + field(3, length_ps) + said

    def line(self, number: int, name: str, events: list[bytes]) -> None:
        body = b"".join(field(4, event) for event in events)
        self.content += field(3, field(1, number) + field(2, name) + field(3, BASE_NS) + body)

    def written(self, **facts: int | str) -> bytes:
        known = b"".join(field(6, self.stat(key, value)) for key, value in facts.items())
        for number, table in ((4, self.names), (5, self.stats)):
            for name, key in table.items():
                known += field(number, field(1, key) + field(2, field(1, key) + field(2, name)))
        return field(1, self.content + known)


def a_profile(num_gpus: int = 2) -> bytes:
    """Launches every 50 us, each kernel 9 us after its launch and 30 us long; a copy at the end."""
    whole, host = b"", PlaneWriter("/host:CPU")
    for number in range(num_gpus):
        plane = PlaneWriter(f"/device:GPU:{number}")
        kernels, calls = [], []
        for place in range(KERNELS):
            start, link = place * STEP_PS, number * KERNELS + place + 1
            kernels.append(plane.event(
                "loop_fusion.kd", start + 9_000_000, 30_000_000, correlation_id=link,
                kernel_details="regs:32 grid:16,2,1 block:512,1,1 occ_pct:0", hlo_op="fusion",
            ))  # fmt: skip
            calls.append(host.event("hipModuleLaunchKernel", start, 4_000_000, correlation_id=link))
        copy = plane.event("MemcpyH2D", KERNELS * STEP_PS, 5_000_000, correlation_id=90_000,
                           memcpy_details="kind_src:pinned size:4096 dest:0 async:1")  # fmt: skip
        plane.line(17, "Stream #17(Kernel)", kernels)
        plane.line(18, "Stream #18(MemcpyH2D)", [copy])
        plane.line(99, "XLA Modules", [plane.event("jit_step", 0, KERNELS * STEP_PS)])
        whole += plane.written(core_count=304, device_vendor="AMD")
        host.line(600 + number, f"worker/{number}", calls)
    host.line(1, "python", [host.event("PjitFunction(step)", 0, KERNELS * STEP_PS)])
    return field(1, field(2, "/host:metadata")) + whole + host.written()


@pytest.fixture(scope="module")
def profile() -> bytes:
    return a_profile()


@pytest.mark.parametrize("packed", [False, True])
def test_streams_launches_and_ranges_of_every_gpu_are_read(
    tmp_path: Path, profile: bytes, packed: bool
) -> None:
    path = tmp_path / ("host.xplane.pb.gz" if packed else "host.xplane.pb")
    path.write_bytes(gzip.compress(profile) if packed else profile)
    assert trace_files([tmp_path]) == [path]
    first, second = load_traces(path)
    assert (first.rank, second.rank) == (0, 1)
    for trace in (first, second):
        assert trace.gpu.kind.tolist().count(Kind.KERNEL) == KERNELS
        assert trace.gpu.bytes[trace.gpu.kind == Kind.MEMCPY].tolist() == [4096]
        assert set(trace.gpu.stream.tolist()) == {17, 18}
        assert {trace.names[name] for name in trace.gpu.name} == {"loop_fusion", "Memcpy HtoD"}
        assert set(trace.gpu.blocks[trace.gpu.kind == Kind.KERNEL].tolist()) == {32}
        ranges = trace.host.category == Category.ANNOTATION
        assert [trace.names[name] for name in trace.host.name[ranges]] == ["PjitFunction(step)"]
        assert {"worker/0", "worker/1", "python"} == set(trace.thread_names.values())
        (found,) = summarize(trace)
        assert found.busy_us == pytest.approx(KERNELS * 30 + 5)
        (launch,) = launches(trace)
        assert launch.launched == KERNELS
        assert launch.delay_us["median"] == pytest.approx(9)


def test_the_operations_of_a_tpu_are_its_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plane = PlaneWriter("/device:TPU:0")
    steps = [plane.event(str(n), n * STEP_PS, STEP_PS) for n in range(500)]
    sent = "%all-reduce.3 = f32[64]{0:T(8)} all-reduce(f32[64] %fusion), replica_groups=[4,2]<=[8]"
    work = [plane.event(sent if n % 5 == 0 else "fusion.7", n * STEP_PS, 40_000_000)
            for n in range(500)]  # fmt: skip
    plane.line(1, "Steps", steps)
    plane.line(2, "XLA Modules", steps)
    plane.line(3, "XLA Ops", work)
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(plane.written(device_type_string="TPU v5e"))
    assert run(["trace", "summary", str(path), "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert (rank["gpu_events"], rank["device_name"]) == (500, "TPU v5e")
    assert rank["busy_us"] == pytest.approx(500 * 40)
    assert rank["communication_us"] == pytest.approx(100 * 40)


OFFLOADED = (
    "%copy-start.4 = (f32[64,256]{1,0:T(8,128)}, f32[64,256]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) "
    "copy-start(f32[64,256]{1,0:T(8,128)S(5)} %param.2)"
)
AWAITED = (
    "%copy-done.4 = f32[64,256]{1,0:T(8,128)} copy-done((f32[64,256]{1,0:T(8,128)}, "
    "f32[64,256]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) %copy-start.4)"
)


def test_a_tpu_that_awaits_what_lies_in_the_hosts_memory_is_bound_by_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plane, whole, copies = PlaneWriter("/device:TPU:0"), 40_000_000, []
    work = []
    for number in range(100):
        start = number * STEP_PS
        work.append(plane.event(OFFLOADED, start, 1000))
        work.append(plane.event(AWAITED, start + 1000, whole))
        work.append(plane.event("%fusion.7 = f32[8]{0} fusion()", start + whole + 1000, 8_000_000))
        copies.append(plane.event(OFFLOADED, start, whole))
    plane.line(3, "XLA Ops", work)
    plane.line(4, "Async XLA Ops", copies)
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(plane.written())
    assert run(["trace", "summary", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"][0]["cause"] == "copy-bound"
    assert found["ranks"][0]["compute_us"] == pytest.approx(100 * 8)
    assert run(["trace", "copies", str(path), "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    (direction,) = rank["copies"]
    assert (direction["direction"], direction["bytes"]) == ("HtoD", 100 * 64 * 256 * 4)


def test_a_profile_of_nothing_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(field(1, field(2, "/host:metadata")))
    with pytest.raises(InputError, match="nothing ran"):
        load_traces(path)


SMALL = a_profile(1)[:30_000]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    end=st.integers(1, len(SMALL)),
    edits=st.lists(st.tuples(st.integers(1, 30_000), st.integers(0, 255)), max_size=8),
)
def test_a_damaged_profile_is_read_or_refused_in_one_line(
    tmp_path: Path, end: int, edits: list[Any]
) -> None:
    content = bytearray(SMALL[:end])
    for place, byte in edits:
        content[place % end] = byte
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(b"\x0a" + bytes(content[1:]))
    try:
        for trace in load_traces(path):
            summarize(trace)
    except InputError as error:
        refusal = str(error)
    else:
        return
    assert refusal.startswith(str(path))
    assert "\n" not in refusal
