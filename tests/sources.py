"""The package's own sources as syntax trees, for tests of how it is written.

They are parsed when the first test asks: at import every process of the suite would do it.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterable
from pathlib import Path

import ridgeline

PACKAGE = Path(ridgeline.__file__).parent
ROOT = PACKAGE.parents[1]


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
def nodes() -> list[tuple[str, list[ast.AST]]]:
    """Place and nodes of each file of the package."""
    return [(place, list(ast.walk(tree))) for place, tree in trees().items()]
