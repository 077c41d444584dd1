"""`ridgeline trace … --out`: the answer as CSV or Parquet, a row per record."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from tests.cli.test_overwriting import JOINED, TABLED
from tests.trace.written import call, host, kernel, step, write

from ridgeline.cli.main import run
from ridgeline.cli.trace_questions import QUESTIONS

EVENTS = [
    step(0, 100, 1),
    step(100, 100, 2),
    host(0, 50, "aten::mm"),
    host(0, 60, "nn.Module: Net_0", "python_function"),
    call(5, 5, 1),
    kernel(20, 30, correlation=1, name='gemm<2, "large">'),
    call(60, 5, 2),
    kernel(80, 10, correlation=2, name="ncclDevKernel_AllReduce"),
    kernel(120, 30, correlation=1, name='gemm<2, "large">'),
    kernel(150, 10, correlation=2, name="ncclDevKernel_AllReduce"),
]
SINGLE = tuple(word for word in TABLED if word not in JOINED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in range(2):
        write(traces / f"rank{rank}.json", EVENTS)
    return traces


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return found
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("word", SINGLE)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_question_writes_its_rows_with_the_keys_of_its_json(
    folder: Path, tmp_path: Path, word: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"table{suffix}"
    assert run(["trace", word, str(folder), "--json", "--out", str(out)]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    field = QUESTIONS[word].rows or ("devices" if word == "memory" else "")
    told = [(rank, one) for rank in ranks for one in (rank[field] if field else [rank])]
    rows = read(out)
    assert len(rows) == len(told)
    for row, (rank, one) in zip(rows, told, strict=True):
        assert row["file"] == rank["file"]
        assert str(row["rank"]) == str(rank["rank"])
        for key, value in one.items():
            if isinstance(value, str):
                assert row[key] == value
            elif isinstance(value, float | int) and not isinstance(value, bool):
                assert float(row[key]) == value


def test_columns_do_not_depend_on_what_there_is_to_tell(tmp_path: Path) -> None:
    heads = []
    for name, events in {"full": EVENTS, "empty": [host(0, 5, "aten::mm")]}.items():
        path, out = write(tmp_path / f"{name}.json", events), tmp_path / f"{name}.csv"
        assert run(["trace", "kernels", str(path), "--out", str(out)]) == 0
        heads.append(out.read_text().splitlines()[0])
    assert heads[0] == heads[1]
    assert "roofline_bound" in heads[0].split(",")
    assert (tmp_path / "empty.csv").read_text().count("\n") == 1


def test_numbers_and_absence_keep_their_kinds_in_parquet(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.parquet"
    assert run(["trace", "kernels", str(folder), "--out", str(out)]) == 0
    table = parquet.read_table(out)
    kinds = {name: str(table.schema.field(name).type) for name in table.schema.names}
    assert (kinds["rank"], kinds["count"], kinds["total_us"]) == ("int64", "int64", "double")
    assert (kinds["name"], kinds["tensor_cores"], kinds["roofline_flops"]) == (
        "string", "bool", "double",
    )  # fmt: skip
    assert table.column("rank").to_pylist() == [0, 0, 1, 1]
    assert table.column("roofline_flops").null_count == 4
    assert table.column("name")[0].as_py() == 'gemm<2, "large">'


def test_ranks_write_a_row_per_kernel(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    assert run(["trace", "ranks", str(folder), "--out", str(out)]) == 0
    assert [row["kernel_class"] for row in read(out)] == ["gemm", "communication"]


@pytest.mark.parametrize(
    ("word", "field"), [("critical-path", "names"), ("stragglers", "collectives")]
)
def test_questions_that_join_ranks_write_the_rows_of_their_list(
    folder: Path, tmp_path: Path, word: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.csv"
    assert run(["trace", word, str(folder), "--json", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)[field]
    rows = read(out)
    assert len(rows) == len(told) > 0
    assert [row["name"] for row in rows] == [one["name"] for one in told]


def test_a_tree_writes_a_row_per_node_under_its_path(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.csv"
    assert run(["trace", "tree", str(folder), "--json", "--out", str(out)]) == 0
    waiting = [node for roots in json.loads(capsys.readouterr().out)["ranks"] for node in roots]
    told = []
    while waiting:
        node = waiting.pop()
        told.append((node["name"], node["calls"], node["host_us"]))
        waiting += node["children"]
    rows = read(out)
    assert sorted((r["name"], int(r["calls"]), float(r["host_us"])) for r in rows) == sorted(told)
    for row in rows:
        assert row["path"].count(";") == int(row["depth"])
        assert row["path"].endswith(row["name"])


@pytest.mark.parametrize(("by", "field"), [("operator", "operators"), ("kernel", "kernels")])
def test_a_comparison_writes_what_it_was_aligned_by(
    folder: Path, tmp_path: Path, by: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, one = tmp_path / "table.csv", str(folder / "rank0.json")
    assert run(["trace", "compare", one, one, "--by", by, "--json", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)["ranks"][0][field]
    assert [(row["name"], row["status"]) for row in read(out)] == [
        (row["name"], row["status"]) for row in told
    ]


def test_the_terminal_says_what_was_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.csv"
    assert run(["trace", "steps", str(folder), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{out}: 4 rows"


@pytest.mark.parametrize("name", ["table", "table.xlsx", "table.csv.gz"])
def test_another_kind_of_file_is_refused_before_traces_are_read(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text("no trace")
    assert run(["trace", "kernels", str(damaged), "--out", str(tmp_path / name)]) == 2
    shown = capsys.readouterr()
    assert "name a file that ends in .csv or .parquet" in shown.err
    assert shown.err.count("\n") == 1


def test_parquet_without_pyarrow_says_how_to_get_it(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "table.parquet"
    assert run(["trace", "kernels", str(folder), "--out", str(out)]) == 2
    shown = capsys.readouterr()
    assert "pip install pyarrow" in shown.err
    assert (shown.err.count("\n"), shown.out, out.exists()) == (1, "", False)


def test_a_table_that_cannot_be_written_leaves_what_was_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    out = tmp_path / "file" / "table.csv"
    assert run(["trace", "kernels", str(folder), "--out", str(out)]) == 2
    assert f"--out {out}: the folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "no folder"
