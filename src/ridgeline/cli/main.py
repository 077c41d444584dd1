"""The `ridgeline` program finds the command, runs it, and turns errors into one line each.

Only the module of the command that was named is imported, so `ridgeline --help` and a mistyped
command cost nothing. A command has one word or two: `plan training` is a row of the table like any
other, and `ridgeline plan --help` lists the rows that begin with `plan`. A first word may be a
command too: `launch status` is a row beside `launch`.

Ctrl-C is one line and exit code 130 whenever it comes: before the command begins there is nothing
to clean up, so the process ends where it is; while it runs, it is a KeyboardInterrupt; once it is
done, its own exit code stands. What is interrupted before `main` begins is Python's own start: so
this module imports little.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("ridgeline.cli.doctor", "where a script's time goes, what bounds it, the cures"),
    "tune": ("ridgeline.cli.tune", "stack cures, prove each one, write the ledger"),
    "run": ("ridgeline.cli.run", "run a script with a proven stack applied"),
    "techniques": ("ridgeline.cli.techniques", "what tune can apply: cures, costs, promises"),
    "compare": ("ridgeline.cli.compare", "regression gate: exit 3 when slower beyond noise"),
    "bisect": ("ridgeline.cli.bisect", "the git commit that made a command slower"),
    "hardware": ("ridgeline.cli.hardware", "what this machine is, and its measured peaks"),
    "trace summary": ("ridgeline.cli.trace", "busy, idle, compute, communication; what bounds it"),
    "trace idle": ("ridgeline.cli.trace", "why the GPU waited, and the largest gaps"),
    "trace kernels": ("ridgeline.cli.trace", "kernels by name and class, tensor cores, occupancy"),
    "trace overlap": ("ridgeline.cli.trace", "communication hidden behind compute, and exposed"),
    "trace communication": ("ridgeline.cli.trace", "collectives by size, bandwidth and group"),
    "trace launch": ("ridgeline.cli.trace", "launch delay, queue depth, CUDA graphs"),
    "trace sync": ("ridgeline.cli.trace", "every wait of the host for the GPU, with its line"),
    "trace steps": ("ridgeline.cli.trace", "profiler steps, their phases, the outlier"),
    "trace operators": ("ridgeline.cli.trace", "host and GPU time by operator, shape, call site"),
    "trace memory": ("ridgeline.cli.trace", "GPU memory over time: peak, growth, who holds it"),
    "trace critical-path": (
        "ridgeline.cli.trace_across",
        "what made the run as long as it was; what-if",
    ),
    "trace stragglers": (
        "ridgeline.cli.trace_across",
        "which rank arrives last, and what it costs",
    ),
    "trace compare": (
        "ridgeline.cli.trace_across",
        "B against A by kernel or operator; exit 3 when slower",
    ),
    "trace tree": ("ridgeline.cli.trace_across", "frames and operators inside each other"),
    "trace stack": ("ridgeline.cli.trace_across", "folded stacks for a flame graph"),
    "trace export": ("ridgeline.cli.trace_across", "an annotated trace for Perfetto"),
    "trace report": ("ridgeline.cli.trace_across", "one HTML page with every answer"),
    "roofline": ("ridgeline.cli.roofline", "every operator of a model under the roofs of devices"),
    "predict training": ("ridgeline.cli.predict_training", "what one layout will need and take"),
    "predict serving": ("ridgeline.cli.predict_serving", "latency and throughput of one replica"),
    "validate training": ("ridgeline.cli.validate", "error against published runs"),
    "validate serving": ("ridgeline.cli.validate", "error against published served runs"),
    "plan training": ("ridgeline.cli.plan_training", "the best layout for a training run, and why"),
    "plan serving": ("ridgeline.cli.plan_serving", "GPUs, layout and cost for a served load"),
    "train": ("ridgeline.cli.train", "run a recipe: train a language model on torch.distributed"),
    "launch": ("ridgeline.cli.launch", "run a recipe on a cluster; --check judges manifests"),
    "launch status": ("ridgeline.cli.launch_runs", "how a launched run stands, and why it waits"),
    "launch logs": ("ridgeline.cli.launch_runs", "all ranks' logs as one, the first error first"),
    "launch cancel": ("ridgeline.cli.launch_runs", "end a launched run and what belongs to it"),
    "compress": ("ridgeline.cli.compress", "a smaller, faster model, and the loss it costs"),
    "evaluate": ("ridgeline.cli.evaluate", "perplexity, KL to a reference, size, decode speed"),
    "serve": ("ridgeline.cli.serve", "an LLM behind an OpenAI-compatible API"),
    "generate": ("ridgeline.cli.generate", "answers from a language model, without a server"),
    "bench decode": ("ridgeline.cli.bench_decode", "decoding beside the memory's read bandwidth"),
    "draft-heads": ("ridgeline.cli.draft_heads", "train heads that guess tokens ahead"),
    "kernels list": ("ridgeline.cli.kernels", "the compiled CPU kernels, and where they lie"),
    "kernels build": ("ridgeline.cli.kernels", "compile the CPU kernels ahead of their first use"),
    "loadtest": ("ridgeline.cli.loadtest", "load on a server: TTFT, ITL, goodput, saturation"),
    "simulate serving": (
        "ridgeline.cli.simulate_serving",
        "a load on a fleet, by the very scheduler that serves",
    ),
    "explain": ("ridgeline.cli.explain", "why one estimate beats another, term by term"),
}
"""Command → (module, one line of help). The module defines a function of the command's name, with
`_` for every other sign: `trace summary` is `trace_summary` in `cli/trace.py`."""


INTERRUPTED = 130


def main() -> None:
    """Entry point of the program; ends the process with the command's exit code."""
    try:
        _when_interrupted(lambda *_: os._exit(_complain("interrupted", INTERRUPTED)))
        code = run(sys.argv[1:], begin=lambda: _when_interrupted(signal.default_int_handler))
        sys.stdout.flush()
        _end(code)
    except KeyboardInterrupt:
        _end(_complain("interrupted", INTERRUPTED))
    except BrokenPipeError:  # whoever read our output has gone
        _end(1)
    except Exception as error:  # whichever library found the disk full
        from ridgeline.errors import no_room

        if not no_room(error):
            raise
        path = getattr(error, "filename", None)
        what = f"{path} was not written" if path else "stdout, or another file, is not whole"
        _end(_complain(f"no space left on the disk: {what}; make room and run it again", 1))


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
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_overview())
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "--version":
        from importlib import metadata

        sys.stdout.write(f"ridgeline {metadata.version('ridgeline')}\n")
        return 0
    followers = _second_words(name)
    if rest and rest[0] in followers:
        name = f"{name} {rest.pop(0)}"
    elif followers and name not in COMMANDS:
        return _without_second_word(name, rest, followers)
    if name not in COMMANDS:
        hint = _nearest(name, {known.partition(" ")[0] for known in COMMANDS}, "ridgeline")
        return _complain(f"no command {name!r}; {hint}", 2)
    return _run_command(name, rest, begin)


def _second_words(first: str) -> dict[str, str]:
    """Second word → its line of help, for the commands that begin with `first`."""
    rows = ((*name.partition(" "), summary) for name, (_, summary) in COMMANDS.items())
    return {second: summary for word, _, second, summary in rows if second and word == first}


def _without_second_word(name: str, rest: Sequence[str], followers: dict[str, str]) -> int:
    if rest and rest[0] in ("-h", "--help"):
        rows = "\n".join(f"  {word:<14} {summary}" for word, summary in followers.items())
        sys.stdout.write(
            f"Usage: ridgeline {name} WORD [options]\n\n{rows}\n"
            f"\n`ridgeline {name} WORD --help` tells its options.\n"
        )
        return 0
    if not rest or rest[0].startswith("-"):
        known = " or ".join(f"`ridgeline {name} {word}`" for word in followers)
        return _complain(f"{name} needs a second word: {known}", 2)
    hint = _nearest(rest[0], followers, f"ridgeline {name}")
    return _complain(f"no command '{name} {rest[0]}'; {hint}", 2)


def _nearest(word: str, known: Iterable[str], before: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{before} {near[0]}`?" if near else f"see `{before} --help`"


def _run_command(name: str, arguments: list[str], begin: Callable[[], None]) -> int:
    import typer

    from ridgeline.errors import RidgelineError
    from ridgeline.records.overwriting import one_command

    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # typer carries its own copy of click; the parent of BadParameter is any usage error.
    usage_error: type[typer.BadParameter] = typer.BadParameter.__bases__[0]
    try:
        app.command()(_function(name))
        with one_command():
            begin()
            code = app(args=arguments, prog_name=f"ridgeline {name}", standalone_mode=False)
    except usage_error as error:
        said = error.format_message().rstrip(".").replace(": Value error, ", ": ")
        return _complain(f"{said}; {_advice(name, arguments)}", 2)
    except RidgelineError as error:
        if error.details:
            sys.stderr.write(error.details.rstrip() + "\n")
        return _complain(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return 1  # whoever read our output has gone; there is nobody to tell
    if code == INTERRUPTED:  # typer answers Ctrl-C with this code and says nothing
        return _complain("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _advice(name: str, arguments: Sequence[str]) -> str:
    scripts = [word for word in arguments if word.endswith(".py")]
    if scripts and "--" not in arguments:
        return f"what belongs to {scripts[0]} stands after `--`: ridgeline {name} -- {scripts[0]} …"
    return f"see `ridgeline {name} --help`"


def _function(name: str) -> Callable[..., object]:
    import importlib

    found: Callable[..., object] = getattr(
        importlib.import_module(COMMANDS[name][0]), name.replace(" ", "_").replace("-", "_")
    )
    return found


def _overview() -> str:
    rows = "\n".join(f"  {name:<20} {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "How far is your PyTorch script from what the hardware can do, why, and what closes it.\n"
        f"\nUsage: ridgeline COMMAND [options] [-- script.py args…]\n\n{rows}\n"
        "\n`ridgeline COMMAND --help` tells a command's options.\n"
    )


def _complain(message: str, code: int) -> int:
    sys.stderr.write("ridgeline: " + " ".join(message.split()) + "\n")
    return code


if __name__ == "__main__":
    main()
