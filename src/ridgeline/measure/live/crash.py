"""What a script's own crash looked like.

The traceback is the script's: our frames are cut out of it.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from ridgeline.errors import ScriptError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_BEGINS = "Traceback (most recent call last):"
_STARTS = re.compile(r"(?:^\s*|\S|[?:>\])] )" + re.escape(_BEGINS) + r"\s*$")
"""Right behind a prompt or a progress bar, too; not as the end of a sentence, as where a loader
tells of the one in its worker, which is part of an error's message."""
_NO_MORE_INPUT = "EOFError: EOF when reading a line"
"""How Python's `input` fails."""
_LINES_SHOWN = 40
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_INSTALLED = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*)/|^<")
"""Files of packages and of Python itself, and code that is in no file."""
_COMPILES = re.compile(r"^(SyntaxError|IndentationError|TabError): ")
"""What Python says of a script that it cannot compile, below the place and without a traceback."""
_EXPLAINS = re.compile(r"^\s+Explanation: (?P<why>\S.*)$")
"""How a compiler goes on below an error that names the kind of it alone."""
_ADDRESS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """How a command ended, when it failed."""

    exit_code: int
    """The exit code; negative: the number of the signal that killed it."""
    traceback: str
    """The script's own frames and the error; empty where Python printed none."""
    last_line: str

    @property
    def what(self) -> str:
        """The error in one line, or the signal."""
        if self.traceback:
            return self.traceback.splitlines()[-1]
        if self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return self.last_line or f"exit code {self.exit_code}, and it printed nothing"

    @property
    def place(self) -> str:
        """The innermost line of the user's own files, as file:line; empty where none is known."""
        frames = [frame for line in self.traceback.splitlines() if (frame := _FRAME.match(line))]
        own = [frame for frame in frames if not _INSTALLED.search(frame["file"])]
        if not own:
            return ""
        here = os.getcwd() + os.sep
        return f"{own[-1]['file'].removeprefix(here)}:{own[-1]['line']}"

    @property
    def asked_for_input(self) -> bool:
        """Did it read a line where no more were given?"""
        return self.what == _NO_MORE_INPUT

    def is_like(self, other: Crash) -> bool:
        """The same error, numbers and addresses aside?"""
        return _ADDRESS.sub("", self.what) == _ADDRESS.sub("", other.what)


def crash_of(exit_code: int, output: str) -> Crash:
    """Read it from what the script printed last."""
    block = _last_traceback(output.splitlines())
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    kept = _without_us(block)
    if len(kept) > _LINES_SHOWN:
        half = _LINES_SHOWN // 2
        kept = [*kept[:half], f"  … {len(kept) - 2 * half} lines …", *kept[-half:]]
    return Crash(
        exit_code=exit_code,
        traceback="\n".join(kept),
        last_line=lines[-1] if lines else "",
    )


def _last_traceback(lines: list[str]) -> list[str]:
    """The last traceback that was printed, with those that led to it."""
    starts = [index for index, line in enumerate(lines) if _STARTS.search(line)]
    if not starts:
        return _not_compiled(lines)
    start = starts[-1]
    end = _end_of(lines, start)
    for earlier in reversed(starts[:-1]):
        between = [line for line in lines[_end_of(lines, earlier) : start] if line.strip()]
        if len(between) != 1 or "exception" not in between[0]:
            break  # "During handling of the above exception, another exception occurred:"
        start = earlier
    return [_BEGINS, *lines[start + 1 : end - 1], _with_explanation(lines, end)]


def _with_explanation(lines: list[str], end: int) -> str:
    """The error that a traceback ends with, and why, where the line below it says so."""
    told = _EXPLAINS.match(lines[end]) if end < len(lines) else None
    return f"{lines[end - 1]}: {told['why']}" if told is not None else lines[end - 1]


def _not_compiled(lines: list[str]) -> list[str]:
    """The place and the error of a script that is no Python, as the last thing printed; or none."""
    last = next((i for i in range(len(lines) - 1, -1, -1) if lines[i].strip()), -1)
    if last < 0 or not _COMPILES.match(lines[last]):
        return []
    start = next((i for i in range(last, -1, -1) if _FRAME.match(lines[i])), last)
    return lines[start : last + 1]


def _end_of(lines: list[str], start: int) -> int:
    """One past the error that ends the traceback; further lines of its message included."""
    for index in range(start + 1, len(lines)):
        if lines[index] and not lines[index][0].isspace():
            return index + 1
    return len(lines)


def _without_us(block: list[str]) -> list[str]:
    """The lines without frames of ours."""
    kept: list[str] = []
    skipping = False
    for line in block:
        frame = _FRAME.match(line)
        if frame is not None:
            skipping = frame["file"].startswith(_PACKAGE)
        elif not line.startswith(" "):
            skipping = False
        if not skipping:
            kept.append(line)
    return kept


class ScriptFailed(ScriptError):
    """A command that failed by itself, with what it takes to ask whose fault it is."""

    def __init__(self, command: list[str], crash: Crash, after_seconds: float) -> None:
        super().__init__(told_of(command, crash), details=crash.traceback)
        self.crash = crash
        self.after_seconds = after_seconds


def told_of(command: list[str], crash: Crash) -> str:
    """The error of a command that failed, in a sentence."""
    return f"`{' '.join(command)}` failed (exit code {crash.exit_code}): {crash.what}"


def told_of_no_step(command: str, when: str, crash: Crash) -> str:
    """Why nothing was measured of a command that ended well: a process of its own may have died."""
    nothing = "no optimizer step, no repeated call of a model and no repeated gradient was seen"
    return (
        f"`{command}` ended {when}: {nothing}; {_advice(crash, 'is this the script that trains?')}"
    )


def told_of_few_steps(command: str, steps: int, crash: Crash, *, calls: bool) -> str:
    """Why a command that ended well is too short to measure."""
    if calls:
        few = f"`{command}` called its model {'once' if steps == 0 else f'{steps + 1} times'}"
        more = "give it more inputs: what a first call takes is not what the next ones do"
    else:
        few = f"`{command}` ended {steps} step(s) after its first"
        more = "let it run longer"
    return f"{few}: too few to measure; {_advice(crash, more)}"


def _advice(crash: Crash, otherwise: str) -> str:
    """What to look at: an error that the command printed, where it did."""
    return f"the last error that it printed: {crash.what}" if crash.traceback else otherwise
