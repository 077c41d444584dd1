"""Found first on `PYTHONPATH` by the measured script's interpreter, before its first line runs.

It takes its own folder off `sys.path` again, lets the `sitecustomize` that it hides run, and
waits for the script to import torch; then it loads the agent. A process that never imports
torch is left alone. Nothing here may import more than the standard library.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_OURS_ALONE = sys.stdlib_module_names | {"msgspec"}
"""Names of what the agent imports beside torch; a script may have modules that are called so."""


class _WaitForTorch:
    """A finder that lets torch load as usual, then calls the agent's entry point.

    Libraries look for torch's spec to know whether it is installed, and import it later or
    never: each spec that is handed out is prepared, and the first to load ends the waiting.
    """

    def __init__(self, entry: str, session: str) -> None:
        self._entry = entry
        self._session = session

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec("torch", None) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        load = loader.exec_module

        def exec_then_attach(module: ModuleType) -> None:
            del loader.exec_module
            sys.meta_path.remove(self)
            load(module)
            _enter(self._entry, self._session)

        loader.exec_module = exec_then_attach  # type: ignore[method-assign]
        return spec


def _enter(entry: str, session: str) -> None:
    """Call the entry point. Another environment's interpreter may not have what it needs."""
    module, _, name = entry.partition(":")
    try:
        with _past_the_scripts_modules():
            getattr(importlib.import_module(module), name)(session)
    except Exception as error:
        _tell(session, error)


@contextlib.contextmanager
def _past_the_scripts_modules() -> Iterator[None]:
    """What is imported meanwhile is the installed one, and the script still finds its own.

    A script with a `resource.py` or `statistics.py` of its own beside it means that one, before
    and after; the agent means the one of the standard library.
    """
    path = list(sys.path)
    installed = os.path.dirname(os.__file__)
    own = path[: path.index(installed)] if installed in path else []
    shadowing = {name for name in _OURS_ALONE if _is_module_in(name, own)}
    loaded = _called(shadowing)
    aside = {name: one for name, one in loaded.items() if not _is_from(one, installed)}
    for name in aside:
        del sys.modules[name]
    sys.path[:] = path[len(own) :] + own
    try:
        yield
    finally:
        for name in _called(shadowing):
            if name in aside or name not in loaded:
                del sys.modules[name]
        sys.modules.update(aside)
        sys.path[:] = path


def _is_module_in(name: str, folders: list[str]) -> bool:
    spec = importlib.machinery.PathFinder.find_spec(name, folders)
    return spec is not None and spec.loader is not None


def _is_from(module: ModuleType, installed: str) -> bool:
    """Is it no module of the script's: built in, or from the installation?"""
    file = getattr(module, "__file__", None)
    return file is None or os.path.abspath(file).startswith(installed + os.sep)


def _called(names: set[str]) -> dict[str, ModuleType]:
    """The loaded modules of these names, and what is in them."""
    every = dict(sys.modules).items()
    return {name: one for name, one in every if name.partition(".")[0] in names}


def _tell(session: str, error: Exception) -> None:
    """One line for the conductor; the script goes on."""
    line = f"{sys.executable} could not load ridgeline: {type(error).__name__}: {error}"
    cure = "run ridgeline from the environment that the script runs in"
    with contextlib.suppress(OSError), open(os.path.join(session, "mishaps.txt"), "a") as file:
        file.write(f"{line}; {cure}\n")


def _run_hidden_sitecustomize() -> None:
    """Run the `sitecustomize` that this one shadows, if the installation has one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
    own = sys.modules.pop("sitecustomize", None)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
    elif own is not None:
        sys.modules["sitecustomize"] = own


def _keep_files(session: str) -> None:
    """Keep what this process changes, from its first line on, unless it runs in a view."""
    try:
        importlib.import_module("ridgeline.measure.guard.inside").keeper_of(session)
    except Exception as error:
        _tell(session, error)


_run_hidden_sitecustomize()
if "RIDGELINE_SESSION" in os.environ:
    _keep_files(os.environ["RIDGELINE_SESSION"])
    sys.meta_path.insert(
        0, _WaitForTorch(os.environ["RIDGELINE_ENTRY"], os.environ["RIDGELINE_SESSION"])
    )
