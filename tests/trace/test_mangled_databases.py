"""Databases of profilers that lost a table, a column, types or their end: read, or one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.trace.test_rocprof import a_database, a_document

from ridgeline.cli.main import run

PROCESS, THREAD = 1 << 24, (1 << 24) + 3
NSIGHT: dict[str, tuple[str, list[tuple[object, ...]]]] = {
    "StringIds": ("id, value", [(1, "gemm"), (2, "cudaLaunchKernel_v7000"), (3, "step")]),
    "TARGET_INFO_GPU": ("id, name, smCount", [(0, "NVIDIA A100", 108)]),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start, end, deviceId, streamId, correlationId, globalPid, shortName, gridX, gridY, gridZ",
        [(at, at + 5000, 0, 7, at, PROCESS, 1, 10, 1, 1) for at in range(9000, 80000, 9000)],
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind",
        [(at, at + 900, 0, 7, at, PROCESS, 4096, 1) for at in range(15000, 80000, 9000)],
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start, end, globalTid, correlationId, nameId",
        [(at - 900, at - 400, THREAD, at, 2) for at in range(9000, 80000, 9000)],
    ),
    "NVTX_EVENTS": (
        "start, end, eventType, text, textId, globalTid",
        [(at, at + 8000, 59, None, 3, THREAD) for at in range(8000, 80000, 9000)],
    ),
}


def nsight(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for table, (columns, rows) in NSIGHT.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
            places = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608
        connection.commit()
    return path


def rocpd(path: Path) -> Path:
    return a_database(path, a_document())


WRITERS = {"nsight": (nsight, "run.sqlite"), "rocpd": (rocpd, "run.db")}
VALUES = ("NULL", "'soon'", "x'00ff'", "1e300", "-1", "9223372036854775807", "''")


def answers_or_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], question: str = "summary"
) -> None:
    code = run(["trace", question, str(path), "--json"])
    shown = capsys.readouterr()
    assert code in (0, 2), (path, shown.err)
    if code == 2:
        assert shown.err.count("\n") == 1, shown.err
        assert shown.out == ""


def of_each_column(path: Path) -> list[tuple[str, str]]:
    """Every table with each of its columns."""
    known = "SELECT name FROM sqlite_master WHERE type = 'table'"
    found = []
    with closing(sqlite3.connect(path)) as connection:
        for (table,) in connection.execute(known).fetchall():
            columns = connection.execute(f'PRAGMA table_info("{table}")')
            found += [(table, column) for _, column, *_ in columns]
    return found


@pytest.fixture(params=sorted(WRITERS))
def kind(request: pytest.FixtureRequest) -> tuple[Callable[[Path], Path], str]:
    return WRITERS[request.param]


def changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def test_a_database_without_one_of_its_tables(
    tmp_path: Path, kind: tuple[Callable[[Path], Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    writer, name = kind
    whole = writer(tmp_path / name).read_bytes()
    for table in sorted({table for table, _ in of_each_column(tmp_path / name)}):
        for number, what in enumerate(("DROP TABLE", "DELETE FROM")):
            path = tmp_path / f"{table}{number}{name}"
            path.write_bytes(whole)
            changed(path, f'{what} "{table}"')
            answers_or_one_line(path, capsys, "critical-path" if number else "summary")


@pytest.mark.sweep(every=16)
@pytest.mark.parametrize("value", [None, *VALUES])
@pytest.mark.parametrize("every", [1, 3])
def test_a_database_of_which_a_column_is_gone_or_holds_something_else(
    tmp_path: Path,
    kind: tuple[Callable[[Path], Path], str],
    value: str | None,
    every: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer, name = kind
    whole = writer(tmp_path / name)
    for number, (table, column) in enumerate(of_each_column(whole)):
        path = tmp_path / f"{number}{name}"
        path.write_bytes(whole.read_bytes())
        gone = f'ALTER TABLE "{table}" DROP COLUMN "{column}"'
        other = f'UPDATE "{table}" SET "{column}" = {value} WHERE rowid % {every} = 0'  # noqa: S608
        try:
            changed(path, gone if value is None else other)
        except sqlite3.Error:  # a key holds no text, and stays
            continue
        answers_or_one_line(path, capsys)


def test_a_database_that_was_cut(
    tmp_path: Path, kind: tuple[Callable[[Path], Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    writer, name = kind
    content = writer(tmp_path / name).read_bytes()
    for end in (1, 15, 16, 99, 100, 4096, len(content) // 2, len(content) - 1):
        path = tmp_path / f"{end}{name}"
        path.write_bytes(content[:end])
        answers_or_one_line(path, capsys)
