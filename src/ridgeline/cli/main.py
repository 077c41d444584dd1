"""The start and the end of the `ridgeline` process: signals, exit codes, one line for each error.

The commands are in `commands.py`; `program.py` finds the one that was named.

Ctrl-C is one line and exit code 130 whenever it comes: before the command begins there is nothing
to clean up, so the process ends where it is; while it runs, it is a KeyboardInterrupt; once it is
done, its own exit code stands. What is interrupted before `main` begins is Python's own start: so
this module imports little.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout

from ridgeline.cli.interrupts import (
    ErrorsAsInterrupts,
    interrupt,
    interrupt_again_where_dropped,
)

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import typer

INTERRUPTED = 130


def main() -> None:
    """Entry point of the program; ends the process with the command's exit code."""
    try:
        _write_whatever_comes()
        _when_interrupted(_end_where_it_is)
        interrupt_again_where_dropped()
        code = run(sys.argv[1:], begin=lambda: _when_interrupted(interrupt))
        sys.stdout.flush()
        _end(code)
    except KeyboardInterrupt:
        _end(_complain("interrupted", INTERRUPTED))
    except BrokenPipeError:  # whoever read our output has gone
        _end(1)
    except PermissionError as error:
        _end(_complain(f"{error.filename or 'a file'}: permission denied", 1))
    except Exception as error:  # whichever library found the disk full
        from ridgeline.errors import no_room

        if not no_room(error):
            raise
        path = getattr(error, "filename", None)
        what = f"{path} was not written" if path else "stdout, or another file, is not whole"
        _end(_complain(f"no space left on the disk: {what}; make room and run it again", 1))


def _write_whatever_comes() -> None:
    """A stream that was closed swallows what is said; characters that it has not become `?`."""
    if sys.stdout is None:
        redirect_stdout(open(os.devnull, "w")).__enter__()  # noqa: SIM115 (until the end)
    if sys.stderr is None:
        redirect_stderr(open(os.devnull, "w")).__enter__()  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _end_where_it_is(*_: object) -> None:
    """End the process, from wherever it is; imports nothing: a library may be half imported."""
    os.write(2, b"ridgeline: interrupted\n")
    os._exit(INTERRUPTED)


def _when_interrupted(handler: Callable[..., object]) -> None:
    """A termination ends what we started just as Ctrl-C does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _end(code: int) -> None:
    """End the process; whoever interrupts what is left of it changes nothing."""
    _when_interrupted(lambda *_: os._exit(code))
    _let_stdout_go()
    if code == INTERRUPTED:
        # Python ends itself by the signal when the KeyboardInterrupt came out of an exec(), as in
        # the making of a dataclass, wherever it was caught; unless it is told the code like this.
        import ctypes

        ctypes.pythonapi.Py_Exit(code)
    sys.exit(code)


def _let_stdout_go() -> None:
    """What still waits there would make Python end with a code and words of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nothing() -> None:
    pass


def run(arguments: Sequence[str], *, begin: Callable[[], None] = _nothing) -> int:
    """Run one command; returns its exit code: 0, 1 (ours), 2 (bad input), 3 (regression).

    `begin` is called when the command takes over.
    """
    import typer

    from ridgeline.cli.program import build_program
    from ridgeline.errors import RidgelineError

    # typer carries its own copy of click; the parent of BadParameter is any usage error.
    usage_error: type[typer.BadParameter] = typer.BadParameter.__bases__[0]
    try:
        words = list(arguments) or ["--help"]
        with ErrorsAsInterrupts():
            program = build_program(begin=begin)
            code = program(args=words, prog_name="ridgeline", standalone_mode=False)
    except usage_error as error:
        return _complain(f"{_said(error)}; {_advice(error, arguments)}", 2)
    except RidgelineError as error:
        if error.details:
            from ridgeline.visible import visible_text

            sys.stderr.write(visible_text(error.details.rstrip()) + "\n")
        return _complain(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return 1  # whoever read our output has gone; there is nobody to tell
    if code == INTERRUPTED:  # typer answers Ctrl-C with this code and says nothing
        return _complain("interrupted", INTERRUPTED)
    if not arguments:
        return 2
    return code if isinstance(code, int) else 0


def _said(error: typer.BadParameter) -> str:
    """What is wrong, and the command's own word where an option was called as elsewhere."""
    from ridgeline.cli.main import said_here

    given = getattr(error, "option_name", None)
    if given is not None and error.ctx is not None:
        known = [name for one in error.ctx.command.params for name in one.opts]
        if here := said_here(str(given), known):
            return f"No such option: {given}; here it is {here}"
    return error.format_message().rstrip(".").replace(": Value error, ", ": ")


def _advice(error: typer.BadParameter, arguments: Sequence[str]) -> str:
    command = error.ctx.command_path if error.ctx else "ridgeline"
    scripts = [word for word in arguments if word.endswith(".py")]
    if scripts and "--" not in arguments:
        return f"what belongs to {scripts[0]} stands after `--`: {command} -- {scripts[0]} …"
    return f"see `{command} --help`"


def _complain(message: str, code: int) -> int:
    from ridgeline.visible import visible_text

    sys.stderr.write("ridgeline: " + visible_text(" ".join(message.split())) + "\n")
    return code


if __name__ == "__main__":
    main()


SAME_THING = (
    ("--device", "--gpu", "--cluster", "--arch", "--hardware", "--accelerator"),
    ("--model", "--preset"),
    ("--rate", "--qps", "--rps", "--request-rate"),
    ("--prompt", "--input", "--input-tokens", "--input-len", "--isl"),
    ("--answer", "--completion", "--output", "--output-tokens", "--output-len", "--osl"),
    ("--seq", "--sequence", "--seq-len", "--sequence-length", "--context"),
    ("--tp", "--tensor-parallel", "--tensor-parallel-size"),
)
"""The words that commands have for one thing: a chip that is judged is `--device`, one of those
that serve is `--gpu`, several are a `--cluster`; `kernels` compiles for an `--arch`."""


def said_here(option: str, known: Iterable[str]) -> str | None:
    """The option of a command that means what `option` means elsewhere; None: it has none.

    >>> said_here("--device", ["--model", "--gpu"])
    '--gpu'
    """
    here = set(known)
    for words in SAME_THING:
        if option in words:
            return next((word for word in words if word in here and word != option), None)
    return None
