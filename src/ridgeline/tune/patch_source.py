"""One Python file and the edits placed in it.

`ScriptSource.place` finds the place of an edit and notes what it will do there, or says why it
cannot; `rewritten` does it all. Placing an edit never moves another: all places are of the
original tree.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict

import libcst as cst
from libcst import matchers

from ridgeline.records import Site
from ridgeline.records.edits import (
    AtStart,
    CallUnder,
    Edit,
    FirstOf,
    InsertAfter,
    InsertBefore,
    ReplaceCall,
    SetArgument,
    WrapWith,
)
from ridgeline.tune.patch_rewrite import (
    BlockChanges,
    Change,
    Hoist,
    Rewriter,
    argument_setter,
    converted_to_float,
    loss_and_backward,
)
from ridgeline.tune.patch_script import ReadScript
from ridgeline.tune.patch_tree import (
    Block,
    CannotPlace,
    Spot,
    Statement,
    after_imports,
    assigned_by,
    assigned_in,
    before_imports,
    body_of,
    bound_at_top,
    calls_in,
    is_always_computed,
    is_backward,
    is_import,
    names_in,
    parse_statements,
    passes,
    positional_at_most,
    root_of,
    root_of_attribute,
    small_statements_of,
    suites_of,
    target_of,
    touched_in,
)

_IMPORTABLE = ("torch", "torchdiffeq", "torchsde")
"""Libraries that an edit may have imported, beside Python's own."""


class ScriptSource:
    """One file, the edits placed in it so far, and what it becomes."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self._script = ReadScript(name, text)
        self._blocks: dict[Block, BlockChanges] = defaultdict(BlockChanges)
        self._calls: dict[cst.Call, list[Change]] = defaultdict(list)
        self._first: list[Statement] = []
        self._head: list[Statement] = []
        self._head_imports: list[Statement] = []
        self._imports: list[str] = []
        self._bound = bound_at_top(self._script.tree)

    def place(self, edit: Edit) -> None:
        """Note what `edit` will do here.

        Raises:
            CannotPlace: it has no place in this file.
        """
        if isinstance(edit, FirstOf):
            raise TypeError("alternatives are chosen by the caller, who knows all files")
        if isinstance(edit, AtStart):
            if edit.before_imports:
                self._first += parse_statements(edit.code)
            else:
                self._at_start(edit.code)
        elif isinstance(edit, (SetArgument, ReplaceCall)):
            self._change_calls(edit)
        elif isinstance(edit, WrapWith):
            self._wrap(edit)
        elif isinstance(edit, CallUnder):
            self._call_under(edit)
        else:
            self._insert(edit)

    def rewritten(self) -> str:
        """The file with every placed edit."""
        rewriter = Rewriter(self._blocks, self._calls)
        tree = self._script.tree.visit(rewriter)
        assert isinstance(tree, cst.Module)
        if self._head or self._imports or self._head_imports or self._first:
            tree = self._with_head(tree)
        return tree.code

    # -- statements inserted ---------------------------------------------------------------

    def _at_start(self, code: str) -> None:
        self._import_for(code)
        statements = parse_statements(code)
        self._head_imports += [one for one in statements if is_import(one)]
        others = [one for one in statements if not is_import(one)]
        if others and not self._head:
            blank = [cst.EmptyLine(indent=False)]
            others[0] = others[0].with_changes(leading_lines=blank)
        self._head += others

    def _insert(self, edit: InsertBefore | InsertAfter) -> None:
        spot = self._script.spot(edit.site.line)
        codes = [edit.code]
        if "{model}" in edit.code:
            codes = [
                edit.code.replace("{model}", m) for m in self._script.models(spot, edit.site.line)
            ]
        if "{target}" in edit.code:
            codes = [code.replace("{target}", target_of(spot, self._script.tree)) for code in codes]
        statements = [statement for code in codes for statement in parse_statements(code)]
        if isinstance(edit, InsertBefore) and edit.outside_loops:
            spot = self._outside_loops(spot, edit)
        changes = self._changes(spot)
        place = changes.after if isinstance(edit, InsertAfter) else changes.before
        place[spot.index] += statements
        self._import_for(edit.code)

    def _outside_loops(self, spot: Spot, edit: InsertBefore) -> Spot:
        """The outermost loop in the same function that does not make the model itself."""
        names = [root_of(model) for model in self._script.models(spot, edit.site.line)]
        inside = []
        for outer in reversed(spot.outer):
            if isinstance(outer.statement, (cst.FunctionDef, cst.ClassDef)):
                break
            inside.append(outer)
        for outer in reversed(inside):
            is_loop = isinstance(outer.statement, (cst.For, cst.While))
            if is_loop and not assigned_in(outer.statement) & set(names):
                return outer
        raise CannotPlace(f"no loop around {edit.site} in its function")

    def _with_head(self, tree: cst.Module) -> cst.Module:
        place = after_imports(tree)
        body = list(tree.body)
        imports = [parse_statements(f"import {name}")[0] for name in self._imports]
        body[place:place] = [*imports, *self._head_imports, *self._head]
        first = before_imports(tree)
        body[first:first] = self._first
        return tree.with_changes(body=body)

    def _import_for(self, code: str) -> None:
        """Remember the modules that `code` names and the file does not import."""
        bound = self._bound | set(self._imports)
        template = re.sub(r"\{\w+\}", "_", code)
        for node in matchers.findall(cst.parse_module(template), matchers.Attribute()):
            assert isinstance(node, cst.Attribute)
            root = root_of_attribute(node)
            known = root in _IMPORTABLE or root in sys.stdlib_module_names
            if known and root not in bound and not code.startswith(f"import {root}"):
                self._imports.append(root)
                bound.add(root)

    # -- calls changed ---------------------------------------------------------------------

    def _change_calls(self, edit: SetArgument | ReplaceCall) -> None:
        if edit.site is not None:
            spot = self._script.spot(edit.site.line)
            calls = self._script.calls_at(spot, edit.callee, edit.site.line)
            wanted = calls[:1] if isinstance(edit, SetArgument) else calls
            places = [(spot, call) for call in wanted]
        else:
            passing = edit.passing if isinstance(edit, ReplaceCall) else None
            places = [
                (spot, call)
                for spot in self._script._spots()
                for call in calls_in(spot.statement)
                if self._script.callee(call) == edit.callee
                and (not passing or passes(call, passing))
            ]
        if not places:
            raise CannotPlace(f"{self.name} does not call {edit.callee}")
        if isinstance(edit, ReplaceCall) and not edit.code:
            gone = [
                (spot, self._script.statement_on_line_of(spot, call, edit.callee))
                for spot, call in places
            ]
            for spot, number in gone:
                self._changes(spot).removed[spot.index].add(number)
            return
        if isinstance(edit, ReplaceCall):
            change = self._replacer(edit)
            for _, call in places:
                change(call)  # it may find that the call does not fit
            self._import_for(edit.code)
        else:
            change = argument_setter(edit.keyword, edit.value)
        for _, call in places:
            self._calls[call].append(change)

    def _replacer(self, edit: ReplaceCall) -> Change:
        def change(call: cst.Call) -> cst.BaseExpression:
            most = edit.most_positional
            if most is not None and positional_at_most(call) > most:
                raise CannotPlace(f"{edit.callee} is given more than {most} arguments by position")
            kept = [a for a in call.args if a.keyword is None or a.keyword.value not in edit.drop]
            words = [self._word(argument) for argument in kept]
            code = edit.code.replace("{func}", self._script.code(call.func))
            if isinstance(call.func, cst.Attribute):
                code = code.replace("{object}", self._script.code(call.func.value))
            code = code.replace("{args}", ", ".join(words))
            if "{0}" in code:
                if not kept or kept[0].keyword is not None or kept[0].star:
                    raise CannotPlace(f"{edit.callee} is called without positional arguments")
                plain = isinstance(kept[0].value, (cst.Name, cst.Attribute, cst.Call))
                first = words[0] if plain else f"({words[0]})"
                code = code.replace("{0}", first).replace("{rest}", ", ".join(words[1:]))
            return cst.parse_expression(code)

        return change

    def _word(self, argument: cst.Arg) -> str:
        bare = argument.with_changes(
            comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace("")
        )
        return self._script.code(bare)

    # -- statements wrapped ----------------------------------------------------------------

    def _wrap(self, edit: WrapWith) -> None:
        spot = self._script.spot(edit.site.line)
        header = self._header(edit, spot)
        changes = self._changes(spot)
        if spot.index in changes.splits or spot.index in changes.hoists:
            raise CannotPlace(f"the line at {edit.site} is taken apart by another edit")
        if suites_of(spot.statement):
            self._hoist(spot, header, edit.site.line)
        # One line may hold the call and the backward: then it is taken apart.
        elif edit.until is not None and self._follows(edit.until, edit) == spot:
            changes.splits[spot.index] = self._split(spot, header, edit.site.line)
        else:
            self._add_wrap(spot.block, (spot.index, self._end(spot, edit), header), edit)
        self._import_for(edit.header)

    def _call_under(self, edit: CallUnder) -> None:
        """The model's call alone: as its own statement, or computed before the one it is in."""
        spot = self._script.spot(edit.site.line)
        if suites_of(spot.statement):
            raise CannotPlace(f"the call stands in the head of a block at {edit.site}")
        call = self._script.model_call(spot, edit.site.line)
        smalls = small_statements_of(spot.statement)
        if len(smalls) != 1:
            raise CannotPlace(f"several statements stand on the line at {edit.site}")
        changes = self._changes(spot)
        if spot.index in changes.splits or spot.index in changes.hoists:
            raise CannotPlace(f"the line at {edit.site} is taken apart by another edit")
        targets = assigned_by(smalls[0], call)
        if targets is not None and len(targets) == len(edit.converts):
            self._add_wrap(spot.block, (spot.index, spot.index + 1, edit.header), edit)
            pairs = zip(targets, edit.converts, strict=True)
            lines = [f"{target} = {target}.float()" for target, convert in pairs if convert]
            if len(targets) > 1:
                changes.after[spot.index] += parse_statements("\n".join(lines))
        elif len(edit.converts) != 1:
            raise CannotPlace(f"what the call returns goes on as one at {edit.site}")
        elif is_always_computed(spot.statement, call):
            name = cst.Name(self._script.free_name("outputs"))
            hoist = Hoist(header=edit.header, expression=call, name=name)
            changes.hoists[spot.index] = hoist
        else:
            raise CannotPlace(f"the call at {edit.site} is made on a condition")
        if edit.converts == (True,):
            self._calls[call].append(converted_to_float)
        self._import_for(edit.header)

    def _header(self, edit: WrapWith, spot: Spot) -> str:
        header = edit.header
        if "{model}" in header:
            header = header.replace("{model}", self._script.models(spot, edit.site.line)[0])
        if "{condition}" in header:
            header = header.replace("{condition}", self._condition(edit, spot))
        return header

    def _condition(self, edit: WrapWith, spot: Spot) -> str:
        """The condition under which the optimizer steps, if it holds before the forward too."""
        assert edit.stepping is not None
        if edit.stepping.file != edit.site.file:
            raise CannotPlace(f"the optimizer steps in another file, {edit.stepping.file}")
        stepping = self._script.spot(edit.stepping.line)
        guards = [s for s in stepping.outer if isinstance(s.statement, cst.If)]
        if not guards or guards[-1] in spot.outer or guards[-1].block is not spot.block:
            raise CannotPlace(f"no `if` around the optimizer's step at {edit.stepping}")
        guard = guards[-1]
        assert isinstance(guard.statement, cst.If)
        between = body_of(spot.block)[spot.index : guard.index]
        names = {n.value for n in names_in(guard.statement.test)}
        if guard.index < spot.index or names & set().union(*map(touched_in, between)):
            raise CannotPlace(
                f"the condition at {self.name}:{self._script.line(guard.statement)} changes"
            )
        return self._script.code(guard.statement.test)

    def _end(self, spot: Spot, edit: WrapWith) -> int:
        """Index after the last statement that goes under the `with`."""
        last = edit.through or edit.until
        there = self._follows(last, edit) if last is not None else None
        for candidate in (*there.outer, there) if there is not None else ():
            if candidate.block is spot.block and candidate.index >= spot.index:
                return max(candidate.index + (edit.through is not None), spot.index + 1)
        if edit.through is not None:
            raise CannotPlace(f"{last} does not follow in the block of {edit.site}")
        return spot.index + 1

    def _follows(self, last: Site, edit: WrapWith) -> Spot | None:
        return self._script.spot_or_none(last.line) if last.file == edit.site.file else None

    def _add_wrap(
        self, block: Block, wrap: tuple[int, int, str], edit: WrapWith | CallUnder
    ) -> None:
        changes = self._blocks[block]
        first, end, header = wrap
        # A generator that is left alone would keep the context open for its caller.
        suspends = matchers.Yield() | matchers.Await()
        if any(matchers.findall(node, suspends) for node in body_of(block)[first:end]):
            raise CannotPlace(f"the code at {edit.site} hands over to its caller half way")
        for other_first, other_end, other_header in changes.wraps:
            within = other_first <= first and end <= other_end
            around = first <= other_first and other_end <= end
            apart = end <= other_first or other_end <= first
            if within and header == other_header:
                return
            if not (within or around or apart):
                raise CannotPlace(f"another `with` block begins or ends inside that at {edit.site}")
        changes.wraps.append(wrap)

    def _split(self, spot: Spot, header: str, line: int) -> tuple[int, int, str, str]:
        smalls = small_statements_of(spot.statement)
        first = next((i for i, small in enumerate(smalls) if self._script.model_calls(small)), 0)
        end = next((i for i, small in enumerate(smalls) if is_backward(small)), None)
        if end is None:
            raise CannotPlace(
                f"forward and backward both run inside the call at {self.name}:{line}"
            )
        if end < first:
            raise CannotPlace(f"the backward stands before the model's call at {self.name}:{line}")
        name = self._script.free_name("loss")
        if first == end:
            loss_and_backward(smalls[first], cst.Name(name))  # it may find that it cannot
        return (first, end, header, name)

    def _hoist(self, spot: Spot, header: str, line: int) -> None:
        """The call stands in the head of a compound statement: compute that part beforehand."""
        statement = spot.statement
        if isinstance(statement, cst.For):
            expression = statement.iter
        elif isinstance(statement, cst.If):
            expression = statement.test
        else:
            kind = type(statement).__name__.lower()
            raise CannotPlace(f"the call stands in the head of a `{kind}` at {self.name}:{line}")
        start, end = self._script.lines(expression)
        if not start <= line <= end:
            raise CannotPlace(f"the call stands in an `elif` at {self.name}:{line}")
        name = cst.Name(self._script.free_name("outputs"))
        self._changes(spot).hoists[spot.index] = Hoist(
            header=header, expression=expression, name=name
        )

    def _changes(self, spot: Spot) -> BlockChanges:
        return self._blocks[spot.block]
