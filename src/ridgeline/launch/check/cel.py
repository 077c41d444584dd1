"""The part of CEL that `x-kubernetes-validations` of custom resources use.

Common Expression Language, github.com/google/cel-spec: operators, field selection, `has`, the
macros all, exists, exists_one, filter and map, and the functions on strings and lists below.
A missing field is an error, which `||`, `&&` and the macros absorb when another operand decides.
Everything that the schemas in `schemas/` use is here, so that checking needs no package beside
PyYAML; cel-python does the same for all of CEL, with five packages, one of them compiled.

Example:
    >>> compiled("has(self.n) ? self.n <= 3 : true").evaluate({"self": {"n": 4}})
    False
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

Scope = Mapping[str, Any]
Evaluate = Callable[[Scope], Any]

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+\.\d+(?:[eE][+-]?\d+)?|0x[0-9a-fA-F]+|\d+u?)
    |(?P<text>r?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>\|\||&&|==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}]))""",
    re.VERBOSE,
)
_LEVELS = (("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})


class EvaluationError(Exception):
    """An expression has no value here: a missing field, a wrong type."""


class UnsupportedExpression(Exception):
    """An expression uses what this evaluator does not know."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression, ready to be evaluated."""

    evaluate: Evaluate
    uses_old: bool
    """Whether it speaks of the object before a change."""


@cache
def compiled(text: str) -> Expression:
    """Parse an expression once."""
    parser = _Parser(text)
    evaluate = parser.ternary()
    if parser.peek():
        raise UnsupportedExpression(f"{parser.peek()!r} in {text!r}")
    return Expression(evaluate, "oldSelf" in parser.tokens)


class _Parser:
    """Recursive descent over CEL's grammar; every rule returns a closure."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.position = 0
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise UnsupportedExpression(text[at : at + 20])
            self.tokens.append(match.group(0).strip())
            at = match.end()

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if (expected and token != expected) or not token:
            raise UnsupportedExpression(f"expected {expected!r}, found {token!r}")
        self.position += 1
        return token

    def ternary(self) -> Evaluate:
        condition = self.either()
        if self.peek() != "?":
            return condition
        self.take()
        first = self.either()
        self.take(":")
        second = self.ternary()
        return lambda scope: first(scope) if _truth(condition(scope)) else second(scope)

    def either(self) -> Evaluate:
        left = self.both()
        while self.peek() == "||":
            self.take()
            left = _absorbing(left, self.both(), True)
        return left

    def both(self) -> Evaluate:
        left = self.binary(0)
        while self.peek() == "&&":
            self.take()
            left = _absorbing(left, self.binary(0), False)
        return left

    def binary(self, level: int) -> Evaluate:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            sign = self.take()
            left = _operation(sign, left, self.binary(level + 1))
        return left

    def unary(self) -> Evaluate:
        if self.peek() == "!":
            self.take()
            operand = self.unary()
            return lambda scope: not _truth(operand(scope))
        if self.peek() == "-":
            self.take()
            number = self.unary()
            return lambda scope: -number(scope)
        return self.member()

    def member(self) -> Evaluate:
        value = self.primary()
        while self.peek() in (".", "["):
            if self.take() == "[":
                index = self.ternary()
                self.take("]")
                value = _indexed(value, index)
                continue
            name = self.take()
            if self.peek() != "(":
                value = _selected(value, name)
            elif name in _MACROS:
                value = self.macro(value, name)
            else:
                value = _called(name, (value, *self.arguments()))
        return value

    def macro(self, values: Evaluate, name: str) -> Evaluate:
        self.take("(")
        variable = self.take()
        self.take(",")
        body = self.ternary()
        self.take(")")
        return _comprehension(name, values, variable, body)

    def arguments(self, close: str = ")") -> list[Evaluate]:
        if close == ")":
            self.take("(")
        found = []
        while self.peek() != close:
            found.append(self.ternary())
            if self.peek() == ",":
                self.take()
        self.take(close)
        return found

    def primary(self) -> Evaluate:
        lexeme = self.take()
        if lexeme == "(":
            inner = self.ternary()
            self.take(")")
            return inner
        if lexeme == "[":
            items = self.arguments("]")
            return lambda scope: [item(scope) for item in items]
        if lexeme == "has":
            return self.presence()
        if lexeme[0].isdigit():
            number = float(lexeme) if "." in lexeme else int(lexeme.rstrip("u"), 0)
            return lambda _: number
        if lexeme[-1] in "'\"":
            text = ast.literal_eval(lexeme)
            return lambda _: text
        if lexeme in ("true", "false", "null"):
            constant = {"true": True, "false": False, "null": None}[lexeme]
            return lambda _: constant
        if self.peek() == "(":
            return _called(lexeme, tuple(self.arguments()))
        if not lexeme.isidentifier():
            raise UnsupportedExpression(lexeme)
        return _variable(lexeme)

    def presence(self) -> Evaluate:
        """Parse `has(a.b.c)`, which asks for the last field; what leads to it must be."""
        self.take("(")
        start = self.position
        end = start
        while self.tokens[end] != ")":
            end += 1
        inner = _Parser("")
        inner.tokens = self.tokens[start : end - 2]
        holder, name = inner.member(), self.tokens[end - 1]
        self.position = end + 1

        def present(scope: Scope) -> bool:
            value = holder(scope)
            if not isinstance(value, Mapping):
                raise EvaluationError(f"no such field: {name}")
            return value.get(name) is not None

        return present


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise EvaluationError("not true or false")
    return value


def _absorbing(left: Evaluate, right: Evaluate, deciding: bool) -> Evaluate:
    """Join by `||` or `&&`: the deciding value wins, even over the other side's error."""

    def evaluate(scope: Scope) -> bool:
        try:
            if _truth(left(scope)) is deciding:
                return deciding
        except EvaluationError:
            if _truth(right(scope)) is deciding:
                return deciding
            raise
        return _truth(right(scope))

    return evaluate


def _variable(name: str) -> Evaluate:
    def evaluate(scope: Scope) -> Any:
        if name not in scope:
            raise EvaluationError(f"undeclared reference to '{name}'")
        return scope[name]

    return evaluate


def _selected(holder: Evaluate, name: str) -> Evaluate:
    def evaluate(scope: Scope) -> Any:
        value = holder(scope)
        if not isinstance(value, Mapping) or name not in value:
            raise EvaluationError(f"no such key: {name}")
        return value[name]

    return evaluate


def _indexed(holder: Evaluate, index: Evaluate) -> Evaluate:
    def evaluate(scope: Scope) -> Any:
        value, at = holder(scope), index(scope)
        if isinstance(value, list) and not 0 <= at < len(value):
            raise EvaluationError(f"index out of bounds: {at}")
        if isinstance(value, Mapping) and at not in value:
            raise EvaluationError(f"no such key: {at}")
        return value[at]

    return evaluate


def _comprehension(name: str, values: Evaluate, variable: str, body: Evaluate) -> Evaluate:
    def results(scope: Scope) -> list[tuple[Any, Any]]:
        # Over a map, a comprehension runs over its keys: as Python does.
        found = []
        for item in values(scope):
            try:
                found.append((item, body({**scope, variable: item})))
            except EvaluationError as error:
                found.append((item, error))
        return found

    def evaluate(scope: Scope) -> Any:
        pairs = results(scope)
        outcomes = [outcome for _, outcome in pairs]
        if name == "all" and any(outcome is False for outcome in outcomes):
            return False
        if name == "exists" and any(outcome is True for outcome in outcomes):
            return True
        for outcome in outcomes:
            if isinstance(outcome, EvaluationError):
                raise outcome
        if name == "map":
            return outcomes
        if name == "filter":
            return [item for item, outcome in pairs if _truth(outcome)]
        if name == "exists_one":
            return outcomes.count(True) == 1
        return name == "all"

    return evaluate


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": _same,
    "!=": lambda a, b: not _same(a, b),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: int(a / b) if isinstance(a, int) and isinstance(b, int) else a / b,
    "%": lambda a, b: a - b * int(a / b),
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "size": len,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "startsWith": lambda text, start: text.startswith(start),
    "endsWith": lambda text, end: text.endswith(end),
    "contains": lambda text, part: part in text,
    "lowerAscii": lambda text: text.lower(),
    "upperAscii": lambda text: text.upper(),
    "trim": lambda text: text.strip(),
    "split": lambda text, sign: text.split(sign),
    "join": lambda values, sign="": sign.join(values),
    "string": str,
    "int": int,
    "double": float,
    "sum": sum,
    "min": min,
    "max": max,
    "isSorted": lambda values: list(values) == sorted(values),
}


def _operation(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    return _guarded(_OPERATIONS[sign], (left, right), sign)


def _called(name: str, arguments: tuple[Evaluate, ...]) -> Evaluate:
    if name not in _FUNCTIONS:
        raise UnsupportedExpression(f"function {name}")
    return _guarded(_FUNCTIONS[name], arguments, name)


def _guarded(
    function: Callable[..., Any],
    arguments: tuple[Evaluate, ...],
    name: str,
) -> Evaluate:
    def evaluate(scope: Scope) -> Any:
        values = [argument(scope) for argument in arguments]
        try:
            return function(*values)
        except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise EvaluationError(f"no such overload of {name}: {error}") from error

    return evaluate
