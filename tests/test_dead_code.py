"""What is defined is used, and what is only kept for a reader is written down where readers look.

A name counts as used where it stands in the package, by itself or in a string (a command, a
plug-in), or in a benchmark; tests do not count. What is left must be documented, or be a door that
others open.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Iterator

from tests.sources import ROOT, of_kind, trees, walk

OPENED_BY_OTHERS = {
    "cli/": "commands are registered by name",
    "cost/": "formulas of the field, held by its worked examples",
    "from_source.py": "importlib calls its loader",
    "realtime/executors/payloads.py": "pickle calls its pickler",
    "kernels/check/language.py": "ast calls its visitor",
    "kernels/check/on_cuda.py": "Triton asks its driver",
    "serve/ray_serve.py": "Ray calls its deployment",
    "serve/http/connection.py": "uvicorn calls its protocol",
    "serve/http/front.py": "uvicorn calls its server",
    "serve/http/protocol/": "OpenAI's wire format: refused, passed over or answered",
    "serve/weights/linears.py": "torch prints modules",
    "checkpoints/adapters.py": "a file's identity is compared whole",
    "trace/formats/memory_snapshot.py": "pickle calls its unpickler",
    "train/precision.py": "torch's scaler calls what it is made of",
    "train/adapters.py": "peft reads its allocator",
    "hardware/facts.py": "what stands in the tables, with its source",
    "launch/kube/manifest.py": "PyYAML calls its dumper",
    "launch/cluster_file.py": "keys of a file, passed on as they are",
    "plan/training/launch_arguments/": "the release that the option names were checked against",
    "models/flags.py": "keys of a dictionary",
    "models/presets/": "what publishers say, which the counts are tested against",
    "diagnose/trace_verdict.py": "the room's door from Python",
    "trace/compare/comparison.py": "the room's door from Python",
    "trace/critical_path/path.py": "the room's door from Python",
    "studio/opened_traces.py": "opened_traces.toml names its views",
    "studio/opened_views.py": "opened.toml names its views",
}


def words(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Every name that a file mentions, those of definitions and parameters aside."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.:-]{1,80}", str(node.value)):
            yield from re.split(r"[.:-]", str(node.value))


@functools.cache
def known() -> set[str]:
    """Words in the package, in benchmarks, and in the code of any page."""
    benchmarks = [ast.parse(path.read_text()) for path in (ROOT / "bench").rglob("*.py")]
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    code = (re.findall(r"```.*?```|`[^`]+`", page.read_text(), re.DOTALL) for page in pages)
    return {
        *words(node for _, node in of_kind(ast.Name, ast.Attribute, ast.Constant)),
        *(word for tree in benchmarks for word in words(walk(tree))),
        *re.findall(r"[A-Za-z_]\w*", "\n".join(itertools.chain.from_iterable(code))),
    }


def opened_by_others(place: str) -> bool:
    return any(place.startswith(prefix) for prefix in OPENED_BY_OTHERS)


def test_every_function_and_class_is_used() -> None:
    unused = [
        f"{place}:{node.lineno} {node.name}"
        for place, node in of_kind(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        if node.name not in known()
        and not node.name.startswith("__")
        and not any(isinstance(one, ast.Call) for one in node.decorator_list)  # registered there
        and not opened_by_others(place)
    ]
    assert not unused


def test_every_field_is_read_or_documented() -> None:
    unread = [
        f"{place}:{field.lineno} {node.name}.{field.target.id}"
        for place, node in of_kind(ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and field.target.id not in known()
        and not opened_by_others(place)
    ]
    assert not unread


def test_every_exception_is_needed() -> None:
    places = [place for place in OPENED_BY_OTHERS if not any(p.startswith(place) for p in trees())]
    assert not places, "files that are gone"


def test_every_public_name_in_the_room_of_theory_is_reached_by_a_command() -> None:
    """What other rooms name, and what the definitions of that name in turn."""
    spoken = of_kind(ast.Name, ast.Attribute, ast.Constant)
    asked = set(words(node for place, node in spoken if not place.startswith("cost/")))
    named: dict[str, set[str]] = {}
    public: set[str] = set()
    for tree in (tree for place, tree in trees().items() if place.startswith("cost/")):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
                public |= {name for name in names if not name.startswith("_")}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            else:
                continue
            for name in names:
                named.setdefault(name, set()).update(words(walk(node)))
    reached: set[str] = set()
    while asked:
        name = asked.pop()
        reached.add(name)
        asked |= named.get(name, set()) - reached
    assert public - reached == set()
