"""Batches that are cut slice by slice out of one long array, looked up in one call.

`torch.stack([data[i : i + length] for i in places])` is how small language models are fed. Each
slice costs microseconds of Python, and twice that where its ends are computed as tensors; a model
whose step takes a millisecond waits longer for its batch than it computes.
"""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records import Site
from ridgeline.records.edits import AtStart, Edit, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, source_of_kernel

CARD = Card(
    name="gathered-slices",
    title="Slices of one array gathered at once",
    cures=("host-python", "tiny-operators"),
    costs="Eight bytes for every element of a batch, while it is gathered.",
    source="NumPy documentation, Indexing on ndarrays, Advanced indexing",
    equivalence="bit-equal",
    stage=Stage.INPUT,
    required={"file": str, "function": str},
)

_STACKS = {("torch", "stack"), ("np", "stack"), ("numpy", "stack"), ("np", "array"),
           ("numpy", "array")}  # fmt: skip
_CONVERTERS = {("torch", "from_numpy"), ("torch", "tensor"), ("torch", "as_tensor"),
               ("np", "array"), ("np", "asarray"), ("numpy", "array"),
               ("numpy", "asarray")}  # fmt: skip
_CONVERTING = {"astype", "long", "int", "float", "to", "clone", "copy", "type"}
_LEAST_SHARE = 0.03
_NAME = "_ridgeline_gathered_slices"


@dataclass(frozen=True, slots=True)
class StackedSlices:
    """A call that stacks slices, the function around it, and what is to stand there instead."""

    call: ast.Call
    function: str
    code: str


def applies(context: Context) -> Applicability:
    """The host is found in such a line, in a function that is called for each batch."""
    share, _, function = _hottest(context)
    if share == 0.0:
        return Applicability(False, "no line that takes time stacks slices of one array")
    if share < _LEAST_SHARE:
        return Applicability(False, f"stacking slices takes {share:.1%} of a step")
    if not function:
        return Applicability(False, "slices are stacked in the loop itself, outside of a function")
    return Applicability(True, "")


def _hottest(context: Context) -> tuple[float, str, str]:
    """Share, file and function of the stacked slices that the host is found in most."""
    shares: defaultdict[tuple[str, str], float] = defaultdict(float)
    loops = {optimizer.step_site for optimizer in context.profile.optimizers}
    running = {(site.file, site.function) for site in loops if site is not None}
    for hot in context.profile.hot_lines:
        for found in _stacked(hot.site.file):
            if found.call.lineno <= hot.site.line <= (found.call.end_lineno or 0):
                name = "" if (hot.site.file, found.function) in running else found.function
                shares[hot.site.file, name] += hot.share
    if not shares:
        return 0.0, "", ""
    (file, function), share = max(shares.items(), key=lambda item: item[1])
    return share, file, function


@cache
def _stacked(file: str) -> tuple[StackedSlices, ...]:
    """All that a file stacks; nothing where it is not there to be read."""
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        return ()
    try:
        return tuple(stacked_slices(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError, OSError):
        return ()


def options(context: Context) -> list[Options]:
    """The function in which most of them are cut."""
    _, file, function = _hottest(context)
    return [{"file": file, "function": function}]


def predict(context: Context, options: Options) -> Gain:
    """What Python did for each slice is done once for all."""
    return amdahl(_hottest(context)[0], 2.0, 12.0)


def apply(points: Points, options: Options) -> Undo:
    """Give the function, as it is found before the first step of an optimizer, other code."""
    changed: list[tuple[FunctionType, CodeType]] = []

    def rewrite(optimizer: Any) -> None:
        if changed:
            return
        from ridgeline.kernels.gathered_slices import gathered_slices

        for function in _functions(str(options["file"]), str(options["function"])):
            code = _rewritten(function.__code__)
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                function.__globals__[_NAME] = gathered_slices
                changed.append((function, function.__code__))
                function.__code__ = code
        if changed:
            points.changed(CARD.name, f"slices in {options['function']} are gathered at once")

    def undo() -> None:
        points.on_optimizer.remove(rewrite)
        for function, code in changed:
            function.__code__ = code

    points.on_optimizer.append(rewrite)
    return undo


def _functions(file: str, name: str) -> list[FunctionType]:
    """Functions of that name from that file."""
    return [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType
        and one.__code__.co_name == name
        and one.__code__.co_filename.endswith(file)
    ]


def _rewritten(code: CodeType) -> CodeType | None:
    """The function's code with every stack of slices replaced; None where it has none."""
    tree = ast.parse(Path(code.co_filename).read_bytes())
    stacked = [one for one in stacked_slices(tree, _NAME) if one.function == code.co_name]
    if not stacked:
        return None
    _replace(tree, {id(one.call): one.code for one in stacked})
    whole = compile(tree, code.co_filename, "exec", dont_inherit=True)
    return next(
        (
            one
            for one in _codes_in(whole)
            if (one.co_name, one.co_firstlineno) == (code.co_name, code.co_firstlineno)
        ),
        None,
    )


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _replace(tree: ast.AST, codes: dict[int, str]) -> None:
    """Put other calls in the place of some, on their lines."""

    def other(node: Any) -> Any:
        if id(node) not in codes:
            return node
        call = ast.parse(codes[id(node)], mode="eval").body
        for inner in ast.walk(call):
            ast.copy_location(inner, node)
        return call

    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            setattr(parent, name, [*map(other, value)] if isinstance(value, list) else other(value))


def edits(context: Context, options: Options) -> list[Edit]:
    """The function that gathers, and a call of it in the place of each stack."""
    file = str(options["file"])
    if file not in [hot.site.file for hot in context.profile.hot_lines]:
        return []
    calls = [one for one in _stacked(file) if one.function == options["function"]]
    return [
        AtStart(files=(file,), code=source_of_kernel("gathered_slices")),
        *(
            ReplaceCall(
                site=Site(file=file, line=one.call.lineno, function=one.function),
                callee=_dotted(one.call.func)[1],
                code=one.code.replace("{", "{{").replace("}", "}}"),
            )
            for one in calls
        ),
    ]


# -- the pattern ---------------------------------------------------------------------------


def stacked_slices(tree: ast.AST, name: str = "gathered_slices") -> Iterator[StackedSlices]:
    """Every call in a file that stacks slices of one array, and the call that gathers them.

    >>> tree = ast.parse("torch.stack([data[i : i + 8].long() for i in places])")
    >>> [one.code for one in stacked_slices(tree)]  # doctest: +NORMALIZE_WHITESPACE
    ['gathered_slices(torch.stack, data, places, lambda i: (i, i + 8), lambda part: part.long())']
    """
    for function, node in _calls(tree, ""):
        code = _gathering(node, name)
        if code is not None:
            yield StackedSlices(node, function, code)


def _calls(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield function, child
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _calls(child, child.name)
        else:
            yield from _calls(child, function)


def _gathering(call: ast.Call, name: str) -> str | None:
    """What gathers the slices that a call stacks; None of any other call."""
    if _dotted(call.func) not in _STACKS or call.keywords or len(call.args) != 1:
        return None
    each = call.args[0]
    if not isinstance(each, ast.ListComp) or len(each.generators) != 1:
        return None
    (over,) = each.generators
    if over.ifs or over.is_async or not isinstance(over.target, ast.Name):
        return None
    index = over.target.id
    part, convert = _unwrapped(each.elt, index)
    if not isinstance(part, ast.Subscript) or not isinstance(part.slice, ast.Slice):
        return None
    first, last = part.slice.lower, part.slice.upper
    if part.slice.step is not None or first is None or last is None:
        return None
    if not (_is_arithmetic(first, index) and _is_arithmetic(last, index)):
        return None
    if index not in _names(first) or index not in _names(last) or index in _names(part.value):
        return None
    given = [
        ast.unparse(call.func),
        ast.unparse(part.value),
        ast.unparse(over.iter),
        f"lambda {index}: ({ast.unparse(first)}, {ast.unparse(last)})",
        *([f"lambda part: {convert}"] if convert != "part" else []),
    ]
    return f"{name}({', '.join(given)})"


def _unwrapped(element: ast.expr, index: str) -> tuple[ast.expr, str]:
    """What is sliced within conversions, and these as an expression of `part`."""
    if not isinstance(element, ast.Call):
        return element, "part"
    rest = [*element.args, *(keyword.value for keyword in element.keywords)]
    if any(index in _names(one) or "part" in _names(one) for one in rest[1:]):
        return element, "part"
    if _dotted(element.func) in _CONVERTERS and element.args:
        inner, code = _unwrapped(element.args[0], index)
        more = ast.unparse(element).removeprefix(f"{ast.unparse(element.func)}(")
        more = more.removeprefix(ast.unparse(element.args[0]))
        return inner, f"{ast.unparse(element.func)}({code}{more}"
    if isinstance(element.func, ast.Attribute) and element.func.attr in _CONVERTING:
        if any(index in _names(one) for one in rest):
            return element, "part"
        inner, code = _unwrapped(element.func.value, index)
        more = ast.unparse(element).removeprefix(ast.unparse(element.func.value))
        return inner, f"{code}{more}"
    return element, "part"


def _dotted(function: ast.expr) -> tuple[str, str]:
    """Module and name of a called function that is written as one dotted name."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id, function.attr
    return "", ""


def _is_arithmetic(expression: ast.expr, index: str) -> bool:
    """Does it say the same of one index and of a tensor of them?"""
    if isinstance(expression, ast.BinOp):
        plain = isinstance(expression.op, (ast.Add, ast.Sub, ast.Mult))
        return plain and all(
            _is_arithmetic(one, index) for one in (expression.left, expression.right)
        )
    if isinstance(expression, ast.Attribute):
        return index not in _names(expression)
    return isinstance(expression, ast.Name) or (
        isinstance(expression, ast.Constant) and type(expression.value) is int
    )


def _names(expression: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(expression) if isinstance(one, ast.Name)}
