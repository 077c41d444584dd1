"""Tensor classes of the script's own, made while a dispatch mode of ours is on.

`Tensor.__new__(Labelled, tensor)` makes a Python object of another class of what `aten.alias`
returned. Where a mode has seen the operator, that is a Python object already, of class `Tensor`,
and torch refuses ("Creating a new Tensor subclass … but the raw Tensor object is already
associated to a python object"). So such classes are made with the mode off, for as long as it is
on; what their `__new__` computes is not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from ridgeline.measure.child.guard import guarded

New = Callable[..., Any]


class OwnTensors:
    """The script's tensor classes, which can be made under `mode` until `restore`."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode
        self._originals: list[tuple[type, Any]] = []
        """Class and what stood in it; None: it has the `__new__` of `Tensor`."""

    @guarded()
    def let_through(self) -> None:
        """Put a `__new__` in front of that of every such class."""
        for kind in _classes(torch.Tensor):
            if not _is_libraries_own(kind):
                self._hold(kind)

    def _hold(self, kind: type) -> None:
        stands = kind.__dict__.get("__new__")
        if stands is None and kind.__new__ is not torch.Tensor.__new__:
            return  # it is made by a class above it
        original = stands.__func__ if isinstance(stands, staticmethod) else None
        if stands is not None and original is None:
            return
        self._originals.append((kind, stands))
        kind.__new__ = staticmethod(self._without_mode(original or torch.Tensor.__new__))  # type: ignore[assignment]

    def _without_mode(self, original: New) -> New:
        @functools.wraps(original)
        def new(*args: Any, **kwargs: Any) -> Any:
            modes = _get_current_dispatch_mode_stack()
            if len(modes) != 1 or modes[0] is not self._mode:
                return original(*args, **kwargs)  # the script's own mode would fail on it, too
            with _disable_current_modes():
                return original(*args, **kwargs)

        return new

    @guarded()
    def restore(self) -> None:
        """Put back what stood there."""
        while self._originals:
            kind, stood = self._originals.pop()
            if stood is None:
                del kind.__new__
            else:
                kind.__new__ = stood  # type: ignore[assignment]


def _classes(above: type) -> Iterator[type]:
    """Every class below one, nearest first."""
    below: list[type] = type.__subclasses__(above)
    for kind in below:
        yield kind
        yield from _classes(kind)


def _is_libraries_own(kind: type) -> bool:
    """Is it one of torch's, or does it dispatch by itself (it is a wrapper, made otherwise)?"""
    dispatches = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
    return dispatches or kind.__module__.partition(".")[0] in ("torch", "torchao")
