"""A model that a user's script makes: `script.py:NAME`, a function, a class or a module.

The script is imported as Python would import it: its folder is on sys.path, and it is found under
its stem, where torch.export and pickle look its classes up. Whatever it raises, SystemExit too, is
one line that names the script's own line.
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from torch import nn

from ridgeline.errors import InputError, RidgelineError, ScriptError, in_words
from ridgeline.from_source import import_file
from ridgeline.models.quiet import quiet_libraries
from ridgeline.records.overwriting import note_input
from ridgeline.runtimes.capture.torchvision_schemas import let_torchvision_import

Make = Callable[[Callable[[], Any]], Any]
"""How a function or class of the script is called."""


def split_script(source: str) -> tuple[Path, str] | None:
    """The script and the name in it; None where `source` is no script, "" where it names nothing.

    >>> split_script("nets/net.py:build"), split_script("net.pt2")
    ((PosixPath('nets/net.py'), 'build'), None)
    """
    file, _, name = source.rpartition(":")
    if file.endswith(".py"):
        return Path(file), name
    return (Path(source), "") if source.endswith(".py") else None


def run_script(path: Path, option: str = "") -> ModuleType:
    """Import a script, anew each time.

    Args:
        path: The script.
        option: What named it, for messages.

    Raises:
        InputError: There is no such file, or it fails (a `ScriptError`).
    """
    what = f"{option} {path}".strip()
    if not path.is_file():
        raise InputError(f"{what}: no such file; check the path")
    note_input(path)
    whole = path.resolve()
    name = _free_name(whole)
    if str(whole.parent) not in sys.path:
        sys.path.insert(0, str(whole.parent))
    try:
        with quiet_libraries():
            let_torchvision_import()
            return import_file(name, whole)
    except BaseException as error:
        _refuse(error, what, whole)


def model_of(
    script: ModuleType, name: str, option: str = "", make: Make = lambda call: call()
) -> nn.Module:
    """The model that a script has under a name, or makes when that is called without arguments.

    Args:
        script: What `run_script` gave.
        name: In the script; "" for its only module.
        option: What named it, for messages.
        make: How functions and classes are called.

    Raises:
        InputError: There is none, or making it fails (a `ScriptError`).
    """
    path = Path(str(script.__file__))
    name = name or _only_module(path, script, option)
    what = f"{option} {path.name}:{name}".strip()
    if not hasattr(script, name):
        raise InputError(f"{what}: {path.name} defines no {name!r}; it has {_offers(script)}")
    made = getattr(script, name)
    if not isinstance(made, nn.Module) and callable(made):
        try:
            with quiet_libraries():
                made = make(made)
        except BaseException as error:  # `_refuse` raises again
            _refuse(error, what, path)
    if not isinstance(made, nn.Module):
        raise InputError(f"{what}: gives a {type(made).__name__}; return an nn.Module")
    return made


def _free_name(path: Path) -> str:
    """The script's stem, or that and a number where another module has it or the script wants it.

    A script may import a package of its own name, which it would find if Python ran it.
    """
    first = 2 if path.stem in _imported(path) else 1
    names = (path.stem if one == 1 else f"{path.stem}_{one}" for one in count(first))
    for name in names:
        taken = sys.modules.get(name)
        if taken is None or getattr(taken, "__file__", None) == str(path):
            return name
    raise AssertionError("there are endless names")


def _imported(path: Path) -> set[str]:
    """The packages that a script imports by name; none where it cannot be read as Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _refuse(error: BaseException, what: str, path: Path) -> NoReturn:
    """Raise what the user is told of an error of the script."""
    if isinstance(error, KeyboardInterrupt | RidgelineError):
        raise error
    why = f"exit code {error.code}" if isinstance(error, SystemExit) else in_words(error)
    if isinstance(error, OSError) and error.filename:
        why = f"{why}: {error.filename}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path
    ]
    if isinstance(error, ImportError) and _is_own_name(error, path):
        why = f"{why}: it has the name of a module that it imports; call it otherwise"
    if "not compiled with CUDA" in why:
        why = f"{why}: there is no CUDA here; name the device of an input or a parameter instead"
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines, why = [error.lineno], error.msg
    where = f", {path.name} line {lines[-1]}" if lines else ""
    raise ScriptError(f"{what}: fails with {why} ({type(error).__name__}{where})") from error


def _is_own_name(error: ImportError, path: Path) -> bool:
    """Whether a script found itself where it looked for a package of its name."""
    found = error.path == str(path) if error.path else "is not a package" in str(error)
    return found and (error.name or "").partition(".")[0] == path.stem


def _only_module(path: Path, script: ModuleType, option: str) -> str:
    """The one model of a script that names none."""
    modules = [key for key, value in vars(script).items() if isinstance(value, nn.Module)]
    if len(modules) == 1:
        return modules[0]
    what = f"{option} {path}".strip()
    raise InputError(f"{what}: say which, as {path.name}:NAME; it has {_offers(script)}")


def _offers(script: ModuleType) -> str:
    own = [
        key
        for key, value in vars(script).items()
        if isinstance(value, nn.Module)
        or (callable(value) and getattr(value, "__module__", "") == script.__name__)
    ]
    return ", ".join(own) or "no function, class or module of its own"
