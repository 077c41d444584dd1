"""The user's line, where in their code a traceback ends, and where an operator of a graph began.

The user's code is what is neither torch, nor Python's own library, nor a runtime, nor ours. A
package such as transformers counts where no file of the user's lies deeper.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_OURS = os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)) + os.sep
_MACHINERY = frozenset({
    "torch", "functorch", "onnx", "onnxscript", "onnx_ir", "onnxruntime", "openvino", "nncf",
    "executorch", "torchao", "numpy", "sympy", "torch_tensorrt", "tensorrt",
})  # fmt: skip
"""Packages whose frames are never the user's."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code."""

    file: str
    line: int
    expression: str = ""
    """What was evaluated there, where Python knows it."""

    @property
    def text(self) -> str:
        """The line as it is written."""
        return linecache.getline(self.file, self.line).strip().partition("  #")[0]

    def __str__(self) -> str:
        file = os.path.relpath(self.file)
        file = self.file if file.startswith(os.pardir) else file
        return f"{file}:{self.line}: `{self.text}`" if self.text else f"{file}:{self.line}"


@functools.cache
def _packages(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that packages were installed into, of those that Python imports from.

    Beside site-packages those of `pip install --target` and of the distribution: wherever an
    installed package's metadata lies. An egg-info also lies beside sources that are edited.
    """
    found = {os.path.realpath(path) + os.sep for path in paths if _holds_packages(path)}
    return tuple(sorted(found, key=len, reverse=True))


def _holds_packages(path: str) -> bool:
    return os.path.isdir(path) and any(
        name.endswith(".dist-info") and os.path.isdir(os.path.join(path, name))
        for name in os.listdir(path)
    )


def _rank(file: str) -> int:
    """How much a file is the user's: 2 it is, 1 a package that they use, 0 machinery."""
    real = os.path.realpath(file)
    if file.startswith("<") or real.startswith(_OURS):
        return 0
    for root in _packages(tuple(path for path in sys.path if path)):
        if real.startswith(root):
            return 0 if real[len(root) :].partition(os.sep)[0] in _MACHINERY else 1
    if real.startswith(_STANDARD):
        return 0
    return 2 if f"{os.sep}torch{os.sep}" not in real else 0


def _innermost(places: list[Place]) -> Place | None:
    """The last place of the highest rank."""
    ranked = [(rank, index) for index, place in enumerate(places) if (rank := _rank(place.file))]
    return places[max(ranked)[1]] if ranked else None


def place_of_error(error: BaseException) -> Place | None:
    """The user's line that an error, or what caused it, came through."""
    for one in (error, *causes(error)):
        place = _innermost(_places(one.__traceback__))
        if place is not None:
            return place
    return None


def causes(error: BaseException) -> list[BaseException]:
    """The errors that led to this one, the nearest first."""
    found: list[BaseException] = []
    inner = error.__cause__ or error.__context__
    while inner is not None and inner not in found:
        found.append(inner)
        inner = inner.__cause__ or inner.__context__
    return found


def _places(trace: TracebackType | None) -> list[Place]:
    found = []
    # What stands above the conversion in the user's own script is not where forward fails.
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_lineno is not None:
            found.append(Place(code.co_filename, trace.tb_lineno, _expression(trace)))
        trace = trace.tb_next
    ours = [i for i, place in enumerate(found) if os.path.realpath(place.file).startswith(_OURS)]
    return found[ours[0] :] if ours else found


def _expression(trace: TracebackType) -> str:
    """Source of what was evaluated when the frame was left."""
    positions = list(trace.tb_frame.f_code.co_positions())
    index = trace.tb_lasti // 2
    if not 0 <= index < len(positions):
        return ""
    first, last, start, end = positions[index]
    if first is None or last is None or start is None or end is None:
        return ""
    lines = [
        linecache.getline(trace.tb_frame.f_code.co_filename, n) for n in range(first, last + 1)
    ]
    if not lines or not lines[-1]:
        return ""
    lines[-1] = lines[-1].encode()[:end].decode(errors="ignore")
    lines[0] = lines[0].encode()[start:].decode(errors="ignore")
    return "".join(lines)


def called_method(place: Place) -> str:
    """Name of the method or function that was called there, e.g. `numpy`; empty: none was."""
    try:
        tree = ast.parse(place.expression.strip(), mode="eval").body
    except SyntaxError:
        return ""
    if not isinstance(tree, ast.Call):
        return ""
    function = tree.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def place_of_node(node: Any) -> Place | None:
    """The user's line that an operator of an exported graph comes from."""
    text = node.meta.get("stack_trace") or ""
    return place_in_text(text)


def place_in_text(text: str) -> Place | None:
    """The user's line in what torch writes as a traceback."""
    return _innermost([Place(m["file"], int(m["line"])) for m in _FRAME.finditer(text)])
