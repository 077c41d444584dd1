"""Call back when a library has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterImport:
    """A finder that finds nothing itself, but watches the others' modules load."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], object]]] = {}

    def find_spec(
        self, name: str, path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path) for finder in others)  # type: ignore[arg-type]
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        load = loader.exec_module

        def exec_then_call(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            for call in self.waiting.pop(name, ()):
                call()

        loader.exec_module = exec_then_call  # type: ignore[method-assign]
        return spec


_watching = _AfterImport()


def after_import(name: str, call: Callable[[], object]) -> None:
    """Call when module `name` has been imported; at once if it has been."""
    if name in sys.modules:
        call()
        return
    if _watching not in sys.meta_path:
        sys.meta_path.insert(0, _watching)
    _watching.waiting.setdefault(name, []).append(call)
