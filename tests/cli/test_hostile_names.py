"""Names that come from a file steer no terminal, whichever command shows them and wherever."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.report.drawn import drawn
from tests.report.records import a_profile, an_environment, findings
from tests.trace.written import call, document, host, kernel, step

from ridgeline.cli.main import run
from ridgeline.cli.trace_questions import QUESTIONS
from ridgeline.records import Verdict
from ridgeline.report.document import Lead, Paragraph, ReportDocument
from ridgeline.report.markdown import draw_markdown
from ridgeline.report.page import draw_page
from ridgeline.report.views.doctor import profile_document

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\r\x1b\[1A\x1b\[2K|\r\x1b\[2K")
"""Colours, and the line that says what is under way."""
EVIL = (
    "\x1b[2J\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31m\x07bell\x08\x08back\rover",
    "\u202egnp.exe\u2066",
    "[red]markup[/nope] [link=http://evil.example]",
)
ALL = "".join(EVIL)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A trace of which every name is hostile, in a file that is called so too."""
    import json

    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": ALL}},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": ALL}},
    ]
    for number in range(1, 9):
        at = 1000.0 * number
        events += [
            step(at, 900, number),
            host(at, 800, f"{ALL}.py(3): main", "python_function"),
            host(at + 1, 700, f"aten::{ALL}", **{"Input Dims": [[4, 4]], "External id": number}),
            call(at + 2, 5, number),
            call(at + 90, 300, 100 + number, "cudaStreamSynchronize"),
            kernel(at + 20, 200, correlation=number, name=f"gemm {ALL}"),
            kernel(at + 230, 90, name=f"ncclDevKernel_AllReduce {ALL}",
                   **{"Collective name": "allreduce", "Process Group Description": ALL}),
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1,
             "tid": 1, "ts": at + 2, "args": {"Bytes": 512, "Addr": number, "Device Type": 1,
                                              "Device Id": 0, "Total Allocated": 512 * number}},
        ]  # fmt: skip
    path = tmp_path / f"{ALL.replace('/', '')}.json"
    devices = [{"id": 0, "name": ALL}]
    path.write_text(json.dumps(document(events, deviceProperties=devices), ensure_ascii=False))
    return path


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    run(words)
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_hostile_name_steers_no_terminal(
    question: str,
    hostile: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool,
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
    files = [str(hostile)] * (2 if question in {"compare", "stragglers", "ranks"} else 1)
    out = {"export": ["--out", str(tmp_path / "\x1b[2Jout.json")],
           "report": ["--html", str(tmp_path / "\x1b[2Jout.html")]}.get(question, [])  # fmt: skip
    for more in ([], ["--json"]):
        text = shown(["trace", question, *files, *out, *more], capsys)
        assert len(text) > 20
        assert not STEERING.search(OURS.sub("", text) if terminal else text)
    if question == "report":
        page = (tmp_path / "\x1b[2Jout.html").read_text()
        assert not STEERING.search(page)


def test_what_looks_like_markup_of_ours_is_text(
    hostile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    text = shown(["trace", "kernels", str(hostile)], capsys)
    assert EVIL[3] in text
    assert "\\u001b[2J" in text, "one sees that something is odd"


def test_errors_are_one_line_that_steers_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["trace", "idle"], ["evaluate"], ["compare", "x"], ["explain"]):
        text = shown([*words, str(tmp_path / "\x1b[31mno\u202e\r.json")], capsys)
        assert text.count("\n") == 1
        assert not STEERING.search(text)


def test_every_renderer_shows_what_steers() -> None:
    profile = a_profile(environment=an_environment(command=[ALL]))
    for view in (
        profile_document(profile, findings(), Verdict.COMPUTE_BOUND),
        ReportDocument(ALL, [Lead(ALL), Paragraph(ALL)]),
    ):
        for text in (drawn(view, 80), draw_markdown(view), draw_page(view)):
            own = text.partition("<script")[0]  # what plotly.js holds is its own
            assert len(own) > 10
            assert not STEERING.search(own)
