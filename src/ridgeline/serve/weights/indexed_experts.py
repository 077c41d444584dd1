"""Experts whose family's own code multiplies by one after the other: `F.linear(x, weight[i])`.

Such a module keeps the matrices of all experts in one parameter, as those do that ask transformers'
`ExpertsInterface`, but its `forward` is its own and stays so. A list of linear layers stands in the
parameter's place: what the code takes out of it by a number is a matrix that `F.linear` multiplies
by, and the layer of that number does it. Whether the code does nothing else with the parameter, its
source says; code that does (one product over all experts, slices of a flat matrix) keeps numbers.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from inspect import isfunction
from types import CodeType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional


class ExpertLayers(nn.ModuleList):
    """A linear layer for each expert, in the place of their parameter."""


class IndexedLayers(ExpertLayers):
    """The same for code that takes a matrix by its number and multiplies by it."""

    def __getitem__(self, number: Any) -> Any:
        """The matrix of that number, a whole one or a tensor of one."""
        return IndexedMatrix(super().__getitem__(int(number)))


class IndexedMatrix:
    """What `torch.nn.functional.linear` takes for a weight [out, in]: a layer that multiplies."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Tensor:
        """The product, of the one function that is asked for."""
        if function is not functional.linear or kwargs or len(args) != 2:
            return NotImplemented
        x, matrix = args
        found: Tensor = matrix.layer(x)
        return found


def indexed_leaves(module: nn.Module) -> tuple[str, ...]:
    """The parameters [experts, out, in] by which a module's code multiplies one by one."""
    stacked = tuple(
        name for name, one in module._parameters.items() if one is not None and one.ndim == 3
    )
    if not stacked or "expert" not in type(module).__name__.lower():
        return ()
    return stacked if set(stacked) <= _multiplied(type(module)) else ()


def _multiplied(kind: type[nn.Module]) -> frozenset[str]:
    """The attributes of `self` that a class takes matrices out of, and uses for nothing else."""
    codes = [
        one.__code__ for name, one in vars(kind).items() if name != "__init__" and isfunction(one)
    ]
    methods = [tree for code in codes for tree in _read(code)]
    uses = [name for one in methods for name in _uses(one)]
    products = [name for one in methods for name in _products(one)]
    return frozenset(name for name in products if uses.count(name) == products.count(name))


@functools.cache
def _read(code: CodeType) -> list[ast.stmt]:
    """A method as it is written; nothing, where it was made without a file."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError):
        return []


def _uses(method: ast.stmt) -> Iterator[str]:
    """Every attribute of `self`, as often as it is read for more than whether it is there."""
    asked = {
        id(node.left)
        for node in ast.walk(method)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
    }
    for node in ast.walk(method):
        if id(node) not in asked and (name := _own(node)) is not None:
            yield name


def _products(method: ast.stmt) -> Iterator[str]:
    """The x of every `linear(…, self.x[…])`."""
    for node in ast.walk(method):
        if not isinstance(node, ast.Call) or len(node.args) != 2 or node.keywords:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        weight = node.args[1]
        if called == "linear" and isinstance(weight, ast.Subscript):
            name = _own(weight.value)
            if name is not None and not isinstance(weight.slice, ast.Slice | ast.Tuple):
                yield name


def _own(node: ast.AST) -> str | None:
    """The attribute's name, where a node is an attribute of `self`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else None
    return None
