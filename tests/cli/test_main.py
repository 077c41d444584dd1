"""The program as a whole: exit codes, one clear line on bad input, and a light start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli.commands import COMMANDS, PANELS
from ridgeline.cli.main import run
from ridgeline.cli.program import load_command


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_without_a_command_the_overview_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([]) == 2
    assert "Usage: ridgeline" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tun"], "did you mean `ridgeline tune`?"),
        (["frobnicate"], "see `ridgeline --help`"),
        (["doctor"], "SCRIPT"),
        (["doctor", "--", "missing.py"], "missing.py: no such script"),
        (["doctor", "--stpes", "3", "--", "x.py"], "--stpes"),
        (["doctor", "train.py", "--lr", "1"], "stands after `--`: ridgeline doctor -- train.py"),
        (["doctor", "--steps", "many", "--", "x.py"], "valid integer"),
        (["doctor", "--steps", "0", "--", __file__], "--steps must be at least 1"),
        (["tune", "--", "missing.py"], "missing.py: no such script"),
        (["tune", "--budget", "-1", "--", __file__], "--budget must be above 0"),
        (["tune", "--only", "warp-drive", "--", __file__], "no technique 'warp-drive'; known:"),
        (["run", "--stack", "gone.toml", "--", __file__], "gone.toml: no such file"),
        (["run", "--", __file__], "--stack"),
        (["compare", "a.json"], "B.json"),
        (["compare", "a.json", "b.json"], "b.json: no such file"),
        (["hardware", "--device", "h1000"], "h100"),
        (["plan"], "plan needs a second word: `ridgeline plan training`"),
        (["plan", "--json"], "plan needs a second word: `ridgeline plan training`"),
        (["plan", "trainin"], "did you mean `ridgeline plan training`?"),
        (["plan", "42"], "see `ridgeline plan --help`"),
        (["simulate", "serving", "--device", "h100"], "--device; here it is --gpu; see"),
        (["roofline", "x", "--gpu", "h100"], "--gpu; here it is --device; see"),
        (["plann", "training"], "did you mean `ridgeline plan`?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("ridgeline: ")
    assert message in captured.err


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_names_its_options_whole_on_a_narrow_terminal(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: ridgeline {name} [OPTIONS]" in out
    assert max(map(len, out.splitlines())) <= 80
    shown = out.replace(",", " ").split()
    for one in load_command(name).params:
        if one.param_type_name == "option":
            assert {*one.opts, *one.secondary_opts} <= {*shown}
        assert all(word in out for word in (one.metavar or "").split()), one.metavar


def test_the_overview_is_grouped_by_what_one_wants(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(PANELS) == {name.partition(" ")[0] for name in COMMANDS}
    run(["--help"])
    out = capsys.readouterr().out
    places = [out.index(panel) for panel in dict.fromkeys(PANELS.values())]
    assert places == sorted(places)
    assert places[0] < out.index(" doctor ") < places[1] < out.index(" roofline ") < places[2]


def completions(words: str, *, at: int) -> list[str]:
    """What bash is told when TAB is pressed in the word with index `at`."""
    pressed = {
        "_RIDGELINE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": f"{at}",
    }
    program = Path(sys.executable).with_name("ridgeline")
    done = subprocess.run(
        [program], env={**os.environ, **pressed}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.slow
def test_a_shell_completes_commands_their_second_words_and_options() -> None:
    assert completions("ridgeline tr", at=1) == ["train", "trace"]
    assert completions("ridgeline plan ", at=2) == ["training", "inference", "serving"]
    assert completions("ridgeline plan training --glo", at=3) == ["--global-batch"]
    assert completions("ridgeline launch --clu", at=2) == ["--cluster"]
    assert completions("ridgeline launch status --j", at=3) == ["--json"]


def test_a_shell_gets_the_script_that_completes() -> None:
    program = Path(sys.executable).with_name("ridgeline")
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [program],
            env={**os.environ, "_RIDGELINE_COMPLETE": f"source_{shell}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"complete_{shell}" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_stream_without_some_characters_shows_others_in_their_place(encoding: str) -> None:
    program = Path(sys.executable).with_name("ridgeline")
    done = subprocess.run(
        [program, "calc", "bubble", "--help"],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "Usage" in done.stdout.decode(encoding)


@pytest.mark.parametrize(
    ("words", "code"),
    [("calc bubble --help >&-", 0), ("calc nothing 2>&-", 2), ("calc bubble --help <&-", 0)],
)
def test_a_closed_stream_swallows_what_is_said(words: str, code: int) -> None:
    program = Path(sys.executable).with_name("ridgeline")
    done = subprocess.run(["sh", "-c", f"{program} {words}"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"")


def test_help_after_a_first_word_lists_the_second_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--help"]) == 0
    assert "training" in capsys.readouterr().out


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["hardware", "--help"],
        ["compare", "--help"],
        ["doctor", "--help"],
        ["plan", "--help"],
        ["plan", "training", "--help"],
        ["explain", "--help"],
        ["roofline", "--help"],
        ["roofline", "gpt2", "--device", "h100"],
    ],
)
def test_start_up_imports_no_heavy_library(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from ridgeline.cli.main import run\n"
        f"run({words!r})\n"
        "heavy = {'torch', 'plotly', 'libcst', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["tun"]])
def test_help_and_a_mistyped_command_import_no_command(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from ridgeline.cli.main import run\n"
        f"run({words!r})\n"
        "ours = {name for name in sys.modules if name.startswith('ridgeline.')}\n"
        "cli = ('', *map('.{}'.format, 'main interrupts commands program help_page'.split()))\n"
        "allowed = {'ridgeline.errors', 'ridgeline.visible', 'ridgeline.cli.trace_questions'}\n"
        "allowed |= {*(f'ridgeline.cli{part}' for part in cli)}\n"
        "sys.exit(f'imported {ours - allowed}' if ours - allowed else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_installed_program_answers() -> None:
    program = Path(sys.executable).with_name("ridgeline")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ridgeline ")


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["roofline", "llama3.1-8b", "--device", "h100", "--json"]],
)
def test_a_full_disk_behind_stdout_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ridgeline.cli.main", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("ridgeline: no space left on the disk: stdout")
    assert done.stderr.count("\n") == 1
