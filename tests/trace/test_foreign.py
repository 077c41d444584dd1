"""Files of other programs are refused by name, with what to do; none is called a CPU run."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, document, host, kernel, write

from ridgeline.cli.main import run
from ridgeline.trace.foreign import foreign_programs

EVENTS = 5000


def process(pid: int | str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def spans(count: int, **extra: Any) -> list[dict[str, Any]]:
    return [
        {"ph": "X", "pid": 1, "tid": 2, "ts": 10.0 * number, "dur": 7.0, "name": "work", **extra}
        for number in range(count)
    ]


JAX = [process(1, "/device:GPU:0"), process(701, "/host:CPU"), *spans(EVENTS)]
ASCEND = [
    process(1, "Ascend Hardware"), process(2, "CANN"), process(3, "Overlap Analysis"),
    *spans(EVENTS), *(host(10 * number, 5, "aten::mm") for number in range(EVENTS)),
]  # fmt: skip
CHROME = [
    *spans(EVENTS, cat="devtools.timeline,v8"),
    *spans(100, cat="blink.user_timing"),
    process(1, "Renderer"),
]
TENSORFLOW = [
    process(1, "/job:localhost/replica:0/task:0/device:GPU:0 Compute"),
    *spans(EVENTS, cat="Op"),
]
EXPORTED = [
    process(1, "rank 0 host"), process(2, "rank 0 GPU"), process(1_000_000, "critical path"),
    *spans(EVENTS, cat="gemm"), *spans(EVENTS, cat="operator"),
]  # fmt: skip
ASYNCHRONOUS = [
    {"ph": phase, "cat": "requests", "name": "resnet50", "id": number, "pid": 1, "tid": 1, "ts": at}
    for number in range(EVENTS)
    for phase, at in (("b", number), ("e", number + 5))
]
BEFORE_TORCH_PROFILER = [
    {"ph": "X", "pid": sort, "tid": 1, "ts": 10.0 * number, "dur": 7.0, "name": "mm", "args": {}}
    for number in range(EVENTS)
    for sort in ("CPU functions", "CUDA functions")
]
ONNX_RUNTIME = [
    *spans(3, cat="Session"), *spans(EVENTS, cat="Node", args={"op_name": "Conv"}),
    *spans(EVENTS, cat="Kernel", args={"stream": "7"}),
]  # fmt: skip
ROCPROF = [process(1, "COPY"), process(2, "CPU HIP API"), process(6, "GPU0"), *spans(9)]
UNKNOWN = [*spans(EVENTS, cat="render"), *spans(100, cat="network")]


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (JAX, "JAX or another XLA program"),
        (ASCEND, "Ascend"),
        (CHROME, "Chrome or Chromium"),
        (TENSORFLOW, "TensorFlow"),
        (ROCPROF, "results.db, which lies beside it"),
        (EXPORTED, "ridgeline exported"),
        (UNKNOWN, "none of its 5,100 events is of torch.profiler (categories: render, network)"),
        (ASYNCHRONOUS, "is of torch.profiler (categories: requests)"),
        (spans(EVENTS, cat="fee"), "VizTracer"),
        ([process(3, "HCCL"), *spans(9)], "Ascend"),
        (spans(9, cat="FP_BP Time"), "Ascend"),
        ([process(1, "cond/HorovodAllreduce_grads_7_0"), *spans(9)], "Horovod"),
        ([process(2, "GPU2"), *spans(9)], "rpd2tracing"),
        (BEFORE_TORCH_PROFILER, "torch.autograd.profiler"),
        (ONNX_RUNTIME, "ONNX Runtime"),
        ({"$schema": "https://www.speedscope.app/file-format-schema.json"}, "speedscope"),
        ({"nodes": [{"id": 1, "callFrame": {}}], "samples": []}, "V8"),
        ({"elapsed_time_sec": 3.6, "files": {}}, "Scalene"),
        (
            {"duration": 1, "sample_count": 9, "root_frame": {"function": "<module>"}},
            "pyinstrument",
        ),
        ({"schema": "1.0.2-chakra.0.0.4", "pid": 1, "nodes": []}, "execution trace"),
        ({"ranks": [{"file": "x"}], "verdict": []}, "ridgeline trace --json"),
        ({"learning_rate": 0.1}, "no profiler trace"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_json_of_another_program_is_named(
    tmp_path: Path, content: Any, said: str, packed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"traceEvents": content} if isinstance(content, list) else content
    text = json.dumps(whole).encode()
    path = tmp_path / "trace_view.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    refused_in_one_line(path, said, capsys)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "memory.json",
            b"[[1726077563878112, 1726077563891027], [[1, 2], [3, 4]]]",
            "export_memory_timeline",
        ),
        ("run.ncu-rep", b"NVR\0", "Nsight Compute"),
        ("trace.pftrace", b"\x0a\x10\xff", "Perfetto"),
        ("trace.perfetto-trace", b"\x0a\x10\xff", "Perfetto"),
        ("traces.zip", b"PK\3\4rest", "zip archive"),
        ("any.name", b"PK\3\4rest", "zip archive"),
        ("t.json.xz", b"\xfd7zXZ\0rest", "packed with xz"),
        ("t.json.bz2", b"BZh91AY&SYrest", "unpack it"),
        ("t.json.gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:a", "git lfs pull"),
        ("t.json", b"\n<!DOCTYPE html>\n<html><body>404</body></html>", "its raw address"),
        ("old.nvvp", b"SQLite format 3\0", "nvprof"),
        ("ranks.tar", b"rank0.json", "tar archive"),
        (
            "results.csv",
            b'"Index","KernelName","gpu-id"\n0,"add",4',
            "results.db, which lie beside it",
        ),
        ("1_kernel_trace.csv", b'"Kind","Agent_Id","Queue_Id"\n"KERNEL",1,1', "a table of rocprof"),
        ("1_hip_api_trace.csv", b'"Domain","Function","Process_Id"\n1', "a table of rocprof"),
        ("report1_cuda_gpu_trace.csv", b"Start (ns),Duration (ns),CorrId\n1,2,3", "nsys stats"),
        ("report1_cuda_gpu_kern_sum.csv", b"Time (%),Total Time (ns)\n1,2", "nsys stats"),
        ("kern_sum.csv", b"NOTICE: Existing export\nTime (%),Total Time (ns)\n1", "nsys stats"),
        ("ncu.csv", b'==PROF== Connected\n"ID","Process ID","Process Name",', "trace counters"),
        ("pmc_perf.csv", b"Dispatch_ID,Kernel_Name,GPU_ID\n0,mm,1", "rocprof's counters"),
        ("kernel_details.csv", b"Step Id,Name,Type,Accelerator Core\n50,Cast,a,b", "msprof"),
        ("op_summary_1.csv", b"Device_id,Model ID,Task ID,OP Type,Task Type\n0,1,2", "msprof"),
        ("stats.prof", b"\xfb)\x03\xfag/usr/local/lib/x.py", "pstats"),
        ("a.out", b"\x7fELF\2\1\1\0\0\0\0\0", "run it under a profiler"),
        ("profile.json", b'[{"count": 9}, {"name": "a", "timeMs": 2.1}]', "--exportProfile"),
        ("times.json", b'[{"endInMs": 0.2, "computeMs": 0.8}]', "--exportTimes"),
    ],
)
def test_a_file_of_another_program_is_named(
    tmp_path: Path, name: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused_in_one_line(path, said, capsys)


@pytest.mark.parametrize(
    ("table", "said"),
    [("read_only_op_instances", "a database of DLProf"), ("users", "none that nsys exported")],
)
def test_a_database_of_another_program_is_named(
    tmp_path: Path, table: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {table} (id)")
        connection.commit()
    refused_in_one_line(path, said, capsys)


def test_an_archive_of_traces_is_not_read_as_one_trace_whatever_it_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("a.json", "b.json"):
            archive.add(write(tmp_path / name, [call(0, 2, 1), kernel(5, 9, correlation=1)]), name)
    for name in ("traces.tar.gz", "traces.json.gz"):
        path = tmp_path / name
        path.write_bytes(packed.getvalue())
        refused_in_one_line(path, "unpack it and name the traces inside", capsys)


def refused_in_one_line(path: Path, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "summary", str(path), "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert f"{path}: " in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["/device:GPU:0", "rank 0 GPU", "Ascend Hardware"])
def test_a_trace_with_gpu_work_is_read_whatever_its_processes_are_called(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "x.json", [process(0, name), call(0, 5, 1), kernel(9, 5)])
    assert run(["trace", "summary", str(path), "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["gpu_events"] == 1


def test_a_trace_of_torch_beside_strange_events_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [*spans(100, cat="devtools.timeline"), call(0, 5, 1), kernel(9, 5)]
    text = json.dumps(document(events))
    path = tmp_path / "x.json"
    path.write_text(text)
    assert run(["trace", "summary", str(path), "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["gpu_events"] == 1
    assert rank["warnings"] == ["100 events of category 'devtools.timeline' were not used"]


def test_every_program_has_a_sign_and_an_advice() -> None:
    for program in foreign_programs():
        signs = (program.suffixes, program.magic, program.document, program.process)
        assert any(signs) or program.category or program.table, program.name
        assert program.advice
        assert not program.advice.endswith(".")
