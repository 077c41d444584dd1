"""docs/reference/json.md, from the records themselves: every key of the JSON that commands print.

`python -m tests.records.json_page` writes the page again.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import msgspec
from tests.records.recipe_page import class_node, sayings

import ridgeline.records
import ridgeline.trace

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
READ = {
    "layout", "recipe", "recipe_compression", "recipe_memory", "recipe_survival", "scheme",
}  # fmt: skip
"""Modules of what is read, not printed; they have pages of their own."""
HEAD = """# Keys of the JSON documents

Every command takes `--json`, and writes the same records into its files. These are their keys: what
stands here is kept, whether or not a view of ours shows it. A key that may be null has a type that
says so; keys are added, and none changes its meaning. Units are in the names; `_us` are
microseconds, `_bytes` bytes. The page of a command says which record it prints.
"""


def page() -> str:
    """All of it."""
    parts = [HEAD]
    for room in (ridgeline.records, ridgeline.trace):
        for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            other_peoples = ".formats." in info.name
            if not other_peoples and info.name.rpartition(".")[2] not in READ:
                parts += _module(importlib.import_module(info.name))
    return "\n".join(parts)


def _module(module: ModuleType) -> list[str]:
    kinds = [
        kind
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == module.__name__
        and not name.startswith("_")
        and msgspec.structs.fields(kind)
    ]
    if not kinds:
        return []
    room, *names = module.__name__.split(".")[1:]
    return [f"## {room}: {', '.join(names).replace('_', ' ')}\n", *(_table(kind) for kind in kinds)]


def _table(kind: type[msgspec.Struct]) -> str:
    said: dict[str, str] = {}
    types: dict[str, str] = {}
    for base in reversed(kind.__mro__):  # a record has the keys of the head that it extends
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            said |= sayings(base)
            types |= _annotations(base)
    purpose = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    lines = [
        f"### {kind.__name__}\n",
        purpose,
        "",
        "| key | type | meaning |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| `{field.encode_name}` | `{types[field.name]}` | {said.get(field.name, '')} |"
        for field in msgspec.structs.fields(kind)
        if field.name in types
    ]
    return "\n".join(lines) + "\n"


def _annotations(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {
        one.target.id: ast.unparse(one.annotation).replace("|", "\\|")
        for one in class_node(kind).body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }


if __name__ == "__main__":
    PAGE.write_text(page())
