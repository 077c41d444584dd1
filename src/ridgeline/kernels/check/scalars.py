"""Lets Triton's interpreter use a number that a kernel computes as the bound of a Python loop.

It keeps each as an array of one element. Triton 3.6, which torch 2.11 brings, hands that to `int`
as it is, and numpy has refused to convert it since 2.4; later releases take the element out first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ridgeline.patches import Undo, patch


def install() -> Undo:
    """Mend the interpreter of this process; one that is right already computes the same."""
    return patch("triton.runtime.interpreter:_patch_lang_tensor", _with_an_index)


def _with_an_index(original: Callable[..., None]) -> Callable[..., None]:
    def patch_tensor(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda number: int(number.handle.data.item()))

    return patch_tensor
