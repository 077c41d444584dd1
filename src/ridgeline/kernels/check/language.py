"""What Triton's compiler takes and its interpreter does not, or takes otherwise.

- `constexpr` in annotations that are text, by quotes or by `from __future__ import annotations`.
- Grids given as lists.
- Arguments that are Python's floats: a compiled kernel gets float32 numbers, which have `.to` and
  widen what they meet; the interpreter hands them on as they are.
- Functions of `triton.language` under names of a file's own (`fast_exp = tl.math.exp`).
- `.value` of a constant: the interpreter hands over the number, text or dtype itself.
- `and`, `or` and `not` between tensors: the compiler computes them element by element, every
  operand; Python asks one operand for its truth and gives the other.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from ridgeline.patches import Undo, in_reverse, patch

_BOTH: Final = "_ridgeline_both"
_EITHER: Final = "_ridgeline_either"
_OPPOSITE: Final = "_ridgeline_opposite"
_VALUE: Final = "_ridgeline_value"


def install() -> Undo:
    """Mend the interpreter of this process; what it took already stays."""
    return in_reverse(
        [
            patch("triton.runtime.interpreter:GridExecutor.__init__", _with_texts_and_lists),
            patch("triton.runtime.interpreter:FunctionRewriter._transform_ast", _in_our_words),
            patch("triton.runtime.interpreter:_implicit_cvt", _with_floats),
        ]
    )


def _with_texts_and_lists(original: Callable[..., None]) -> Callable[..., None]:
    def prepare(executor: Any, fn: Any, names: Any, grid: Any, *args: Any, **kwargs: Any) -> None:
        original(executor, fn, names, _tuple_of(grid), *args, **kwargs)
        executor.constexprs += [
            name
            for name, said in inspect.get_annotations(fn).items()
            if isinstance(said, str) and "constexpr" in said
        ]

    return prepare


def _tuple_of(grid: Any) -> Any:
    """A grid, or the function that gives one, whose sizes come as a tuple."""
    if callable(grid):
        return lambda settings: _tuple_of(grid(settings))
    return tuple(grid) if isinstance(grid, list) else grid


def _with_floats(original: Callable[..., Any]) -> Callable[..., Any]:
    def converted(argument: Any) -> Any:
        if not isinstance(argument, float):
            return original(argument)
        return tl.tensor(TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)

    return converted


def _in_our_words(original: Callable[..., ast.AST]) -> Callable[..., ast.AST]:
    def transform(rewriter: Any, source: str) -> ast.AST:
        names = rewriter.fn.__globals__
        names.update({name: _as_patched(one) for name, one in names.items() if _is_builtin(one)})
        names.update({_BOTH: _both, _EITHER: _either, _OPPOSITE: _opposite, _VALUE: _value})
        return ast.fix_missing_locations(_InOurWords().visit(original(rewriter, source)))

    return transform


def _is_builtin(value: Any) -> bool:
    return bool(getattr(value, "__triton_builtin__", False))


def _as_patched(builtin: Any) -> Callable[..., Any]:
    """What the language has under its name whenever it is called: the interpreter replaces that."""
    name = builtin.__name__
    module = tl if hasattr(tl, name) else sys.modules[builtin.__module__]

    def call(*args: Any, **named: Any) -> Any:
        return getattr(module, name)(*args, **named)

    return call


class _InOurWords(ast.NodeTransformer):
    """Calls functions of ours in place of `and`, `or`, `not` and `.value`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "value" or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(ast.Call(ast.Name(_VALUE, ast.Load()), [node.value], []), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = _BOTH if isinstance(node.op, ast.And) else _EITHER
        later: list[ast.expr] = [ast.Lambda(_NOTHING_TAKEN, one) for one in node.values]
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), later, []), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        called = ast.Call(ast.Name(_OPPOSITE, ast.Load()), [node.operand], [])
        return ast.copy_location(called, node)


_NOTHING_TAKEN: Final = ast.arguments(
    posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]
)


def _both(*parts: Callable[[], Any]) -> Any:
    return _combined(parts, False, lambda one, other: one.logical_and(other))


def _either(*parts: Callable[[], Any]) -> Any:
    return _combined(parts, True, lambda one, other: one.logical_or(other))


def _combined(parts: Any, decisive: bool, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine tensors as the compiler does: anything else decides alone or has no effect."""
    tensors, value = [], None
    for part in parts:
        value = part()
        if isinstance(value, tl.tensor):
            tensors.append(value)
        elif bool(value) is decisive:
            return value
    return functools.reduce(combine, tensors) if tensors else value


def _opposite(value: Any) -> Any:
    return value.__not__() if isinstance(value, tl.tensor) else not value


def _value(constant: Any) -> Any:
    return getattr(constant, "value", constant)
