"""How commands print, whichever they are: colours where they are wanted, whole words in pipes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeline.cli.commands import COMMANDS
from ridgeline.cli.help_page import _parameters
from ridgeline.cli.main import run
from ridgeline.cli.program import load_command
from ridgeline.queue.placement.rules import rule_names
from ridgeline.queue.policies import policy_names

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|9)\d(?:;\d+)*m")
FRAGMENT = re.compile(r"(Of|As|That|Those)\b")
TABLE = """source,model,layers,hidden,heads,vocab,seq,gpu,n_gpus,micro_batch,global_batch,\
metric_name,metric_value
a-laboratory-with-a-very-long/name-of-its-own,GPT,24,2048,16,51200,2048,A100,8,4,64,step_time_s,1.0
"""


def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = ["techniques", "compile"]
    assert run(words) == 0
    assert COLOUR.search(capsys.readouterr().out)
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(words) == 0
    assert not COLOUR.search(capsys.readouterr().out)
    monkeypatch.delenv("FORCE_COLOR")
    assert run(words) == 0
    assert "\x1b" not in capsys.readouterr().out, "a pipe is no terminal"


def test_in_a_pipe_no_word_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    (tmp_path / "table.csv").write_text(TABLE)
    assert run(["validate", "training", str(tmp_path / "table.csv")]) == 0
    text = capsys.readouterr().out
    assert "a-laboratory-with-a-very-long/name-of-it" in text
    assert "…" not in text


@pytest.mark.parametrize("words", [[], ["trace"], ["queue", "doctor"]])
def test_no_line_of_help_ends_in_blanks(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*words, "--help"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert not [line for line in lines if line != line.rstrip() or len(line) > 80]


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_what_help_says_of_an_option_can_be_read_alone(name: str) -> None:
    for parameter in load_command(name).params:
        said = getattr(parameter, "help", None)
        if not said or parameter.name == "help":
            continue
        assert len(said.split()) > 1, f"{name} {parameter.name}: {said}"
        assert said[0].isupper() or not said[0].isalpha(), f"{name} {parameter.name}: {said}"
        assert not FRAGMENT.match(said), f"{name} {parameter.name}: {said}"


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_one_word_stands_for_one_thing(name: str) -> None:
    """Devices are DEVICE; a path says whether it is a DIR or a file; arguments have capitals."""
    command = load_command(name)
    context = command.make_context(name, [], resilient_parsing=True)
    for panel, shown, _ in _parameters(command, context):
        option, _, value = shown.rpartition(" ")
        assert "..." not in shown
        assert not shown.startswith("["), "the page puts brackets around what may be left out"
        assert panel != "Arguments" or not shown.islower() or "|" in shown, shown
        assert value not in {"PATH", "FOLDER"}, f"{shown}: DIR, FILE, or what the file is"
        assert option not in {"--gpu", "--prefill-gpu", "--vehicle"} or value == "DEVICE", shown


@pytest.mark.parametrize(
    ("command", "known"), [("queue place", rule_names()), ("queue simulate", policy_names())]
)
def test_help_names_every_choice_that_is_found_by_name(command: str, known: list[str]) -> None:
    (policy,) = (one for one in load_command(command).params if one.name == "policy")
    there = policy.help.partition("There are ")[2].partition(".")[0]
    assert sorted(re.split(r", | and ", there)) == known
