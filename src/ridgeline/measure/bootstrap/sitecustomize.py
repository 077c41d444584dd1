"""Found first on `PYTHONPATH` by the measured script's interpreter, before its first line runs.

It takes its own folder off `sys.path` again, lets the `sitecustomize` that it hides run, and
waits for the script to import torch; then it loads the agent. A process that never imports
torch is left alone. Nothing here may import more than the standard library.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _WaitForTorch:
    """A finder that lets torch load as usual, then calls the agent's entry point.

    Libraries look for torch's spec to know whether it is installed, and import it later or
    never: each spec that is handed out is prepared, and the first to load ends the waiting.
    """

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
            entry_module, _, entry = os.environ["RIDGELINE_ENTRY"].partition(":")
            getattr(importlib.import_module(entry_module), entry)(os.environ["RIDGELINE_SESSION"])

        loader.exec_module = exec_then_attach  # type: ignore[method-assign]
        return spec


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


def _keep_files() -> None:
    """Keep what this process changes, from its first line on, unless it runs in a view."""
    try:
        inside = importlib.import_module("ridgeline.measure.guard.inside")
    except ImportError:
        return  # an interpreter of another environment
    inside.keeper_of(os.environ["RIDGELINE_SESSION"])


_run_hidden_sitecustomize()
if "RIDGELINE_SESSION" in os.environ:
    _keep_files()
    sys.meta_path.insert(0, _WaitForTorch())
