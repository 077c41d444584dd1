"""Tables on narrow terminals: headings and figures are whole, whatever the command."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text
from tests.cli.test_trace import EVENTS, ONE_FILE
from tests.report.records import a_ledger, a_profile, findings
from tests.report.test_compression import ledger as a_compression
from tests.report.test_load_test import found_by as a_load_test
from tests.report.test_load_test import point
from tests.trace.written import write

import ridgeline
from ridgeline.cli.main import run
from ridgeline.records import Verdict
from ridgeline.report.fitted_table import FittedTable
from ridgeline.report.terminal import terminal_view
from ridgeline.report.views.compress import compression_document
from ridgeline.report.views.doctor import profile_document
from ridgeline.report.views.loadtest import load_test_document
from ridgeline.report.views.tune import ledger_document

SOURCE = Path(ridgeline.__file__).parent
MODEL = ["--model", "Llama-3.1-8B"]
TRAINING = [*MODEL, "--cluster", "16xH100", "--seq", "4096", "--global-batch", "64"]
LOAD = ["--prompt", "512", "--answer", "128"]
TABLE = """source,model,layers,hidden,heads,vocab,seq,gpu,n_gpus,micro_batch,global_batch,\
metric_name,metric_value
a laboratory with a long name,GPT-x,24,2048,16,51200,2048,A100,8,4,64,step_time_s,1.0
"""
COMMANDS = {
    "roofline of one device": ["roofline", "gpt2", "--device", "h100"],
    "roofline of three": ["roofline", "gpt2", "--device", "h100", "--device", "a100",
                          "--device", "b200"],
    "predict training": ["predict", "training", *TRAINING],
    "plan training": ["plan", "training", *TRAINING, "--tokens", "1B"],
    "predict serving": ["predict", "serving", *MODEL, "--gpu", "H100", "--rate", "1", *LOAD],
    "plan serving": ["plan", "serving", *MODEL, "--rate", "5", *LOAD],
    "simulate serving": ["simulate", "serving", *MODEL, "--gpu", "H100", "--rate", "2",
                         "--requests", "20", "--what-if", "tp=2"],
    "validate training": ["validate", "training", "table.csv"],
    "compare": ["compare", "run.json", "run.json"],
    "hardware": ["hardware"],
    "hardware --list": ["hardware", "--list"],
    "hardware --device": ["hardware", "--device", "h100"],
}  # fmt: skip
VIEWS: dict[str, RenderableType] = {
    "doctor": terminal_view(profile_document(a_profile(), findings(), Verdict.COMPUTE_BOUND)),
    "tune": terminal_view(ledger_document(a_ledger())),
    "compress": terminal_view(compression_document(a_compression())),
    "loadtest": terminal_view(
        load_test_document(a_load_test(curve=(point(1.0, False), point(2.0, True))))
    ),
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FittedTable]]:
    """Every table that is drawn, as it was made."""
    tables: list[FittedTable] = []
    draw = FittedTable.__rich_console__

    def remembered(table, console, options):
        tables.append(table)
        return draw(table, console, options)

    monkeypatch.setattr(FittedTable, "__rich_console__", remembered)
    yield tables
    assert tables, "no table was drawn"


def check_whole(tables: list[FittedTable], text: str) -> None:
    """All words of headings, and all figures, stand in what was printed."""
    for table in tables:
        for column in table.columns:
            words = str(column.header).split() if table.show_header else []
            if column.justify == "right":
                words += [word for cell in column._cells for word in plain(cell).split()]
            assert [word for word in words if word not in text] == []


def plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_cuts_a_heading_or_a_figure(
    name: str,
    width: int,
    drawn: list[FittedTable],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    (tmp_path / "table.csv").write_text(TABLE)
    import msgspec

    (tmp_path / "run.json").write_bytes(msgspec.json.encode(a_profile()))
    assert run(COMMANDS[name]) == 0
    text = capsys.readouterr().out
    check_whole(drawn, text)
    assert max(map(len, text.splitlines())) <= width or name == "plan training"  # long commands


@pytest.mark.parametrize("width", [80, 60])
def test_no_question_to_a_trace_cuts_a_heading_or_a_figure(
    width: int,
    drawn: list[FittedTable],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    trace = str(write(tmp_path / "rank0.json.gz", EVENTS))
    for word in ONE_FILE:
        drawn.clear()
        assert run(["trace", word, trace]) == 0
        check_whole(drawn, capsys.readouterr().out)
    assert run(["trace", "summary", trace]) == 0


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("name", VIEWS)
def test_no_view_cuts_a_heading_or_a_figure(
    name: str, width: int, drawn: list[FittedTable]
) -> None:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(VIEWS[name])
    check_whole(drawn, captured.get())


@given(
    st.lists(st.text("abc 0123", min_size=1, max_size=14), min_size=1, max_size=9),
    st.integers(30, 100),
    st.integers(1, 2),
)
def test_every_figure_of_every_table_is_drawn_once(
    headings: list[str], width: int, lead: int
) -> None:
    table = FittedTable("row", *(["name"] if lead == 2 else []), box=None, lead=lead)
    for place, heading in enumerate(headings):
        table.add_column(f"{heading.strip() or 'x'}{place}", justify="right")
    table.add_row(
        "r", *(["n"] if lead == 2 else []), *(f"={place}=" for place in range(len(headings)))
    )
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    assert "…" not in text
    assert [text.count(f"={place}=") for place in range(len(headings))] == [1] * len(headings)
    assert max(map(len, text.splitlines())) <= width


def test_tables_are_drawn_by_the_renderer_alone() -> None:
    others = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in [*(SOURCE / "report").rglob("*.py"), *(SOURCE / "cli").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "rich.table"
        and path.name not in ("terminal.py", "fitted_table.py")
    ]  # fmt: skip
    assert others == []
