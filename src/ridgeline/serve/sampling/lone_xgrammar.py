"""xgrammar without torch and transformers, for a process that only compiles and tries grammars.

xgrammar imports both at its top, for bit masks on GPUs and for tokenizers, and takes four fifths of
its start for it. Nothing of theirs is used where a vocabulary comes as text and a mask is an array
of numpy's, so stand-ins take their places while it is imported. A release that asks more of them is
imported as it comes, with both.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_STANDING_IN = ("torch", "transformers")


class _Nothing:
    """A class in place of any class, and a value in place of any value."""


class _StandIn(ModuleType):
    """A module in which every public name is a class of nothing, and every call gives nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Nothing if name[0].isupper() else lambda *_, **__: None


def lone_xgrammar() -> Any:
    """The module; the libraries of which it needs nothing here are imported only if it insists."""
    if "xgrammar" in sys.modules or any(name in sys.modules for name in _STANDING_IN):
        return importlib.import_module("xgrammar")
    sys.modules["torch"] = None  # type: ignore[assignment]  # what tvm_ffi knows as not installed
    try:
        importlib.import_module("tvm_ffi")
        for name in _STANDING_IN:
            sys.modules[name] = _StandIn(name)
        return importlib.import_module("xgrammar")
    except Exception:  # whatever a later release does with them
        for name in [
            one for one in sys.modules if one.partition(".")[0] in ("xgrammar", "tvm_ffi")
        ]:
            del sys.modules[name]
    finally:
        for name in _STANDING_IN:
            sys.modules.pop(name, None)
    return importlib.import_module("xgrammar")
