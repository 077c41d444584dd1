"""The package's own sources as syntax trees, for tests of how it is written.

They are parsed when the first test asks: at import every process of the suite would do it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import ridgeline

PACKAGE = Path(ridgeline.__file__).parent
ROOT = PACKAGE.parents[1]


@functools.cache
def trees() -> dict[str, ast.Module]:
    """What each file of the package says, by its place in it."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def nodes() -> Iterator[tuple[str, list[ast.AST]]]:
    """Place and nodes of each file of the package."""
    for place, tree in trees().items():
        yield place, list(ast.walk(tree))
