"""Numbers that forward reads out of parameters and buffers, which an exported graph may keep.

    X = int(self.grid_size[0])          torch.zeros(batch, channels, self.grid_size[2])

A tracer knows shapes alone and takes `grid_size` for an input, whose values it refuses to read. In
inference they are as fixed as the weights: the first call, an eager one, writes down every such
number in order, and a call that is being exported is given the same ones. So are tensors that
forward makes of plain numbers (`torch.tensor(std)`, of which `normalize` asks whether any is zero).
What depends on an input of the call, or on a size that is left free, is never given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_READS = {"item", "__int__", "__float__", "__bool__", "__index__", "tolist"}
"""Methods that make a number of a tensor."""
_SIZED = {
    "zeros", "ones", "empty", "full", "arange", "linspace", "eye", "view", "reshape", "expand",
    "repeat", "new_zeros", "new_ones", "new_empty", "new_full", "unflatten", "rand", "randn",
    "interpolate", "narrow", "tile", "split", "chunk", "adaptive_avg_pool2d", "pad", "unfold",
}  # fmt: skip
"""Functions that take a tensor of one number where they want a size."""
_LITERALS = {"tensor", "as_tensor"}
"""Functions that make a tensor of what Python code says."""


_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ConstantReads:
    """What one module read of its own numbers in its first call, in order."""

    def __init__(self) -> None:
        self.values: list[Any] | None = None

    @contextmanager
    def kept(self, module: nn.Module) -> Iterator[None]:
        """While inside, numbers are written down the first time, and given back to an exporter."""
        if torch.compiler.is_exporting():
            mode = _Reading(module, list(self.values or ()), gives=True)
        elif self.values is None:
            mode = _Reading(module, [], gives=False)
        else:
            yield
            return
        with mode:
            yield
        if not torch.compiler.is_exporting():
            self.values = mode.values


class _Reading(TorchFunctionMode):  # type: ignore[misc]  # torch is Any to the type checker
    """Follows what is made of parameters and buffers alone."""

    def __init__(self, module: nn.Module, values: list[Any], *, gives: bool) -> None:
        super().__init__()
        self.values, self._gives, self._next = values, gives, 0
        own = [*module.parameters(), *module.buffers()]
        self._fixed = {id(one): one for one in own}
        """By identity; they are kept, so that no other tensor gets the identity of one."""
        self._free: dict[int, Tensor] = {}
        """Those that the first call wrote down, and which follow from a size that is free now."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a function, or answer with what it gave in the first call."""
        del types
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if name in _READS and tensors and id(tensors[0]) in self._fixed:
            return self._number(lambda: function(*args, **kwargs), id(tensors[0]) in self._free)
        if name in _SIZED and any(map(self._is_size, tensors)):
            args, kwargs = tree_map(self._size, (args, kwargs))
        result = function(*args, **kwargs)
        if name in {"__set__", "__setitem__"} or (name.endswith("_") and not name.endswith("__")):
            self._forget(tensors[:1])
        elif tensors and all(id(one) in self._fixed for one in tensors):
            self._keep(result, free=any(id(one) in self._free for one in tensors))
        elif not tensors and name in _LITERALS:
            given = tree_leaves((args, kwargs))
            self._keep(result, free=any(isinstance(one, _SYMBOLS) for one in given))
        return result

    def _keep(self, result: Any, *, free: bool) -> None:
        made = {id(one): one for one in tree_leaves(result) if isinstance(one, Tensor)}
        self._fixed |= made
        if free:
            self._free |= made

    def _number(self, read: Any, free: bool = False) -> Any:
        if not self._gives:
            self.values.append(read())
            return self.values[-1]
        if self._next >= len(self.values):
            return read()
        self._next += 1
        return read() if free else self.values[self._next - 1]

    def _is_size(self, value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and id(value) in self._fixed
            and value.ndim == 0
            and not value.is_floating_point()
        )

    def _size(self, value: Any) -> Any:
        if not self._is_size(value):
            return value
        return self._number(lambda: int(value), id(value) in self._free)

    def _forget(self, written: list[Tensor]) -> None:
        for one in written:
            self._fixed.pop(id(one), None)
