"""An error of torch or of a runtime as one line: the user's line or the operator, and the cure.

What kind of failure it is follows from the type of the error, from the graph up to where it broke
(`partial_fx_graph` of torch's data-dependent guards), from the operator that an exporter held in
its hands, and from the expression that the user's innermost frame was evaluating.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ridgeline.errors import ExportError, in_words
from ridgeline.runtimes.capture.sources import (
    Place,
    called_method,
    causes,
    place_of_error,
    place_of_node,
)

_LEAVES_TORCH = frozenset({"numpy", "tolist", "asarray", "array", "__array__", "data_ptr"})
"""Methods and functions whose result is no tensor of torch's any more."""


def keep_log(folder: Path, error: BaseException, said: str) -> str:
    """Write the whole message beside a folder; returns the file's name."""
    path = folder.with_name(f"{folder.name}.log")
    text = "".join(traceback.format_exception(error))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n{said}", encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return str(path)


def failed_in_pytorch(error: BaseException) -> ExportError:
    """The module does not even run on the example."""
    place = place_of_error(error)
    where = f"{place} fails" if place else "the model fails"
    return ExportError(
        f"{where} in PyTorch itself on the example input ({type(error).__name__}: "
        f"{in_words(error)}); give inputs of the shape that the model takes",
        kind="fails-in-pytorch",
    )


def blame(
    error: BaseException, log: str, runtime: str = "torch.export", program: Any = None
) -> ExportError:
    """Whose line it is, and the cure.

    Args:
        error: What the export or the conversion raised.
        log: File with all of it.
        runtime: Who raised it.
        program: The exported program that was converted; None: there is none yet.
    """
    place = place_of_error(error)
    for one in (error, *causes(error)):
        for explain in (_value_decides, _shape_of_values, _no_shape_rule):
            line = explain(one, place)
            if line is not None:
                return ExportError(line[1], kind=line[0], log=log)
    broken = _own_pass(error)
    if broken is not None:
        name, why = broken
        return ExportError(
            f"{_at(place)}: {runtime}'s own {name} fails on this graph ({why}); no line of the "
            "model is at fault: export to another format, or try another release of it",
            kind="own-pass",
            log=log,
        )
    node = _node_of(error) or _own_operator(error, program)
    if node is not None:
        return blame_operator(node, program, log, runtime)
    kind, words = _by_expression(error, place, runtime)
    return ExportError(words, kind=kind, log=log)


def _own_pass(error: BaseException) -> tuple[str, str] | None:
    """The pass of a runtime that could not rewrite the graph, and what it said."""
    chain = [error, *causes(error)]
    for place, one in enumerate(chain):
        found = re.match(r"An error occurred when running the '(\w+)' pass", str(one))
        if found is not None:
            return found[1], in_words(chain[min(place + 1, len(chain) - 1)])
    return None


def blame_operator(node: Any, program: Any, log: str, runtime: str) -> ExportError:
    """An operator of a graph is what a runtime cannot take.

    Args:
        node: The operator, in the program's graph or in one that was made from it.
        program: The exported program.
        log: File with what the runtime said.
        runtime: Who said it.
    """
    place, name = _place_of_operator(node, program), operator_name(node)
    dtypes = _odd_dtypes(node)
    if dtypes:
        return ExportError(
            f"{_at(place)}: {runtime} does not compute in {dtypes[0]} ({name}); cast to a dtype "
            "that it has (float32), or leave that part outside of the model",
            kind="dtype-not-there",
            log=log,
        )
    own = not name.startswith(("aten.", "prims."))
    cure = (
        "write its forward in torch's own operators"
        if own
        else "write it in other operators, or compute that part outside of the model"
    )
    return ExportError(
        f"{_at(place)}: {runtime} has no operator {name}; {cure}",
        kind="operator-not-there",
        log=log,
    )


def operator_name(node: Any) -> str:
    """The operator of a graph's node as runtimes write it, e.g. `aten.fft_rfft2`."""
    return str(node.target).removesuffix(".default")


def _place_of_operator(node: Any, program: Any) -> Place | None:
    """The user's line, of the operator or of the one that it was decomposed from."""
    place = place_of_node(node)
    if place is not None or program is None:
        return place
    names = set(_ancestors(node.meta.get("from_node") or ()))
    found = (place_of_node(one) for one in program.graph.nodes if one.name in names)
    return next(filter(None, found), None)


def _ancestors(sources: Any) -> Iterator[str]:
    for source in sources:
        yield source.name
        yield from _ancestors(source.from_node or ())


def _at(place: Place | None) -> str:
    return str(place) if place else "forward"


def _value_decides(error: BaseException, place: Place | None) -> tuple[str, str] | None:
    """A branch that follows from values of tensors: torch's guard on what it cannot know."""
    condition = getattr(error, "cond", None)
    if condition is None:
        return None
    symbols = {str(symbol) for symbol in condition.free_symbols}
    source = _source_of(symbols, str(getattr(error, "partial_fx_graph", "")))
    if source is not None and torch.Tag.dynamic_output_shape in source.tags:
        return "data-dependent-shape", (
            f"{_at(place)} needs to know how many elements `{_spoken(source)}` finds, which "
            "depends on the data; keep a fixed number (topk, padding, torch.where), or leave that "
            "part outside of the model"
        )
    return "value-decides", (
        f"{_at(place)} decides by a value of a tensor, and a graph has one path; "
        "write it as torch.where or torch.cond, or decide outside of the model"
    )


def _shape_of_values(error: BaseException, place: Place | None) -> tuple[str, str] | None:
    """Operators whose output's size or value depends on data, raised by type."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )

    if isinstance(error, DynamicOutputShapeException):
        return "data-dependent-shape", (
            f"{_at(place)}: the output's size of {error.func} depends on the data; keep a fixed "
            "number (topk, padding, torch.where), or leave that part outside of the model"
        )
    if isinstance(error, DataDependentOutputException):
        return "value-decides", (
            f"{_at(place)} reads a value of a tensor ({error.func}), which a graph does not have; "
            "write it as torch.where or torch.cond, or read it outside of the model"
        )
    return None


def _source_of(symbols: set[str], graph: str) -> Any:
    """The operator of an unfinished graph whose output's size, or value, first has a symbol.

    `nonzero: "i64[u0, 3]" = torch.ops.aten.nonzero.default(gt)` is where u0 comes from.
    """
    for found in _OPERATOR.finditer(graph):
        if symbols & set(_SYMBOL.findall(found["type"])):
            packet = getattr(getattr(torch.ops, found["space"]), found["name"])
            return getattr(packet, found["overload"])
    return None


_OPERATOR = re.compile(
    r'"(?P<type>[^"]*)" = torch\.ops\.(?P<space>\w+)\.(?P<name>\w+)\.(?P<overload>\w+)\('
)
_SYMBOL = re.compile(r"\b(?:u|zuf)\d+\b")


def _spoken(operator: Any) -> str:
    """An operator as people write it."""
    name = operator._schema.name.rpartition("::")[2]
    return "x[mask]" if name == "index" else str(name)


def _no_shape_rule(error: BaseException, place: Place | None) -> tuple[str, str] | None:
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    if not isinstance(error, UnsupportedOperatorException):
        return None
    name = str(error.func).removesuffix(".default").replace(".", "::", 1)
    return "operator-without-shapes", (
        f"{_at(place)}: the operator {name} has no rule for the shape of its output; register one "
        f'with @torch.library.register_fake("{name}")'
    )


def _node_of(error: BaseException) -> Any:
    """The operator that an exporter was at when it failed: a local of one of its frames."""
    from torch.fx import Node

    for one in (error, *causes(error)):
        trace = one.__traceback__
        found = None
        while trace is not None:
            candidate = trace.tb_frame.f_locals.get("node")
            if isinstance(candidate, Node):
                found = candidate
            trace = trace.tb_next
        if found is not None and found.op == "call_function":
            return found
    return None


def _own_operator(error: BaseException, program: Any) -> Any:
    """An operator of the user's own (not one of torch's) that a runtime names in its message."""
    said = " ".join(str(one) for one in (error, *causes(error)))
    for node in program.graph.nodes if program is not None else ():
        schema = getattr(node.target, "_schema", None)
        if schema is not None and not schema.name.startswith("aten::") and schema.name in said:
            return node
    return None


USUAL = frozenset({
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip
"""Dtypes that inference runtimes have."""


def _odd_dtypes(node: Any) -> list[torch.dtype]:
    """Dtypes around an operator that inference runtimes do not have: complex, 8-bit floats."""
    values = [node.meta.get("val"), *(one.meta.get("val") for one in node.all_input_nodes)]
    found = [value for value in node.kwargs.values() if isinstance(value, torch.dtype)]
    found += [tensor.dtype for value in values for tensor in _tensors(value)]
    return [dtype for dtype in found if dtype not in USUAL]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _by_expression(error: BaseException, place: Place | None, runtime: str) -> tuple[str, str]:
    """By what the user's innermost frame was evaluating."""
    called = called_method(place) if place else ""
    if called in _LEAVES_TORCH:
        return "leaves-torch", (
            f"{_at(place)} leaves torch with .{called}(), and a graph has only torch's operators; "
            "compute it with torch, or outside of the model"
        )
    if isinstance(error, TypeError) and "SymInt" in str(error):
        return "needs-a-number", (
            f"{_at(place)} needs a size as a plain number, for a cache or a key, while it is left "
            "free; compute it anew without the cache, or export with that size fixed"
        )
    return "not-followed", (
        f"{_at(place)} cannot be followed by {runtime} ({type(error).__name__}: "
        f"{_short(error)}); write it with torch's operators on whole tensors, or outside of the "
        "model"
    )


def _short(error: BaseException) -> str:
    line = in_words(error).rstrip(".")
    return line if len(line) <= 160 else f"{line[:157]}…"
