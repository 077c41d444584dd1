"""Tables of text and the JSON that the ROCm profilers write when nobody asks for another format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.trace.columns import Trace
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.load import load_traces
from ridgeline.trace.time.launch import launches
from ridgeline.trace.time.summary import summarize

KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size",'
    '"VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y",'
    '"Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"'
)
CALLS = (
    '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp",'
    '"End_Timestamp"'
)
COPIES = (
    '"Kind","Stream_Id","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"'
)
DISPATCHED = "Index,KernelName,gpu-id,queue-id,pid,tid,grd,wgr,lds,DispatchNs,BeginNs,EndNs"
AS_KEPT = (
    "Dispatch_ID,Kernel_Name,GPU_ID,queue-id,queue-index,pid,tid,Grid_Size,Workgroup_Size,"
    "LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,wave_size,sig,obj,DispatchNs,"
    "Start_Timestamp,End_Timestamp,CompleteNs"
)


def table(path: Path, head: str, *rows: str) -> Path:
    path.write_text("\n".join([head, *rows, ""]))
    return path


def v3_kernel(number: int, start_us: int, name: str = "mm(float*, int)") -> str:
    return (
        f'"KERNEL_DISPATCH","Agent 4",1,2,77,{number},3,"{name}",{number},{start_us}000,'
        f"{start_us + 100}000,512,0,24,0,32,256,1,1,1000,2,1"
    )


def called(trace: Trace) -> list[str | None]:
    """The name of the call that launched each piece of GPU work."""
    return [
        None if row < 0 else trace.names[trace.host.name[row]]
        for row in launch_rows(trace).tolist()
    ]


def test_a_table_of_kernels_of_rocprofv3_is_read(tmp_path: Path) -> None:
    path = table(tmp_path / "kernel_trace.csv", KERNELS, v3_kernel(1, 10), v3_kernel(2, 300))
    (trace,) = load_traces(path)
    assert [trace.names[name] for name in trace.gpu.name] == ["mm(float*, int)"] * 2
    assert (trace.gpu.blocks.tolist(), trace.gpu.threads_per_block.tolist()) == ([8, 8], [256, 256])
    (summary,) = summarize(trace, "trace")
    assert (summary.busy_us, summary.window_us) == (200, 390)
    assert called(trace) == [None, None]


def test_what_the_same_run_wrote_beside_a_table_is_read_with_it(tmp_path: Path) -> None:
    path = table(tmp_path / "9_kernel_trace.csv", KERNELS, v3_kernel(8, 200))
    table(
        tmp_path / "9_hip_api_trace.csv", CALLS,
        '"HIP_RUNTIME_API_EXT","hipMemcpy",9,77,7,100000,160000',
        '"HIP_RUNTIME_API_EXT","hipLaunchKernel",9,77,8,170000,175000',
    )  # fmt: skip
    table(
        tmp_path / "9_memory_copy_trace.csv", COPIES,
        '"MEMORY_COPY",0,"MEMORY_COPY_HOST_TO_DEVICE","Agent 0","Agent 4",7,110000,150000',
    )  # fmt: skip
    table(tmp_path / "8_hip_api_trace.csv", CALLS, '"HIP","hipOfAnotherRun",9,77,8,0,1')
    (trace,) = load_traces(path)
    assert [trace.names[name] for name in trace.gpu.name] == ["Memcpy HtoD", "mm(float*, int)"]
    assert called(trace) == ["hipMemcpy", "hipLaunchKernel"]


@pytest.mark.parametrize(
    ("head", "row"),
    [
        (DISPATCHED, '0,"mm.kd",1,2,9,9,1000,256,512,{},{},{}'),
        (AS_KEPT, "0,mm.kd,1,2,0,9,9,1000,256,512,0,8,0,16,64,0x0,0x1,{},{},{},9"),
    ],
)
def test_the_moment_a_kernel_was_queued_stands_for_its_launch(
    tmp_path: Path, head: str, row: str
) -> None:
    path = table(
        tmp_path / "results.csv", head, row.format(100, 900, 5900), row.format(9100, 9900, 12900)
    )
    (trace,) = load_traces(path)
    assert [trace.names[name] for name in trace.gpu.name] == ["mm", "mm"]
    assert trace.gpu.blocks.tolist() == [4, 4]
    assert launches(trace)[0].delay_us["median"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("head", "row", "said"),
    [
        (KERNELS, v3_kernel(1, 10)[:-2], "line 2: 21 fields below a head of 22"),
        (KERNELS, v3_kernel(1, 10).replace("10000,", "soon,"), "line 2: no whole numbers as times"),
        (KERNELS, "", "no kernel, copy, call or range in it"),
        (AS_KEPT.replace("sig", "SQ_WAVES"), "", "a table of rocprof's counters"),
        ("Agent_Id,Kernel_Name,Counter_Name,Counter_Value", "4,mm,SQ_WAVES,7", "counters"),
        (CALLS, '"HIP","hipFree",9,77,8,0,1', "one sort of record and no kernels"),
        ("BeginNs\rEndNs", "", "no profiler trace"),
    ],
)
def test_a_table_that_is_damaged_or_of_another_kind_is_one_line(
    tmp_path: Path, head: str, row: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "x_kernel_trace.csv", head, row)
    assert run(["trace", "summary", str(path)]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.count("\n") == 1
    assert said in printed.err


def first_span(process: str, thread: int, start_us: int, end_us: int, name: str) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "pid": process, "tid": str(thread), "ts": str(start_us),
        "dur": str(end_us - start_us),
        "args": {"BeginNs": f"{start_us}000", "EndNs": f"{end_us}000", "dev-id": "1"},
    }  # fmt: skip


def first_document(path: Path, *events: dict[str, Any]) -> Path:
    processes = [(0, "Markers and Ranges"), (2, "CPU HIP API"), (1, "COPY"), (7, "GPU1")]
    named = [{"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name"}
             for pid, name in processes]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": [{}, *named, *events], "otherData": {}}))
    return path


def test_the_json_of_rocprof_before_rocprofv3_is_read(tmp_path: Path) -> None:
    flows = [
        {"ts": 212, "ph": "s", "cat": "DataFlow", "id": 5, "pid": 2, "tid": 77, "name": "dep"},
        {"ts": 230, "ph": "t", "cat": "DataFlow", "id": 5, "pid": 7, "tid": 3, "name": "dep"},
    ]
    path = first_document(
        tmp_path / "results.json",
        first_span("0", 77, 90, 400, "step"),
        first_span("2", 77, 100, 180, "hipMemcpy"),
        first_span("2", 77, 210, 215, "hipLaunchKernel"),
        first_span("2", 77, 216, 390, "hipDeviceSynchronize"),
        first_span("1", 0, 120, 170, "CopyHostToDevice"),
        first_span("7", 3, 230, 380, "mm(float*) [clone .kd]"),
        first_span("7", 0, 381, 381, "Unknown command type"),
        *flows,
    )
    (trace,) = load_traces(path)
    assert [trace.names[name] for name in trace.gpu.name] == ["Memcpy HtoD", "mm(float*)"]
    assert [device.index for device in trace.devices] == [1]
    assert called(trace) == ["hipMemcpy", "hipLaunchKernel"]


def test_the_json_of_rocprof_tells_when_kernels_were_queued_as_its_table_does(
    tmp_path: Path,
) -> None:
    times = [(100, 900, 5900), (9100, 9900, 12900)]
    row = "{},mm.kd,1,0,9,77,1000,256,512,{},{},{}"
    rows = [row.format(number, *when) for number, when in enumerate(times)]
    (told,) = load_traces(table(tmp_path / "results.csv", DISPATCHED, *rows))
    kernels = [first_span("7", 77, begin // 1000, end // 1000, "mm.kd") for _, begin, end in times]
    for kernel, (queued, begin, end) in zip(kernels, times, strict=True):
        kernel["args"] |= {
            "BeginNs": str(begin), "EndNs": str(end), "DispatchNs": str(queued), "queue-id": "0",
            "tid": "77", "grd": "1000", "wgr": "256", "lds": "512", "arch_vgpr": "",
        }  # fmt: skip
    (trace,) = load_traces(first_document(tmp_path / "other.json", *kernels))
    (of_json,), (of_table,) = launches(trace), launches(told)
    assert of_json.delay_us == of_table.delay_us
    assert of_json.host_wait_share == of_table.host_wait_share > 0.3
    assert of_json.queues == of_table.queues
    assert trace.gpu.blocks.tolist() == told.gpu.blocks.tolist() == [4, 4]
    assert trace.gpu.shared_bytes.tolist() == [512, 512]


def test_a_cut_json_of_rocprof_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = first_document(tmp_path / "results.json", first_span("7", 3, 1, 2, "mm"))
    path.write_bytes(path.read_bytes()[:-40])
    assert run(["trace", "summary", str(path)]) == 2
    assert "not a whole trace of rocprof" in capsys.readouterr().err


def test_a_folder_gives_the_tables_of_kernels_of_its_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """rocprofv3 writes a folder per host, and tables by process; calls alone are no trace."""
    for process, length in ((71, 100), (72, 300)):
        folder = tmp_path / "out" / "host"
        folder.mkdir(parents=True, exist_ok=True)
        kernel = v3_kernel(1, 10).replace("110000", f"{10 + length}000")
        table(folder / f"{process}_kernel_trace.csv", KERNELS, kernel)
        table(folder / f"{process}_hip_api_trace.csv", CALLS)
        table(folder / f"{process}_domain_stats.csv", '"Name","Calls"', '"hip",3')
    assert run(["trace", "summary", "--json", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)["ranks"]
    assert [Path(one["file"]).name for one in found] == [
        "71_kernel_trace.csv",
        "72_kernel_trace.csv",
    ]
    assert [one["busy_us"] for one in found] == [100, 300]


def test_a_run_that_was_written_in_several_forms_is_one_in_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = "0,mm,2,0,77,77,65536,256,0,1000,{},{}"
    table(tmp_path / "results.csv", DISPATCHED, row.format(2000, 9000))
    kernel = {"ph": "X", "name": "mm", "pid": 6, "tid": 77, "ts": "2", "dur": "7"}
    kernel["args"] = {"BeginNs": "2000", "EndNs": "9000", "DurationNs": "7000"}
    head = {"args": {"name": "GPU0"}, "ph": "M", "pid": 6, "name": "process_name"}
    (tmp_path / "results.json").write_text(json.dumps({"traceEvents": [{}, head, kernel]}))
    assert run(["trace", "summary", "--json", str(tmp_path)]) == 0
    out, said = capsys.readouterr()
    assert [Path(one["file"]).name for one in json.loads(out)["ranks"]] == ["results.json"]
    assert "results.csv: left out: results.json is of the same run" in " ".join(said.split())


def test_kernels_side_by_side_in_two_queues_keep_their_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thread is the same; what runs into the next kernel of its own queue would be cut."""
    head = {"args": {"name": "GPU0"}, "ph": "M", "pid": 6, "name": "process_name"}
    kernels = [
        {"ph": "X", "name": "mm", "pid": 6, "tid": 77, "ts": start, "dur": "9",
         "args": {"BeginNs": f"{start}000", "EndNs": f"{start + 9}000", "queue-id": queue}}
        for start, queue in ((2, "0"), (5, "1"))
    ]  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"traceEvents": [{}, head, *kernels]}))
    assert run(["trace", "kernels", "--json", str(path)]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["kernels"][0]["total_us"] == 18
