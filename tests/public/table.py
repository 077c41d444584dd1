"""What `scripts.toml` says: public scripts, how each is started, and what must come of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec

TABLE = Path(__file__).with_name("scripts.toml")


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One public script, started in one way."""

    name: str
    repository: str
    """`owner/name` on GitHub, or a package as it was published."""
    folder: str
    """Where it is started, below the folder of checkouts."""
    command: str
    """What follows `ridgeline doctor --`; {root} is the folder of checkouts, {out} a fresh one."""
    longer: str = ""
    """The same command with more steps, for where it is tuned; empty: it has enough."""
    sort: str
    """What sort of code it is: a loop by hand, a library's trainer, a graph network."""
    environment: dict[str, str] = {}
    inputs: dict[str, str] = {}
    """Link in the script's folder → what it leads to below {root}/inputs (see `prepare.py`)."""
    needs: tuple[str, ...] = ()
    """Modules that it imports beyond torch."""
    at_least: int = 10
    """Steps that the script surely makes."""
    kind: str = "training"
    bounds: tuple[str, ...] = ()
    """Verdicts that reasoning allows; empty: not judged yet."""
    refused: str = ""
    """Words of the one line with which it must be refused, where no profile is possible."""
    note: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    environment: dict[str, str]
    """Set for every script."""
    repositories: dict[str, str]
    """Name → commit, or the version of a published package."""
    script: tuple[Script, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One script as a process: its words, its folder and what is added to its environment."""

    words: list[str]
    folder: Path
    environment: dict[str, str]


def read_table() -> Table:
    return msgspec.toml.decode(TABLE.read_bytes(), type=Table)


def started(script: Script, table: Table, root: Path, out: Path, *, longer: bool = False) -> Start:
    """How `script` is started when its checkout lies below `root`, on request for more steps."""
    command = script.longer or script.command if longer else script.command
    settings = table.environment | script.environment
    return Start(
        words=[word.format(root=root, out=out) for word in shlex.split(command)],
        folder=root / script.folder,
        environment={name: text.format(root=root) for name, text in settings.items()},
    )


def link_inputs(script: Script, root: Path) -> None:
    """Lay the links that `script` reads its inputs through."""
    for name, target in script.inputs.items():
        link = root / script.folder / name
        if not link.is_symlink() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / "inputs" / target)
