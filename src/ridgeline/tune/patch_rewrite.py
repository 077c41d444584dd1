"""Writing a script's syntax tree anew: what was noted for its blocks and calls, done in one walk.

Everything that no change touches stays as it was, to the byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst import matchers

from ridgeline.tune.patch_tree import Block, CannotPlace, Statement, body_of, parse_statements

Change = Callable[[cst.Call], cst.BaseExpression]
Group = tuple[list[Statement], list[Statement]]
"""What was inserted before a statement; the statement and what follows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hoist:
    """An expression that is computed under `with` before its statement."""

    header: str
    expression: cst.BaseExpression
    name: cst.Name
    """The new name that it is assigned to, and what then stands in its place."""


@dataclass(slots=True)
class BlockChanges:
    """What happens to the statements of one block, by their index."""

    before: dict[int, list[Statement]] = field(default_factory=lambda: defaultdict(list))
    after: dict[int, list[Statement]] = field(default_factory=lambda: defaultdict(list))
    wraps: list[tuple[int, int, str]] = field(default_factory=list)
    """Triples (first, end, header): statements first … end-1 go under `with header`."""
    hoists: dict[int, Hoist] = field(default_factory=dict)
    splits: dict[int, tuple[int, int, str, str]] = field(default_factory=dict)
    """(first, end, header, free name) among the small statements of one line."""
    removed: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Small statements that go, by the index of their line."""


class Rewriter(cst.CSTTransformer):
    """Applies all changes in one walk; children are rewritten before their parents."""

    def __init__(
        self, blocks: dict[Block, BlockChanges], calls: dict[cst.Call, list[Change]]
    ) -> None:
        super().__init__()
        self._blocks = blocks
        self._calls = calls
        self._hoisted = {
            hoist.expression: hoist.name
            for changes in blocks.values()
            for hoist in changes.hoists.values()
        }
        self._taken: dict[cst.BaseExpression, cst.BaseExpression] = {}
        """Hoisted expressions as they are after their own changes."""

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        """Dispatch by the node's identity: places were noted on nodes of the original tree."""
        updated: Any = super().on_leave(original_node, updated_node)
        if isinstance(original_node, cst.Call) and original_node in self._calls:
            for change in self._calls[original_node]:
                if isinstance(updated, cst.Call):
                    updated = change(updated)
        if isinstance(original_node, cst.BaseExpression) and original_node in self._hoisted:
            self._taken[original_node] = updated
            return self._hoisted[original_node]
        if isinstance(original_node, (cst.Module, cst.BaseSuite)) and original_node in self._blocks:
            return self._rebuilt(self._blocks[original_node], updated)
        return updated

    def _rebuilt(self, changes: BlockChanges, block: Block) -> Block:
        if changes == BlockChanges():
            return block
        statements = body_of(block)
        groups = [self._expanded(changes, i, s) for i, s in enumerate(statements)]
        body = _nested(groups, changes.wraps)
        if isinstance(block, cst.Module):
            return block.with_changes(body=body)
        body = body or [cst.SimpleStatementLine([cst.Pass()])]
        if isinstance(block, cst.IndentedBlock):
            return block.with_changes(body=body)
        return cst.IndentedBlock(body=body)

    def _expanded(self, changes: BlockChanges, index: int, statement: Statement) -> Group:
        """One statement with what stands before and after it now."""
        middle: list[Statement] = [statement]
        if index in changes.removed:
            middle = _without(statement, changes.removed[index])
        if index in changes.splits:
            middle = _split_line(statement, changes.splits[index])
        if index in changes.hoists:
            hoist = changes.hoists[index]
            assign = cst.Assign([cst.AssignTarget(hoist.name)], self._taken[hoist.expression])
            line = cst.SimpleStatementLine([assign])
            middle = [*_with_block(hoist.header, [line], statement), _without_lead(statement)]
        before = changes.before.get(index, [])
        if before and middle:
            blank, rest = _blank_lead(middle[0])
            before = [before[0].with_changes(leading_lines=blank), *before[1:]]
            middle = [middle[0].with_changes(leading_lines=rest), *middle[1:]]
        return before, [*middle, *changes.after.get(index, [])]


def _nested(groups: list[Group], wraps: list[tuple[int, int, str]]) -> list[Statement]:
    """Statements with their `with` blocks, the widest outermost."""
    headers: dict[tuple[int, int], list[str]] = defaultdict(list)
    for first, end, header in wraps:
        headers[first, end].append(header)

    def build(
        start: int, end: int, spans: list[tuple[int, int]], *, before: bool
    ) -> list[Statement]:
        """Groups start … end-1; `before`: with what was inserted before the first of them."""
        body: list[Statement] = []
        position = start
        while position < end:
            inserted, statements = groups[position]
            if before or position > start:
                body += inserted
            if not spans or spans[0][0] > position:
                body += statements
                position += 1
                continue
            span, rest = spans[0], spans[1:]
            within = [other for other in rest if other[1] <= span[1]]
            spans = [other for other in rest if other not in within]
            wrapped = build(*span, within, before=False)
            if wrapped:
                body += _with_block(", ".join(headers[span]), wrapped, wrapped[0])
            position = span[1]
        return body

    widest_first = sorted(headers, key=lambda span: (span[0], -span[1]))
    return build(0, len(groups), widest_first, before=True)


def _with_block(header: str, body: Sequence[Statement], lead: Statement) -> list[Statement]:
    """`with header:` over `body`; the comment lines above `lead` stay above the block."""
    block = parse_statements(f"with {header}:\n    pass")[0]
    inner = [_without_lead(body[0]), *body[1:]]
    return [
        block.with_changes(leading_lines=lead.leading_lines, body=cst.IndentedBlock(body=inner))
    ]


def _split_line(statement: Statement, split: tuple[int, int, str, str]) -> list[Statement]:
    """One line of several small statements, or one that runs the backward, taken apart."""
    assert isinstance(statement, cst.SimpleStatementLine)
    first, end, header, name = split
    lines: list[Statement] = [_line_of(small) for small in statement.body]
    if first == end:
        lines[first : first + 1] = loss_and_backward(statement.body[first], cst.Name(name))
        end = first + 1
    lines[0] = lines[0].with_changes(leading_lines=statement.leading_lines)
    lines[-1] = lines[-1].with_changes(trailing_whitespace=statement.trailing_whitespace)
    return [*lines[:first], *_with_block(header, lines[first:end], lines[first]), *lines[end:]]


def loss_and_backward(
    small: cst.BaseSmallStatement, loss: cst.Name
) -> list[cst.SimpleStatementLine]:
    """`model(x).sum().backward()` or `accelerator.backward(model(x))` as two statements."""
    assert isinstance(small, cst.Expr)
    assert isinstance(small.value, cst.Call)
    assert isinstance(small.value.func, cst.Attribute)
    call, receiver = small.value, small.value.func.value
    computed: cst.BaseExpression = receiver
    if matchers.findall(receiver, matchers.Call()):
        backward = call.with_changes(func=small.value.func.with_changes(value=loss))
    elif call.args:
        computed = call.args[0].value
        backward = call.with_changes(args=[call.args[0].with_changes(value=loss), *call.args[1:]])
    else:
        raise CannotPlace("the loss of the backward is computed elsewhere")
    if "\n" not in cst.Module([]).code_for_node(computed):  # else they hold the lines together
        computed = computed.with_changes(lpar=[], rpar=[])
    assign = cst.Assign([cst.AssignTarget(loss)], computed)
    return [_line_of(assign), _line_of(cst.Expr(backward))]


def _line_of(small: cst.BaseSmallStatement) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def _without(statement: Statement, gone: set[int]) -> list[Statement]:
    """A line without some of its small statements; nothing when none is left."""
    assert isinstance(statement, cst.SimpleStatementLine)
    left = [small for i, small in enumerate(statement.body) if i not in gone]
    if not left:
        return []
    left[-1] = left[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
    return [statement.with_changes(body=left)]


def _without_lead(statement: Statement) -> Statement:
    return statement.with_changes(leading_lines=[])


def _blank_lead(
    statement: Statement,
) -> tuple[list[cst.EmptyLine], list[cst.EmptyLine]]:
    """Blank lines above a statement, and its comments: what is inserted goes between."""
    lines = list(statement.leading_lines)
    number = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
    return lines[:number], lines[number:]


def converted_to_float(call: cst.Call) -> cst.BaseExpression:
    """The call with `.float()` behind it."""
    return cst.Call(cst.Attribute(call, cst.Name("float")))


def argument_setter(keyword: str, value: str) -> Change:
    """A change that gives a call `keyword=value`, whatever it had."""

    def change(call: cst.Call) -> cst.Call:
        arguments = list(call.args)
        for index, argument in enumerate(arguments):
            if argument.keyword is not None and argument.keyword.value == keyword:
                arguments[index] = argument.with_changes(value=cst.parse_expression(value))
                return call.with_changes(args=arguments)
        for index, argument in enumerate(arguments):
            if argument.star == "**":  # it may hold the keyword already: override it
                inner = cst.Module([]).code_for_node(argument.value)
                merged = cst.parse_expression(f'{{**{inner}, "{keyword}": {value}}}')
                arguments[index] = argument.with_changes(value=merged)
                return call.with_changes(args=arguments)
        return call.with_changes(args=_with_argument(call, arguments, keyword, value))

    return change


def _with_argument(
    call: cst.Call, arguments: list[cst.Arg], keyword: str, value: str
) -> list[cst.Arg]:
    """The arguments and one more, spaced as those before it are; comments stay where they are."""
    plain = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(cst.parse_expression(value), keyword=cst.Name(keyword), equal=plain)
    if not arguments:
        return [new]
    last = arguments[-1]
    trailing = last.comma if isinstance(last.comma, cst.Comma) else None
    tail = trailing.whitespace_after if trailing is not None else last.whitespace_after_arg
    between, closing = _around_new(call, arguments, tail)
    if trailing is not None:
        new = new.with_changes(comma=cst.Comma(whitespace_after=closing))
    else:
        new = new.with_changes(whitespace_after_arg=closing)
    last = last.with_changes(
        comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
    )
    return [*arguments[:-1], last, new]


def _around_new(
    call: cst.Call, arguments: list[cst.Arg], tail: cst.BaseParenthesizableWhitespace
) -> tuple[cst.BaseParenthesizableWhitespace, cst.BaseParenthesizableWhitespace]:
    """Space before a new last argument, and after it, given the `tail` before the bracket."""
    inner = call.whitespace_before_args
    previous = arguments[-2].comma if len(arguments) > 1 else None
    if isinstance(previous, cst.Comma):
        inner = previous.whitespace_after
    if not isinstance(inner, cst.ParenthesizedWhitespace):
        return cst.SimpleWhitespace(" "), tail
    if not isinstance(tail, cst.ParenthesizedWhitespace):
        return _without_comments(inner), tail
    between = tail.with_changes(indent=inner.indent, last_line=inner.last_line)
    return between, _without_comments(tail)


def _without_comments(space: cst.ParenthesizedWhitespace) -> cst.ParenthesizedWhitespace:
    return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
