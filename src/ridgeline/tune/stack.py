"""The techniques that were proved for a script (stack.toml), and running the script with them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.measure.guard.view import SESSION_NAME
from ridgeline.measure.live.command import resolve
from ridgeline.measure.live.conductor import child_environment
from ridgeline.measure.wire import Applied, Session
from ridgeline.records import Ledger, LedgerRow
from ridgeline.records.input_file import read_toml
from ridgeline.records.ledger import Options
from ridgeline.records.store import write_atomically
from ridgeline.techniques import environment_of, technique

ENTRY = "ridgeline.tune.install:install"
"""Where the bootstrap enters the script's process to apply a stack.

A name only: the module itself imports torch, which the process that asks the questions never needs.
"""


class StackRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """One technique of a stack; the figures are what was measured when it was added."""

    name: str
    options: Options = {}
    multiplier: float | None = None
    ci: tuple[float, float] | None = None
    verification: str = ""


class TechniqueStack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a stack.toml."""

    command: list[str] = []
    """The command that it was proved on."""
    torch: str = ""
    device: str = ""
    date: str = ""
    technique: list[StackRow] = []

    def applied(self) -> list[Applied]:
        """What the child shall apply; unknown names and options are errors that list the known."""
        for row in self.technique:
            technique(row.name).CARD.check(row.options)
        return [Applied(technique=row.name, options=row.options) for row in self.technique]


def read_stack(path: Path) -> TechniqueStack:
    """Read a `stack.toml` file.

    Raises:
        InputError: no such file, not TOML, an unknown key or technique; names file and key.
    """
    stack = read_toml(path, TechniqueStack, cure="`ridgeline tune` writes a stack.toml")
    try:
        stack.applied()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return stack


def stack_of(ledger: Ledger) -> TechniqueStack:
    """The stack that a ledger ended with."""
    added = {
        name: row for row in ledger.rows if row.kept and row.stage == "add" for name in row.members
    }
    rows = [(name, added[name]) for name in ledger.stack_rows]
    return TechniqueStack(
        command=ledger.environment.command,
        torch=ledger.environment.torch,
        device=ledger.environment.device,
        date=ledger.environment.date,
        technique=[_stack_row(name, row) for name, row in rows],
    )


def _stack_row(name: str, row: LedgerRow) -> StackRow:
    together = len(row.together) > 1
    return StackRow(
        name=name,
        options=row.together.get(name, row.options),
        multiplier=round(row.multiplier, 4),
        ci=(round(row.ci_low, 4), round(row.ci_high, 4)),
        verification=f"{row.technique}, measured as one: " * together + row.verification,
    )


def write_stack(path: Path, stack: TechniqueStack) -> None:
    """Write a stack.toml, whole or not at all."""
    write_atomically(path, msgspec.toml.encode(stack))


def start(words: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a script on the standard streams that are there."""
    return subprocess.Popen(words, env=environment)


def run_with_stack(command: list[str], path: Path | None, *, nvtx: bool = False) -> int:
    """Run a script from start to end with a stack applied; returns its exit code.

    Standard streams, signals and files are the script's own: nothing is captured, nothing is
    cut short.

    Args:
        command: Of the script.
        path: A stack.toml; None: no technique is applied.
        nvtx: Mark its phases and steps by NVTX ranges.
    """
    with _environment([] if path is None else read_stack(path).applied(), nvtx) as environment:
        process = start(resolve(command), environment)
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                # The terminal sent it to the script too; how to end is the script's decision.
                continue
    return code if code >= 0 else 128 + signal.Signals(-code)


@contextmanager
def stack_environment(path: Path) -> Iterator[dict[str, str]]:
    """The environment in which every Python process that imports torch has the stack applied."""
    with _environment(read_stack(path).applied(), nvtx=False) as environment:
        yield environment


@contextmanager
def _environment(stack: list[Applied], nvtx: bool) -> Iterator[dict[str, str]]:
    session = Session(stack=stack, environment=environment_of(stack), nvtx=nvtx, report=False)
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-run-"))
    try:
        (folder / SESSION_NAME).write_bytes(msgspec.json.encode(session))
        yield child_environment(folder, ENTRY) | session.environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)
