"""Lets Triton's interpreter know `constexpr` where annotations are text.

With `from __future__ import annotations`, and where `"tl.constexpr"` stands in quotes, the compiler
looks for the word; the interpreter compares the whole text, and takes such a parameter for a number
that only a launch knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ridgeline.patches import Undo, patch


def install() -> Undo:
    """Mend the interpreter of this process; what it knew already stays."""
    return patch("triton.runtime.interpreter:GridExecutor.__init__", _with_texts)


def _with_texts(original: Callable[..., None]) -> Callable[..., None]:
    def prepare(executor: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        original(executor, fn, *args, **kwargs)
        executor.constexprs += [
            name
            for name, said in inspect.get_annotations(fn).items()
            if isinstance(said, str) and "constexpr" in said
        ]

    return prepare
