"""Reading a script's syntax tree: statements by line, calls, names, imports.

Everything here is of the original tree; nothing changes it.
"""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst
from libcst import matchers

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Block = cst.Module | cst.BaseSuite

_COMPOUND_PARTS = (
    cst.Else,
    cst.If,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.Finally,
    cst.MatchCase,
)
BUILTINS = frozenset(dir(builtins))


class CannotPlace(Exception):
    """Why an edit has no place in a file."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a statement is: its block, its index there, and the statements that contain it."""

    block: Block
    index: int
    statement: Statement = field(compare=False)
    outer: tuple[Spot, ...] = field(compare=False)
    """The statements around it, outermost first."""


def parse_statements(code: str) -> list[Statement]:
    """Statements of a snippet."""
    return list(cst.parse_module(code).body)


def body_of(block: Block) -> list[Statement]:
    """The statements of a block; those of a one-line suite count as one line."""
    if isinstance(block, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(block.body, trailing_whitespace=block.trailing_whitespace)]
    assert isinstance(block, (cst.Module, cst.IndentedBlock))
    return list(block.body)  # type: ignore[arg-type]


def suites_of(node: cst.CSTNode) -> list[cst.BaseSuite]:
    """The blocks of a compound statement, those of its `else` and `except` too."""
    found: list[cst.BaseSuite] = []
    for child in node.children:
        if isinstance(child, cst.BaseSuite):
            found.append(child)
        elif isinstance(child, _COMPOUND_PARTS):
            found += suites_of(child)
    return found


def walk(block: Block, outer: tuple[Spot, ...]) -> Iterator[Spot]:
    """Every statement of a block and of the blocks below it."""
    for index, statement in enumerate(statements_of(block)):
        spot = Spot(block, index, statement, outer)
        yield spot
        for suite in suites_of(statement):
            yield from walk(suite, (*outer, spot))


def statements_of(block: Block) -> list[Statement]:
    """The statements of `_body` as nodes of the tree: a one-line suite stands for its line."""
    if isinstance(block, cst.SimpleStatementSuite):
        return [block]  # type: ignore[list-item]
    return body_of(block)


def small_statements_of(statement: cst.CSTNode) -> list[cst.BaseSmallStatement]:
    """What stands on one line, between semicolons; nothing for a compound statement."""
    if isinstance(statement, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
        return list(statement.body)
    return []


def calls_in(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Calls in a statement's own line, not in the blocks below it; outer ones first."""
    if isinstance(node, cst.Call):
        yield node
    for child in node.children:
        if not isinstance(child, (cst.BaseSuite, *_COMPOUND_PARTS)):
            yield from calls_in(child)


def passes(call: cst.Call, keyword: str) -> bool:
    """Does the call pass this keyword?"""
    return any(a.keyword is not None and a.keyword.value == keyword for a in call.args)


def positional_at_most(call: cst.Call) -> float:
    """The number of arguments that a call may pass by position: any, where one is unpacked."""
    if any(argument.star == "*" for argument in call.args):
        return math.inf
    return sum(1 for argument in call.args if argument.keyword is None and not argument.star)


def is_backward(small: cst.BaseSmallStatement) -> bool:
    """Is it a statement that only runs a backward?"""
    value = small.value if isinstance(small, cst.Expr) else None
    return (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value in ("backward", "manual_backward")
    )


def sounds_like(call: cst.Call, words: tuple[str, ...]) -> bool:
    """Is one of the words in the last name of what is called?"""
    name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return isinstance(name, cst.Name) and any(word in name.value.lower() for word in words)


def names_in(node: cst.CSTNode) -> list[cst.Name]:
    """Every name in a piece of the tree."""
    return [n for n in matchers.findall(node, matchers.Name()) if isinstance(n, cst.Name)]


def assigned_in(node: cst.CSTNode) -> set[str]:
    """Names that a statement binds anew, in it or below it."""
    return {name for target in _targets_in(node) for name in _bound_by(target)}


def touched_in(node: cst.CSTNode) -> set[str]:
    """Names that a statement binds anew or changes a part of, as in `self.step += 1`."""
    return {name.value for target in _targets_in(node) for name in names_in(target)}


def _targets_in(node: cst.CSTNode) -> list[cst.CSTNode]:
    kinds = (
        matchers.AssignTarget()
        | matchers.AugAssign()
        | matchers.AnnAssign()
        | matchers.For()
        | matchers.NamedExpr()
    )
    targets = [found.target for found in matchers.findall(node, kinds)]  # type: ignore[attr-defined]
    return targets + [found.name for found in matchers.findall(node, matchers.AsName())]  # type: ignore[attr-defined]


def _bound_by(target: cst.CSTNode) -> list[str]:
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for element in target.elements for name in _bound_by(element.value)]
    return []


def target_of(spot: Spot, tree: cst.Module) -> str:
    """What the statement assigns to."""
    for small in small_statements_of(spot.statement):
        if isinstance(small, cst.Assign) and len(small.targets) == 1:
            return tree.code_for_node(small.targets[0].target)
    raise CannotPlace("the statement assigns to nothing, or to several things")


def assigned_by(small: cst.BaseSmallStatement, value: cst.BaseExpression) -> list[str] | None:
    """The plain names that a statement assigns `value` to, all of it; None: it does not."""
    if not isinstance(small, cst.Assign) or small.value is not value or len(small.targets) != 1:
        return None
    target = small.targets[0].target
    if isinstance(target, cst.Name):
        return [target.value]
    if not isinstance(target, cst.Tuple):
        return None
    names = [one.value.value for one in target.elements if isinstance(one.value, cst.Name)]
    return names if len(names) == len(target.elements) else None


_MAYBE = (
    cst.IfExp,
    cst.BooleanOperation,
    cst.Lambda,
    cst.BaseComp,
    cst.NamedExpr,
    cst.Await,
    cst.Yield,
    cst.Assert,
)


def is_always_computed(node: cst.CSTNode, wanted: cst.BaseExpression) -> bool:
    """Is `wanted` computed whenever `node` is, once, and before anything is bound?"""
    if node is wanted:
        return True
    if isinstance(node, _MAYBE):
        return False
    return any(is_always_computed(child, wanted) for child in node.children)


def root_of(code: str) -> str:
    """The name that an expression begins with."""
    return re.split(r"[.\[(]", code, maxsplit=1)[0]


def root_of_attribute(node: cst.Attribute) -> str:
    """The name that a chain of attributes begins with; empty when it is no name."""
    value: cst.BaseExpression = node
    while isinstance(value, cst.Attribute):
        value = value.value
    return value.value if isinstance(value, cst.Name) else ""


def import_aliases(tree: cst.CSTNode) -> Iterator[tuple[str, str]]:
    """Name bound by an import → last part of what it is."""
    kinds = matchers.Import() | matchers.ImportFrom()
    for node in matchers.findall(tree, kinds):
        assert isinstance(node, (cst.Import, cst.ImportFrom))
        if isinstance(node.names, cst.ImportStar):
            continue
        for alias in node.names:
            last = alias.evaluated_name.rsplit(".", maxsplit=1)[-1]
            if alias.evaluated_alias is not None:
                yield alias.evaluated_alias, last
            elif isinstance(node, cst.Import):
                first = alias.evaluated_name.split(".", maxsplit=1)[0]
                yield first, first
            else:
                yield last, last


def bound_at_top(tree: cst.Module) -> set[str]:
    """Names that imports at module level bind, conditional ones included."""
    statements = [statement for statement in tree.body if is_import(statement)]
    return {name for node in statements for name, _ in import_aliases(node)}


def is_import(statement: cst.CSTNode) -> bool:
    """Is it an import, or a `try` or `if` around imports?"""
    if isinstance(statement, (cst.Import, cst.ImportFrom)):
        return True
    if isinstance(statement, cst.SimpleStatementLine):
        return any(isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body)
    if isinstance(statement, (cst.Try, cst.If)):
        return any(is_import(inner) for suite in suites_of(statement) for inner in suite.body)
    return False


def _is_docstring(statement: cst.CSTNode) -> bool:
    smalls = small_statements_of(statement)
    return bool(smalls) and matchers.matches(
        smalls[0], matchers.Expr(matchers.SimpleString() | matchers.ConcatenatedString())
    )


def after_imports(tree: cst.Module) -> int:
    """Index after the imports at the head of a module, before its first definition or loop."""
    place = 0
    for index, statement in enumerate(tree.body):
        if is_import(statement) or (index == 0 and _is_docstring(statement)):
            place = index + 1
        elif not isinstance(statement, cst.SimpleStatementLine):
            break
    return place


def before_imports(tree: cst.Module) -> int:
    """Index before the first import of a module that a line may come before."""
    future = matchers.SimpleStatementLine(
        body=[matchers.ImportFrom(module=matchers.Name("__future__"))]
    )
    place = 0
    for index, statement in enumerate(tree.body):
        if matchers.matches(statement, future) or (index == 0 and _is_docstring(statement)):
            place = index + 1
    return place
