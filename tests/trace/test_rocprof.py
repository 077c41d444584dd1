"""What rocprofv3 records, as JSON and as a rocpd database: both give the same traces."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.trace.columns import Category, Kind, Trace
from ridgeline.trace.load import load_traces, trace_files
from ridgeline.trace.time.idle import idle_time
from ridgeline.trace.time.launch import launches
from ridgeline.trace.time.summary import summarize

KERNELS = 400
STEP_NS = 50_000
CPU, FIRST_GPU, SECOND_GPU = 101, 202, 203
GEMM = "Cijk_Ailk_Bljk_BBS_BH_MT64x64x32"
"""A run of 400 launches on each of two GPUs, a copy every hundredth, one range around them all."""


def a_document() -> dict[str, Any]:
    kinds = [
        {"kind": "HIP_RUNTIME_API", "operations": ["hipFree", "hipLaunchKernel", "hipMemcpyAsync"]},
        {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
        {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]},
        {"kind": "KERNEL_DISPATCH", "operations": ["NONE"]},
    ]
    kernels, copies, calls = [], [], []
    for number in range(1, 2 * KERNELS + 1):
        agent = FIRST_GPU if number % 2 else SECOND_GPU
        start = number * STEP_NS
        link = {"internal": number, "external": 0}
        calls.append(timed(start, 4000, kind=0, operation=1, thread_id=77, correlation_id=link))
        info = {
            "agent_id": {"handle": agent}, "queue_id": {"handle": 9}, "kernel_id": 5,
            "group_segment_size": 512, "grid_size": {"x": 1000, "y": 2, "z": 1},
            "workgroup_size": {"x": 256, "y": 1, "z": 1},
        }  # fmt: skip
        kernels.append(
            timed(
                start + 9000,
                30_000,
                kind=3,
                operation=0,
                thread_id=77,
                correlation_id=link,
                dispatch_info=info,
                stream_id={"handle": 3},
            )
        )
        if number % 100 == 0:
            copies.append(
                timed(
                    start + 40_000,
                    5000,
                    kind=1,
                    operation=1,
                    thread_id=77,
                    bytes=4096,
                    correlation_id={"internal": 10_000 + number},
                    src_agent_id={"handle": CPU},
                    dst_agent_id={"handle": agent},
                )
            )
    marker = timed(0, 2 * KERNELS * STEP_NS, kind=2, operation=1, thread_id=77,
                   correlation_id={"internal": 99_999})  # fmt: skip
    gpu = {"type": 2, "cu_count": 256, "name": "gfx950", "product_name": "AMD Instinct MI350X"}
    process = {
        "metadata": {"pid": 908},
        "agents": [
            {"id": {"handle": CPU}, "type": 1, "cu_count": 128, "name": "EPYC"},
            {**gpu, "id": {"handle": FIRST_GPU}, "gpu_index": 0},
            {**gpu, "id": {"handle": SECOND_GPU}, "gpu_index": 1},
        ],
        "strings": {"buffer_records": kinds, "marker_api": [{"key": 99_999, "value": "train"}]},
        "kernel_symbols": [{"kernel_id": 5, "kernel_name": f"{GEMM}.kd",
                            "formatted_kernel_name": GEMM, "arch_vgpr_count": 64}],
        "buffer_records": {"kernel_dispatch": kernels, "memory_copy": copies, "hip_api": calls,
                           "hsa_api": [], "marker_api": [marker]},
    }  # fmt: skip
    return {"rocprofiler-sdk-tool": [process]}


def timed(start: int, length: int, **record: Any) -> dict[str, Any]:
    return {"start_timestamp": 10**15 + start, "end_timestamp": 10**15 + start + length, **record}


def a_database(path: Path, document: dict[str, Any]) -> Path:
    """The same run as rocpd writes it: schema 3 without the columns that nobody reads."""
    (process,) = document["rocprofiler-sdk-tool"]
    records = process["buffer_records"]
    connection = sqlite3.connect(path)
    tables = {
        "rocpd_string": "id, guid, string", "rocpd_info_process": "id, guid, pid",
        "rocpd_info_thread": "id, guid, tid",
        "rocpd_info_agent": "id, guid, type, type_index, product_name, name, extdata",
        "rocpd_info_kernel_symbol": "id, guid, kernel_name, display_name, arch_vgpr_count",
        "rocpd_event": "id, guid, category_id, stack_id, correlation_id, extdata",
        "rocpd_region": "id, guid, pid, tid, start, end, name_id, event_id",
        "rocpd_kernel_dispatch": "id, guid, pid, tid, agent_id, kernel_id, stream_id, start, end, "
        "group_segment_size, workgroup_size_x, workgroup_size_y, workgroup_size_z, grid_size_x, "
        "grid_size_y, grid_size_z, event_id",
        "rocpd_memory_copy": "id, guid, pid, tid, start, end, name_id, dst_agent_id, src_agent_id, "
        "size, stream_id, event_id",
    }  # fmt: skip
    for table, columns in tables.items():
        quoted = ", ".join(f'"{name}"' for name in columns.split(", "))
        connection.execute(f"CREATE TABLE {table}_0badcafe ({quoted})")
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM {table}_0badcafe")  # noqa: S608

    counts: Counter[str] = Counter()

    def add(table: str, *values: Any) -> int:
        count = counts[table] = counts[table] + 1
        marks = ", ".join("?" * (len(values) + 2))
        insert = f"INSERT INTO {table}_0badcafe VALUES ({marks})"  # noqa: S608
        connection.execute(insert, (count, "g", *values))
        return count

    words = ("hipLaunchKernel", "MEMORY_COPY_HOST_TO_DEVICE", "roctxRangePushA", "HIP_RUNTIME_API",
             "MARKER_CORE_API")  # fmt: skip
    word = {text: add("rocpd_string", text) for text in words}
    pid, tid = add("rocpd_info_process", 908), add("rocpd_info_thread", 77)
    units = json.dumps({"cu_count": 256})
    agents = {CPU: add("rocpd_info_agent", "CPU", 0, "EPYC", "EPYC", "{}")}
    for number, handle in enumerate((FIRST_GPU, SECOND_GPU)):
        agents[handle] = add("rocpd_info_agent", "GPU", number, "AMD Instinct MI350X", "gfx", units)
    symbol = add("rocpd_info_kernel_symbol", f"{GEMM}.kd", GEMM, 64)
    for call in records["hip_api"]:
        event = add("rocpd_event", word["HIP_RUNTIME_API"], call["correlation_id"]["internal"], 0,
                    "{}")  # fmt: skip
        add("rocpd_region", pid, tid, *span(call), word["hipLaunchKernel"], event)
    for kernel in records["kernel_dispatch"]:
        info = kernel["dispatch_info"]
        event = add("rocpd_event", None, kernel["correlation_id"]["internal"], 0, "{}")
        add(
            "rocpd_kernel_dispatch",
            pid,
            tid,
            agents[info["agent_id"]["handle"]],
            symbol,
            3,
            *span(kernel),
            512,
            *info["workgroup_size"].values(),
            *info["grid_size"].values(),
            event,
        )
    for copy in records["memory_copy"]:
        event = add("rocpd_event", None, copy["correlation_id"]["internal"], 0, "{}")
        add(
            "rocpd_memory_copy",
            pid,
            tid,
            *span(copy),
            word["MEMORY_COPY_HOST_TO_DEVICE"],
            agents[copy["dst_agent_id"]["handle"]],
            agents[CPU],
            copy["bytes"],
            None,
            event,
        )
    (marker,) = records["marker_api"]
    event = add("rocpd_event", word["MARKER_CORE_API"], 99_999, 0, json.dumps({"message": "train"}))
    add("rocpd_region", pid, tid, *span(marker), word["roctxRangePushA"], event)
    connection.commit()
    connection.close()
    return path


def span(record: dict[str, Any]) -> tuple[int, int]:
    return record["start_timestamp"], record["end_timestamp"]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return a_document()


@pytest.fixture(params=["json", "json.gz", "rocpd"])
def traces(request: pytest.FixtureRequest, tmp_path: Path, document: dict[str, Any]) -> list[Trace]:
    if request.param == "rocpd":
        return load_traces(a_database(tmp_path / "908_results.db", document))
    text = json.dumps(document).encode()
    path = tmp_path / f"908_results.{request.param}"
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return load_traces(path)


def test_both_gpus_of_a_run_are_read(traces: list[Trace]) -> None:
    assert [trace.rank for trace in traces] == [0, 1]
    assert [trace.devices[0].name for trace in traces] == ["AMD Instinct MI350X"] * 2
    assert [len(trace.gpu) for trace in traces] == [KERNELS, KERNELS + 8]
    first, second = traces
    assert set(first.gpu.blocks.tolist()) == {8}  # 1000 items in blocks of 256, twice
    assert set(first.gpu.blocks_per_sm.tolist()) == {8 / 256}
    assert set(first.gpu.registers_per_thread.tolist()) == {64}
    copies = second.gpu.kind == Kind.MEMCPY
    assert second.gpu.bytes[copies].tolist() == [4096] * 8
    assert {second.names[name] for name in second.gpu.name[copies]} == {"Memcpy HtoD"}
    assert {first.names[name] for name in first.gpu.name} == {GEMM}


def test_launches_ranges_and_idle_time_are_those_of_the_run(traces: list[Trace]) -> None:
    first = traces[0]
    (launch,) = launches(first)
    assert launch.launched == KERNELS
    assert launch.delay_us["median"] == pytest.approx(9.0)
    annotations = first.host.category == Category.ANNOTATION
    assert [first.names[name] for name in first.host.name[annotations]] == ["train"]
    (found,) = summarize(first)
    assert found.busy_us == pytest.approx(KERNELS * 30)
    (idle,) = idle_time(first)
    assert idle.host_wait_us == pytest.approx((KERNELS - 1) * 70)  # every second step of 50 us


def test_the_command_answers_and_a_folder_is_searched(
    tmp_path: Path, document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    a_database(tmp_path / "908_results.db", document)
    (tmp_path / "other.db").write_bytes(b"no database")
    assert [path.name for path in trace_files([tmp_path])] == ["908_results.db"]
    assert run(["trace", "summary", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [rank["device_name"] for rank in shown["ranks"]] == ["AMD Instinct MI350X"] * 2


def test_a_database_of_rocprof_before_rocprofv3_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = sqlite3.connect(tmp_path / "results.db")
    columns = '"BeginNs", "EndNs", "pid", "tid", "Name", "Index"'
    connection.execute(f'CREATE TABLE "HIP" ({columns}, "args")')
    for table in ("OPS", "COPY"):
        connection.execute(f'CREATE TABLE "{table}" ({columns}, "dev-id", "queue-id", "stream-id")')
    for number in range(1, 40, 2):
        start = number * 500_000
        sent = (start, start + 950_000, 9, 9, "hipMemcpy", number, "( sizeBytes(4096) kind(1))")
        asked = (start + 960_000, start + 965_000, 9, 9, "hipLaunchKernel", number + 1, "")
        connection.executemany('INSERT INTO "HIP" VALUES (?, ?, ?, ?, ?, ?, ?)', [sent, asked])
        copy = (start + 50_000, start + 940_000, 9, 9, "CopyHostToDevice", number, 4, 0, 0)
        ran = (
            start + 970_000,
            start + 990_000,
            9,
            9,
            "add(float*) [clone .kd]",
            number + 1,
            4,
            0,
            1,
        )
        connection.execute('INSERT INTO "COPY" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)', copy)
        connection.execute('INSERT INTO "OPS" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)', ran)
    connection.commit()
    connection.close()
    (trace,) = load_traces(tmp_path / "results.db")
    assert {trace.names[name] for name in trace.gpu.name} == {"add(float*)", "Memcpy HtoD"}
    (launch,) = launches(trace)
    assert launch.delay_us["median"] == pytest.approx(30)  # 50 of a copy, 10 of a kernel
    assert trace.gpu.bytes[trace.gpu.kind == Kind.MEMCPY].tolist() == [4096] * 20
    assert run(["trace", "summary", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"][0]["cause"] == "copy-bound"


def test_queues_of_hsa_tell_when_a_kernel_was_asked_for_and_when_it_ran(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "results.db")
    connection.execute("CREATE TABLE HSA (BeginNs, EndNs, pid, tid, Name, args, 'Index')")
    connection.execute("INSERT INTO HSA VALUES (100, 100, 3, 9, 'hsa_dispatch', '', 1)")
    connection.execute(
        "CREATE TABLE A ('Index', KernelName, 'gpu-id', 'queue-id', pid, tid, grd, wgr, lds, "
        "DispatchNs, BeginNs, EndNs)"
    )
    connection.execute(
        "INSERT INTO A VALUES (0, '\"mm.kd\"', 1, 2, 9, 9, 1000, 256, 512, 100, 900, 5900)"
    )
    connection.commit()
    connection.close()
    (trace,) = load_traces(tmp_path / "results.db")
    assert [trace.names[name] for name in trace.gpu.name] == ["mm"]
    assert trace.gpu.blocks.tolist() == [4]
    assert launches(trace)[0].delay_us["median"] == pytest.approx(0.8)


def test_tables_of_another_program_with_such_names_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = sqlite3.connect(tmp_path / "hospital.db")
    connection.execute("CREATE TABLE OPS (patient)")
    connection.execute("CREATE TABLE COPY (patient)")
    connection.execute("INSERT INTO OPS VALUES ('one')")
    connection.commit()
    connection.close()
    assert run(["trace", "summary", str(tmp_path / "hospital.db")]) == 2
    assert "no database of rocprof" in capsys.readouterr().err


def test_a_damaged_file_is_one_line(tmp_path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document).encode()
    whole = a_database(tmp_path / "whole.db", document).read_bytes()
    cut = tmp_path / "908_results.json"
    for name, content in (
        ("cut.json", text[: len(text) // 2]),
        ("typed.json", text.replace(b'"kernel_id": 5', b'"kernel_id": "five"')),
        ("large.json", text.replace(b'"kernel_id": 5', b'"group_segment_size": 1e30', 1)),
        ("huge.json", text.replace(b'"internal": 17,', b'"internal": 99999999999999999999,', 1)),
        ("empty.json", b'{"rocprofiler-sdk-tool": [{"buffer_records": {}}]}'),
        ("cut.db", whole[: len(whole) // 3]),
    ):
        cut = tmp_path / name
        cut.write_bytes(content)
        with pytest.raises(InputError) as caught:
            load_traces(cut)
        assert str(caught.value).startswith(str(cut))
        assert "\n" not in str(caught.value)
    connection = sqlite3.connect(tmp_path / "other_schema.db")
    connection.execute("CREATE TABLE rocpd_string (id, guid, string)")
    connection.close()
    with pytest.raises(InputError, match="rocpd_kernel_dispatch"):
        load_traces(tmp_path / "other_schema.db")


def test_a_time_beyond_reason_is_left_out_and_counted(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    text = json.dumps(document).replace(f'"end_timestamp": {10**15 + 9000 + 30_000 + STEP_NS}',
                                        f'"end_timestamp": {2**62}', 1)  # fmt: skip
    path = tmp_path / "908_results.json"
    path.write_text(text)
    first, second = load_traces(path)
    assert (len(first.gpu), len(second.gpu)) == (KERNELS - 1, KERNELS + 8)
    assert "1 events had a time beyond reason and were left out" in first.warnings
    (found,) = summarize(first)
    assert found.busy_us == pytest.approx((KERNELS - 1) * 30)
