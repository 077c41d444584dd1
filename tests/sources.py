"""The package's own sources as syntax trees, for tests of how it is written.

They are parsed when the first test asks: at import every process of the suite would do it.
"""

from __future__ import annotations

import ast
import functools
import gc
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ridgeline

PACKAGE = Path(ridgeline.__file__).parent
ROOT = PACKAGE.parents[1]
_LEAVES = {"arg", "asname", "attr", "ctx", "id", "kind", "level", "module", "op", "type_comment"}


def parsed(paths: Iterable[Path], below: Path) -> dict[str, ast.Module]:
    """What each file says, by its place below a folder.

    A million nodes that stay are made: collections of garbage would walk them again and again, two
    thirds of the time.
    """
    gc.disable()
    found = {str(path.relative_to(below)): ast.parse(path.read_text()) for path in sorted(paths)}
    gc.freeze()
    gc.enable()
    return found


@functools.cache
def trees() -> dict[str, ast.Module]:
    """What each file of the package says, by its place in it."""
    return parsed(PACKAGE.rglob("*.py"), PACKAGE)


@functools.cache
def _branches(kind: type[ast.AST]) -> tuple[str, ...]:
    """Fields of a kind of node in which other nodes may stand."""
    return () if kind is ast.Constant else tuple(one for one in kind._fields if one not in _LEAVES)


def walk(tree: ast.AST) -> list[ast.AST]:
    """The nodes of `ast.walk` but for loads, stores and operators, in half of its time."""
    found = [tree]
    for node in found:
        for name in _branches(type(node)):
            value = getattr(node, name)
            if isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


@functools.cache
def nodes() -> list[tuple[str, list[ast.AST]]]:
    """Place and nodes of each file of the package."""
    gc.disable()
    found = [(place, walk(tree)) for place, tree in trees().items()]
    gc.freeze()
    gc.enable()
    return found


@functools.cache
def _by_kind() -> dict[type, list[tuple[str, Any]]]:
    found: dict[type, list[tuple[str, Any]]] = defaultdict(list)
    for place, all_nodes in nodes():
        for node in all_nodes:
            found[type(node)].append((place, node))
    return found


def of_kind(*kinds: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """Place and node of every node of these kinds in the package."""
    return itertools.chain.from_iterable(_by_kind()[kind] for kind in kinds)
