"""A user's Python file, read: which statement is at a line, which call is meant, what the model is.

Nothing is changed here: `patch_source.py` notes edits at the places that are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst
from libcst import matchers
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from ridgeline.tune.patch_tree import (
    BUILTINS,
    CannotPlace,
    Spot,
    calls_in,
    import_aliases,
    names_in,
    small_statements_of,
    sounds_like,
    walk,
)

_MODEL_WORDS = ("model", "net", "module", "encoder", "decoder", "generator", "discriminator",
                "policy", "actor", "critic", "backbone")  # fmt: skip
_LOSS_WORDS = ("loss", "criterion", "metric")


class ReadScript:
    """One file as a tree, with questions about its lines."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        wrapper = MetadataWrapper(cst.parse_module(text))
        self.tree = wrapper.module
        self.aliases = dict(import_aliases(self.tree))
        """Local name → the last name of what was imported under it."""
        self._positions = wrapper.resolve(PositionProvider)

    def spot(self, line: int) -> Spot:
        """The statement at a line."""
        spot = self.spot_or_none(line)
        if spot is None:
            raise CannotPlace(f"no statement at {self.name}:{line}")
        return spot

    def spot_or_none(self, line: int) -> Spot | None:
        """The innermost statement that spans the line."""
        found = None
        for spot in self._spots():
            start, end = self.lines(spot.statement)
            if start <= line <= end and (found is None or len(spot.outer) > len(found.outer)):
                found = spot
        return found

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a node."""
        range_ = self._positions[node]
        assert isinstance(range_, CodeRange)
        return range_.start.line, range_.end.line

    def line(self, node: cst.CSTNode) -> int:
        """First line of a node."""
        return self.lines(node)[0]

    def code(self, node: cst.CSTNode) -> str:
        """A node as it is written."""
        return self.tree.code_for_node(node)

    def free_name(self, wanted: str) -> str:
        """A name that the file does not use yet."""
        taken = {name.value for name in names_in(self.tree)}
        while wanted in taken:
            wanted += "_"
        return wanted

    def calls_at(self, spot: Spot, callee: str, line: int) -> list[cst.Call]:
        """The calls of that name at a statement that are nearest to the line."""
        calls = [call for call in calls_in(spot.statement) if self.callee(call) == callee]
        calls = calls or [call for call in calls_in(spot.statement) if self._is_computed(call)]
        if not calls:
            raise CannotPlace(f"no call of {callee} at {self.name}:{line}")
        nearest = min(self._distance(call, line) for call in calls)
        return [call for call in calls if self._distance(call, line) == nearest]

    def callee(self, call: cst.Call) -> str:
        """Last name of what is called, under the name that it was imported by."""
        if isinstance(call.func, cst.Attribute):
            return call.func.attr.value
        if isinstance(call.func, cst.Name):
            return self.aliases.get(call.func.value, call.func.value)
        return ""

    def statement_on_line_of(self, spot: Spot, call: cst.Call, callee: str) -> int:
        """Which of the statements on its line is the call alone."""
        for number, small in enumerate(small_statements_of(spot.statement)):
            if isinstance(small, cst.Expr) and small.value is call:
                return number
        raise CannotPlace(f"the value of {callee} is used at {self.name}:{self.line(call)}")

    def models(self, spot: Spot, line: int) -> list[str]:
        """The model's expressions at a statement, as they are written there."""
        owners = []
        for call in calls_in(spot.statement):
            lists = self.callee(call) in ("parameters", "named_parameters")
            if lists and isinstance(call.func, cst.Attribute):
                owners.append(self.code(call.func.value))
        if owners:
            return list(dict.fromkeys(owners))
        return [self.code(self.model_call(spot, line).func)]

    def model_call(self, spot: Spot, line: int) -> cst.Call:
        """The model's call at a statement."""
        calls = self.model_calls(spot.statement)
        if not calls:
            raise CannotPlace(f"cannot tell which expression is the model at {self.name}:{line}")
        innermost = min(calls, key=lambda call: self._distance(call, line))
        named = [call for call in calls if sounds_like(call, _MODEL_WORDS)]
        return named[0] if named else innermost

    def model_calls(self, node: cst.CSTNode) -> list[cst.Call]:
        """Calls of local objects that can be modules: not of imports, builtins or methods."""
        found = []
        for call in calls_in(node):
            if isinstance(call.func, cst.Name):
                name = call.func.value
                is_object = name not in self.aliases and name not in BUILTINS
                can_be = is_object and name not in self._definitions
            elif isinstance(call.func, cst.Attribute):
                can_be = sounds_like(call, _MODEL_WORDS)
            else:
                can_be = False
            if can_be and not sounds_like(call, _LOSS_WORDS):
                found.append(call)
        return found

    def _is_computed(self, call: cst.Call) -> bool:
        """Is it only known at run time what is called, as in `getattr(optim, name)(…)`?"""
        if isinstance(call.func, cst.Name):
            name = call.func.value
            return name not in {*self.aliases, *BUILTINS, *self._definitions}
        return isinstance(call.func, (cst.Call, cst.Subscript))

    def _distance(self, call: cst.Call, line: int) -> tuple[int, int]:
        """Calls that span the line come first, the innermost of them before the others."""
        range_ = self._positions[call]
        assert isinstance(range_, CodeRange)
        spans = range_.start.line <= line <= range_.end.line
        return (0 if spans else 1, range_.end.line - range_.start.line)

    @cached_property
    def _definitions(self) -> set[str]:
        kinds = matchers.FunctionDef() | matchers.ClassDef()
        return {node.name.value for node in matchers.findall(self.tree, kinds)}  # type: ignore[attr-defined]

    def _spots(self) -> Iterator[Spot]:
        yield from walk(self.tree, ())
