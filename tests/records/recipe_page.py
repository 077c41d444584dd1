"""The tables of docs/reference/recipe.md, from the records themselves.

`python -m tests.records.recipe_page` writes them into the page again.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeSource
from ridgeline.records.recipe_compression import RecipeTeacher

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recipe.md"
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"


def tables() -> str:
    """Every table with its keys, defaults and meanings."""
    parts = []
    for field in msgspec.structs.fields(Recipe):
        (section,) = (kind for kind in _options(field.type) if kind is not type(None))
        wanted = " (needed)" if field.required else ""
        parts.append(_table(f"[{field.encode_name}]{wanted}", section))
        if field.encode_name == "data":
            parts.append(_table("[[data.sources]]", RecipeSource))
        if field.encode_name == "distillation":
            parts.append(_table("[[distillation.stages]]", RecipeTeacher))
    return "\n".join(parts)


def _table(title: str, section: type[msgspec.Struct]) -> str:
    said = sayings(section)
    purpose = inspect.getdoc(section) or ""
    if section is Layout:
        purpose = "How the run is laid out over devices; `num_devices = dp · tp · pp · cp`."
    lines = [
        f"### `{title}`" if "(" not in title else f"### `{title.split(maxsplit=1)[0]}`, needed",
        "",
    ]
    lines += [" ".join(purpose.split()), "", "| key | default | meaning |", "| --- | --- | --- |"]
    for field in msgspec.structs.fields(section):
        meaning = " ".join(filter(None, (said.get(field.name, ""), _values(field.type))))
        lines.append(f"| `{field.encode_name}` | {_default(field)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _options(kind: Any) -> tuple[Any, ...]:
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    return typing.get_args(kind) if is_union else (kind,)


def _values(kind: Any) -> str:
    if typing.get_origin(kind) is not typing.Literal:
        return ""
    values = (f"`{msgspec.json.encode(value).decode()}`" for value in typing.get_args(kind))
    return f"One of {', '.join(values)}."


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "needed"
    if field.default is None or field.default == ():
        return "none"
    text = msgspec.json.encode(field.default).decode()
    return f"`{text}`"


def sayings(section: type[msgspec.Struct]) -> dict[str, str]:
    """The string that stands below each field, on one line."""
    body = class_node(section)
    said = {}
    for above, below in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            said[above.target.id] = " ".join(str(below.value.value).split()).replace("|", "\\|")
    return said


def class_node(kind: type) -> ast.ClassDef:
    """The class as it is written."""
    return _class_nodes(sys.modules[kind.__module__])[kind.__name__]


@functools.cache
def _class_nodes(module: types.ModuleType) -> dict[str, ast.ClassDef]:
    """By name, of one reading of the file: `inspect.getsource` reads all of it for each."""
    body = ast.parse(inspect.getsource(module)).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def rewritten(page: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
