"""Nsight exports: the published numbers on the real files, and small files built by hand."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.trace.columns import ABSENT, Category, Kind
from ridgeline.trace.formats.nsight import read_nsight
from ridgeline.trace.load import read_traces

SHARED = Path(__file__).parents[3] / "shared"
FOLDER = SHARED / "data" / "traces" / "nsys_2gpu"
REFERENCE = SHARED / "notes" / "nsys_reference.json"
real = pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared")


def union_us(starts: np.ndarray, ends: np.ndarray) -> float:
    total, reached = 0.0, -np.inf
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


@real
@pytest.mark.parametrize("name", ["mfu_2gpu_before.sqlite", "mfu_2gpu_after.sqlite"])
def test_a_real_export_gives_the_reference_numbers(name: str) -> None:
    files = {entry["file"]: entry for entry in json.loads(REFERENCE.read_text())["files"]}
    expected = files[name]["devices"]
    traces = read_nsight(FOLDER / name)
    assert [str(trace.devices[0].index) for trace in traces] == sorted(expected)
    delays = []
    for trace in traces:
        want, gpu = expected[str(trace.devices[0].index)], trace.gpu
        kernels = gpu.kind == Kind.KERNEL
        talk = np.array(["nccl" in trace.names[index] for index in gpu.name])
        assert int(kernels.sum()) == want["kernels"]
        assert int(talk.sum()) == want["nccl_kernels"]
        assert int((~kernels).sum()) == want["mem_ops"]
        span = gpu.end_us.max() - gpu.start_us.min()
        busy = union_us(gpu.start_us, gpu.end_us)
        compute = kernels & ~talk
        assert span == pytest.approx(want["span_ms"] * 1e3, abs=0.01)
        assert busy == pytest.approx(want["busy_ms"] * 1e3, abs=0.01)
        assert union_us(gpu.start_us[compute], gpu.end_us[compute]) == pytest.approx(
            want["compute_ms"] * 1e3, abs=0.01
        )
        assert union_us(gpu.start_us[talk], gpu.end_us[talk]) == pytest.approx(
            want["comm_ms"] * 1e3, abs=0.01
        )
        assert gpu.duration_us[kernels].sum() == pytest.approx(
            want["kernel_sum_ms"] * 1e3, abs=0.01
        )
        host = trace.host
        launch = {
            number: start
            for number, start in zip(host.correlation.tolist(), host.start_us.tolist(), strict=True)
            if number != ABSENT
        }
        delays += [
            start - launch[number]
            for number, start, kind in zip(
                gpu.correlation.tolist(), gpu.start_us.tolist(), gpu.kind.tolist(), strict=True
            )
            if number in launch and kind == Kind.KERNEL
        ]
    assert len(delays) == files[name]["launch"]["matched"]
    median = files[name]["launch"]["launch_to_start_median_us"]
    assert float(np.median(delays)) == pytest.approx(median, abs=0.01)


@real
def test_torch_ranges_become_operators_that_own_their_kernels() -> None:
    trace = read_nsight(FOLDER / "mfu_2gpu_before.sqlite")[0]
    operators = trace.host.category == Category.OPERATOR
    names = {trace.names[index] for index in trace.host.name[operators]}
    assert "aten::to" in names
    assert not [name for name in names if "op_id" in name]
    owned = trace.gpu.external_id != ABSENT
    assert owned.mean() > 0.9
    by_id = dict(zip(trace.host.external_id[operators].tolist(),
                     trace.host.name[operators].tolist(), strict=True))  # fmt: skip
    flash = [index for index, name in enumerate(trace.gpu.name)
             if "flash_fwd_kernel" in trace.names[name] and owned[index]]  # fmt: skip
    owners = {trace.names[by_id[int(trace.gpu.external_id[index])]] for index in flash}
    assert owners
    assert all("Flash" in owner or "flash" in owner for owner in owners), owners


def an_export(path: Path, statements: list[str]) -> Path:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


INSERT = "INSERT INTO CUPTI_ACTIVITY_KIND_"
INSERT_DEVICE = "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES"
KERNELS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, shortName INTEGER)"
)


def test_an_export_of_an_old_schema_with_one_table_is_read(tmp_path: Path) -> None:
    path = an_export(
        tmp_path / "one.sqlite",
        [KERNELS, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 3500, 0, 7, 5, NULL, 1)"],
    )
    (trace,) = read_nsight(path)
    assert trace.gpu.duration_us.tolist() == [2.5]
    assert trace.gpu.blocks.tolist() == [ABSENT]
    assert np.isnan(trace.gpu.blocks_per_sm).all()
    assert len(trace.host) == len(trace.sync) == 0
    assert trace.rank is None


def test_two_processes_may_use_the_same_correlation_number(tmp_path: Path) -> None:
    calls = (
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER)"
    )
    first, second = 1 << 24, 2 << 24
    path = an_export(
        tmp_path / "two.sqlite",
        [
            KERNELS,
            calls,
            "CREATE TABLE StringIds (id INTEGER, value TEXT)",
            "INSERT INTO StringIds VALUES (1, 'work'), (2, 'cudaLaunchKernel_v7000')",
            f"{INSERT}KERNEL VALUES (1000, 2000, 0, 7, 5, {first}, 1)",
            f"{INSERT}KERNEL VALUES (3000, 4000, 1, 7, 5, {second}, 1)",
            f"{INSERT}RUNTIME VALUES (100, 200, {first + 9}, 5, 2)",
            f"{INSERT}RUNTIME VALUES (2100, 2200, {second + 9}, 5, 2)",
        ],
    )
    one, two = read_nsight(path)
    assert (one.rank, two.rank) == (0, 1)
    assert one.host.start_us.tolist() == [0.0]
    assert two.host.start_us.tolist() == [2.0]
    assert one.names[one.host.name[0]] == "cudaLaunchKernel"
    assert one.gpu.correlation.tolist() == one.host.correlation.tolist()
    assert one.gpu.correlation.tolist() != two.gpu.correlation.tolist()


def test_what_is_no_export_gets_one_clear_line(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("not a database at all, but long enough to be taken for one" * 20)
    half = tmp_path / "half.sqlite"
    half.write_bytes(
        an_export(tmp_path / "a.sqlite", [KERNELS, "CREATE TABLE b (c)"]).read_bytes()[:5000]
    )
    empty = an_export(tmp_path / "empty.sqlite", ["CREATE TABLE other (a INTEGER)"])
    for path in (text, half, empty, tmp_path / "absent.sqlite"):
        with pytest.raises(InputError) as caught:
            read_nsight(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_reading_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    path = an_export(
        tmp_path / "one.sqlite",
        [KERNELS, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 7, 5, NULL, 1)"],
    )
    before = path.read_bytes()
    read_nsight(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


NSYS = """#!/bin/sh
echo "$@" >> {log}
while [ "$1" != --output ]; do shift; done
{act}
"""


def a_fake_nsys(folder: Path, act: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir()
    log = folder / "calls"
    (folder / "nsys").write_text(NSYS.format(log=log, act=act))
    (folder / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return log


def test_a_report_is_read_through_nsys_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{INSERT}KERNEL VALUES ({n}000, {n}900, 0, 7, {n}, NULL, 1)" for n in range(1, 500)]
    an_export(tmp_path / "whole.sqlite", [KERNELS, *rows])
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"only nsys reads this")
    log = a_fake_nsys(tmp_path / "bin", f'cp {tmp_path}/whole.sqlite "$2"', monkeypatch)
    for _ in range(2):
        arguments = ["trace", "summary", str(report), "--json", "--cache", str(tmp_path / "cache")]
        assert run(arguments) == 0
        (rank,) = json.loads(capsys.readouterr().out)["ranks"]
        assert (rank["gpu_events"], rank["file"]) == (499, str(report))
        assert rank["busy_us"] == pytest.approx(499 * 0.9)
    (said,) = log.read_text().splitlines()  # the second answer comes from the cache
    assert said.startswith("export --type sqlite ")
    assert said.endswith(str(report))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bin", "cache", "run.nsys-rep", "whole.sqlite",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        ("echo 'The report is of a newer version' >&2; exit 3", "is of a newer version"),
        ("exit 0", "nsys export failed"),
        ('echo no database at all > "$2"', "not a whole sqlite export"),
    ],
)
def test_what_nsys_cannot_export_is_one_line(
    tmp_path: Path, act: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"only nsys reads this")
    a_fake_nsys(tmp_path / "bin", act, monkeypatch)
    with pytest.raises(InputError, match=expected) as caught:
        read_traces(report)
    assert str(caught.value).startswith(f"{report}: ")
    assert "\n" not in str(caught.value)


def test_a_report_without_nsys_says_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "run.qdrep"
    report.write_bytes(b"only nsys reads this")
    with pytest.raises(InputError, match=r"run: nsys export --type sqlite run\.qdrep"):
        read_traces(report)


def test_ranges_of_nvtx_alone_do_not_say_that_no_gpu_was_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ranges.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute(
            "CREATE TABLE NVTX_EVENTS (start INT, end INT, globalTid INT, text TEXT, textId INT)"
        )
        connection.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 77, ?, NULL)",
            [(1000, 9000, "step 1"), (2000, 5000, "forward"), (10_000, 18_000, "step 2")],
        )
    connection.close()
    run(["trace", "summary", str(file), "--json"])
    first = json.loads(capsys.readouterr().out)["verdict"][0]
    assert (first["cause"], first["confidence"]) == ("cpu-only", 0.5)
    assert "nsys profile --trace cuda,nvtx" in first["cure"]
    run(["trace", "idle", str(file)])
    said = " ".join(capsys.readouterr().out.split())
    assert "nsys profile --trace cuda,nvtx" in said
    assert "ProfilerActivity" not in said
    run(["trace", "annotations", str(file), "--json"])
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert {row["name"]: row["host_us"] for row in rank["ranges"]}["forward"] == 3.0


@pytest.mark.parametrize("visible", [False, True])
def test_processes_with_a_gpu_each_are_ranks_though_each_calls_its_gpu_by_the_same_number(
    tmp_path: Path, visible: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """With CUDA_VISIBLE_DEVICES every process sees one GPU, and that is its first."""
    one, two = 5001 << 24, 5002 << 24
    second = 0 if visible else 1
    path = an_export(
        tmp_path / "job.sqlite",
        [
            KERNELS,
            f"{INSERT}KERNEL VALUES (1000, 9000, 0, 7, 1, {one}, 1)",
            f"{INSERT}KERNEL VALUES (2000, 5000, {second}, 7, 1, {two}, 1)",
            "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)",
            f"{INSERT_DEVICE} (0, 0, 5001), (1, {second}, 5002)",
        ],
    )
    assert run(["trace", "summary", "--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)["ranks"]
    assert [(one["rank"], one["busy_us"]) for one in found] == [(0, 8.0), (1, 3.0)]
    assert [one["file"] for one in found] == [f"{path} (GPU 0)", f"{path} (GPU 1)"]
