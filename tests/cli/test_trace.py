"""`ridgeline trace …` from the command line: two words, one document, one line for bad input."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
from tests.trace.written import call, host, kernel, step, write

from ridgeline.cli.commands import COMMANDS
from ridgeline.cli.main import run
from ridgeline.cli.trace_questions import QUESTIONS, TraceQuestion
from ridgeline.trace.time.summary import RankSummary

ONE_FILE = (
    "summary",
    "idle",
    "kernels",
    "overlap",
    "communication",
    "copies",
    "launch",
    "sync",
    "steps",
    "operators",
    "memory",
)
EVENTS = [
    step(0, 100, 1),
    host(0, 50, "aten::mm"),
    call(5, 5, 1),
    kernel(20, 30, correlation=1),
    call(60, 5, 2),
    kernel(80, 10, correlation=2, name="ncclDevKernel_AllReduce"),
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write(tmp_path / "rank0.json.gz", EVENTS))


@pytest.mark.parametrize("word", ONE_FILE)
def test_a_command_prints_one_json_document(
    trace: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", word, trace, "--json"]) == 0
    shown = capsys.readouterr()
    (rank,) = json.loads(shown.out)["ranks"]
    assert (rank["file"], rank["rank"]) == (trace, 0)
    assert shown.err == ""


SHOWN = {
    "summary": r"rank 0 +70\.0 µs +57 % +43 % +14 %",
    "idle": r"30\.0 µs +host +ProfilerStep#1",
    "kernels": r"ncclDevKernel_AllReduce +communication +1 +10\.0 µs +25 %",
    "overlap": r"rank 0 +70\.0 µs +30\.0 µs +10\.0 µs +0 % +10\.0 µs",
    "communication": r"all-reduce +1 +10\.0 µs",
    "copies": "rank 0: no copies",
    "launch": r"rank 0 +yes +43 % +17\.5 µs",
    "sync": "rank 0: 0 waits block the host",
    "steps": r"1 +100 µs +50\.0 µs +50\.0 µs +40\.0 µs +10\.0 µs",
    "operators": r"aten::mm +1 +50\.0 µs +50\.0 µs +30\.0 µs",
    "memory": "rank 0: no allocation in the trace",
}


@pytest.mark.parametrize("word", ONE_FILE)
def test_a_command_shows_a_table(trace: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", word, trace]) == 0
    assert re.search(SHOWN[word], capsys.readouterr().out)


def test_the_summary_keeps_its_contract(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "summary", trace, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"ranks", "verdict"}
    assert set(document["ranks"][0]) >= {
        "file",
        "rank",
        "gpu_events",
        "window_us",
        "busy_us",
        "idle_us",
        "compute_us",
        "communication_us",
        "communication_exposed_us",
        "overlap_ratio",
        "copy_us",
        "host_wait_us",
        "dependency_wait_us",
        "kernel_wait_us",
        "unknown_wait_us",
        "steps",
        "warnings",
    }
    assert document["ranks"][0]["window_us"] == 70
    for finding in document["verdict"]:
        assert set(finding) >= {"cause", "share", "worth_us", "confidence", "evidence", "cure"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["summary", "nowhere.json"], "nowhere.json: there is no such file"),
        (["sync", "{trace}", "--window", "day"], "'--window': 'day' is not one of 'trace'"),
        (
            ["operators", "{trace}", "--by", "colour"],
            "'--by': 'colour' is not one of 'name', 'shape', 'line'",
        ),
        (["summary"], "Missing argument"),
        (["sumary", "{trace}"], "did you mean `ridgeline trace summary`?"),
        ([], "trace needs a second word"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    trace: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", *(word.format(trace=trace) for word in arguments)]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize("question", [one for one in QUESTIONS.values() if one.analysis])
def test_a_row_names_an_analysis_that_takes_its_options(question: TraceQuestion) -> None:
    module, _, name = question.analysis.partition(":")
    analysis = getattr(importlib.import_module(module), name)
    assert set(question.options) <= set(inspect.signature(analysis).parameters)
    assert question.view, "an analysis needs a view"


def test_help_lists_the_questions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name.partition(" ")[2] in shown for name in COMMANDS if name.startswith("trace "))


@pytest.mark.parametrize("page", ["reference/trace.md", "how-to/read-a-trace.md"])
def test_the_documents_show_commands_that_exist(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    shown = re.findall(r"^\s*ridgeline trace ([a-z-]+) .*$", text, re.MULTILINE)
    assert len(shown) >= 4
    for word in shown:
        assert f"trace {word}" in COMMANDS


def test_the_reference_shows_every_key_of_the_summary() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/trace.md").read_text()
    for key in RankSummary.__struct_fields__:
        if not key.endswith("_wait_us"):
            assert f"`{key}`" in text


@pytest.mark.parametrize("dims", [5, "x", [5, 6], [None], [[-1, 10**30]]])
def test_shapes_that_are_none_are_left_out(
    dims: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ["[" * 100_000] * 9
    strange = host(0, 10, "aten::conv2d", **{"Input Dims": dims, "Concrete Inputs": values})
    path = str(write(tmp_path / "odd.json", [strange, kernel(5, 10)]))
    assert run(["trace", "operators", "--by", "shape", path]) == 0
    assert run(["doctor", "--trace", path]) == 0
    capsys.readouterr()
