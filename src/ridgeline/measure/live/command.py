"""The user's command line: what may stand after `--`, and the process it becomes."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.measurement import script_of
from ridgeline.records.overwriting import note_input


def resolve(command: list[str]) -> list[str]:
    """The argv to start, from what the user typed after `--`.

    Accepts `script.py args…`, `-m module args…`, `python script.py …`, `torchrun …`,
    `accelerate launch …`, or any program that starts such a script. Programs are looked up
    beside the running interpreter first, so that `torchrun` is that of the same environment; one
    that is on no path is started as the module that its package names.

    Raises:
        InputError: nothing was given, or the script or program does not exist.
    """
    if not command:
        raise InputError("no script given; put it after `--`: ridgeline doctor -- script.py args")
    first = command[0]
    if first == "-m":
        if len(command) == 1:
            raise InputError("`-m` needs the name of a module, e.g. `-- -m package.train`")
        return [sys.executable, *command]
    if first.endswith(".py"):
        _check_script(first)
        return [sys.executable, *command]
    if _is_runnable(Path(first)):
        return [sys.executable, *command]
    program = _program(first)
    if not program:
        raise InputError(f"{first}: no such program or script; {_instead_of(first)}")
    script = script_of(command)
    if script is not None:
        _check_script(script)
    return [*program, *command[1:]]


def _is_runnable(path: Path) -> bool:
    """Is it a folder with a `__main__`, or an archive of one, which Python runs as a script?"""
    return (path / "__main__.py").is_file() or (path.suffix == ".pyz" and path.is_file())


def _instead_of(name: str) -> str:
    """What to give in the place of what cannot be started."""
    if name.endswith(".ipynb"):
        return f"`jupyter nbconvert --to script {name}` makes a .py file of a notebook"
    if "=" in name:
        return f"put `{name}` before ridgeline, or `env` before it"
    return "give a .py file or `-m module`"


def _check_script(name: str) -> None:
    if not Path(name).is_file():
        raise InputError(f"{name}: no such script (looked in {Path.cwd()})")
    note_input(Path(name))


def script_path(command: list[str]) -> Path | None:
    """The first `.py` file in the user's command, if there is one."""
    script = script_of(command)
    return Path(script).resolve() if script is not None else None


def _program(name: str) -> list[str]:
    """What starts a program; empty: there is none of this name."""
    if os.sep in name:
        return [name] if os.access(name, os.X_OK) else []
    if name in ("python", "python3"):
        return [sys.executable]
    beside = Path(sys.executable).parent / name
    if beside.is_file():
        return [str(beside)]
    found = shutil.which(name)
    return [found] if found else _installed(name)


def _installed(name: str) -> list[str]:
    """The program that a package declares, as the module to start.

    Of layered environments only packages are in reach of the interpreter, and no scripts.
    """
    for point in metadata.entry_points(group="console_scripts", name=name):
        return [sys.executable, "-m", point.module]
    return []
