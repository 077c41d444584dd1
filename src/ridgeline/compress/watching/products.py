"""Sees every product with a weight of a block, whatever kind of module computes it.

`torch.nn.functional.linear`, `addmm` (GPT-2), and `@` are met below the modules; which weight it is
tells the address of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ridgeline.checkpoints.layers import Matrix

Product = tuple[Matrix, ...]
"""The matrices of one product: several where a model keeps them stacked (an expert's gate, up)."""


class Stop(Exception):
    """What was wanted has been seen; nothing after it is needed."""


class Products(TorchFunctionMode):
    """Calls `before(product, x)` with the inputs of each; may answer other inputs.

    `after(product, y)` gets the outputs.
    """

    def __init__(
        self,
        matrices: Iterable[Matrix],
        before: Callable[[Product, Tensor], Tensor | None],
        after: Callable[[Product, Tensor], None] | None = None,
    ) -> None:
        super().__init__()
        by_slice: dict[int, list[Matrix]] = {}
        for matrix in matrices:
            by_slice.setdefault(matrix.slice_pointer, []).append(matrix)
        self._products = {pointer: tuple(found) for pointer, found in by_slice.items()}
        self._before = before
        self._after = after

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What torch calls in place of each of its functions."""
        del types
        kwargs = kwargs or {}
        places = _PLACES.get(func)
        product = None
        if places is not None and len(args) > max(places) and isinstance(args[places[1]], Tensor):
            product = self._products.get(args[places[1]].data_ptr())
        if product is None or places is None:
            return self._other(func, args, kwargs)
        replaced = self._before(product, args[places[0]])
        if replaced is not None:
            args = (*args[: places[0]], replaced, *args[places[0] + 1 :])
        result = func(*args, **kwargs)
        if self._after is not None:
            self._after(product, result)
        return result

    def _other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


_PLACES: dict[Any, tuple[int, int]] = {
    functional.linear: (0, 1),
    torch.addmm: (1, 2),
    torch.matmul: (0, 1),
    torch.mm: (0, 1),
    torch.Tensor.matmul: (0, 1),
    torch.Tensor.__matmul__: (0, 1),
}
"""Where each product's arguments have the inputs and the weight."""


class Origins(Products):
    """Also follows which tensor an input is: a view, a choice of rows of it, is still the same."""

    def __init__(self, matrices: Iterable[Matrix]) -> None:
        super().__init__(matrices, self._note)
        self.inputs: list[tuple[Product, int]] = []
        """Each product with the number of the tensor that flowed into it, in order."""
        self.same_rows: dict[Product, int] = {}
        """Of each product, a number that is equal where the very same tensor flows in."""
        # Weak, so that what flows through the block is freed as usual.
        self._origin: Any = WeakTensorKeyDictionary()
        self._tensor: Any = WeakTensorKeyDictionary()
        self._numbers = count()

    def number(self, tensor: Tensor) -> int:
        """The same for all tensors that are views or rows of one."""
        if tensor not in self._origin:
            self._origin[tensor] = next(self._numbers)
        found: int = self._origin[tensor]
        return found

    def _note(self, product: Product, x: Tensor) -> None:
        self.inputs.append((product, self.number(x)))
        if x not in self._tensor:
            self._tensor[x] = next(self._numbers)
        self.same_rows[product] = self._tensor[x]

    def _other(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        source = args[0] if args else None
        if (
            isinstance(result, Tensor)
            and isinstance(source, Tensor)
            and getattr(func, "__name__", "") in _SAME
            and result is not source
            and result.ndim
            and source.ndim
            and result.shape[-1] == source.shape[-1]
        ):
            self._origin[result] = self.number(source)
        return result


_SAME = frozenset(
    {
        *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand"),
        *("contiguous", "to", "float", "type_as", "detach", "dropout"),
        *("__getitem__", "index_select"),
    }
)
"""What changes no value along the last dimension."""


def run_with(mode: TorchFunctionMode, forward: Callable[[], Any]) -> Any:
    """Run under a mode; None where it was stopped."""
    try:
        with torch.no_grad(), mode:
            return forward()
    except Stop:
        return None


def module_outputs(block: nn.Module, seen: Callable[[nn.Module, Tensor], None]) -> list[Any]:
    """Hooks on every module of a block; `seen(module, output)`. The caller removes them."""

    def hook(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen(module, output)

    return [module.register_forward_hook(hook) for module in block.modules()]
