"""What Ridgeline replaces in other libraries, and which private names it needs: a list of each."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from packaging.version import Version
from tests import sources
from tests.sources import PACKAGE

from ridgeline import patches
from ridgeline.patches import LATER_COLLECTIVES, in_reverse, patch, reasons

PATCHED, PRIVATE = reasons("patched"), reasons("private")
SETTINGS = {
    "torch._dynamo.config", "torch._inductor.config", "torch.backends.cudnn",
    "torch.backends.mkldnn.matmul", "sys.path",
    "sys.modules", "os.environ",
}  # fmt: skip
"""What their libraries offer to be assigned to."""
HOOKS = {"sys.unraisablehook"}
"""Single names that Python's manual tells programs to assign."""
SOLVERS = {"torchdiffeq", "torchsde"}
"""Libraries of differential equations, which are watched where a script imports them."""
SOME_FILE = "transformers.models.llama.modeling_llama"
"""One of the files that `*` stands for."""
DOCUMENTED = {"_getframe", "_current_frames", "_exit", "_asdict", "_replace", "_fields"}
"""Of Python, with an underscore, but public."""


def is_there(name: str) -> bool:
    """Whether the name can be looked up; or, where each object gets its own, its class makes it."""
    module, _, path = name.replace("*", SOME_FILE).partition(":")
    found: object = importlib.import_module(module)
    *parents, last = path.split(".")
    for one in parents:
        found = getattr(found, one, None)
    if hasattr(found, last):
        return True
    return any(last in names for names in names_made_in(found))


def names_made_in(found: object) -> Iterator[tuple[str, ...]]:
    """The names that a function, or those of a class, mention: there objects get theirs."""
    if isinstance(found, type):
        yield tuple(vars(found).get("__annotations__", ()))
        for one in vars(found).values():
            yield from names_made_in(getattr(one, "fget", None) or getattr(one, "__func__", one))
    code = found if isinstance(found, types.CodeType) else getattr(found, "__code__", None)
    if isinstance(code, types.CodeType):
        yield (*code.co_names, *code.co_varnames, *code.co_cellvars)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield from names_made_in(inner)


def offline_libraries() -> list[dict[str, Any]]:
    text = (PACKAGE / "measure/guard/offline.toml").read_text()
    found: list[dict[str, Any]] = tomllib.loads(text)["library"]
    return found


def is_installed(name: str) -> bool:
    first = re.split("[.:]", name.replace("*", SOME_FILE))[0]
    return importlib.util.find_spec(first) is not None


def test_every_name_is_there_in_the_installed_releases() -> None:
    missing = {name for name in (*PATCHED, *PRIVATE) if is_installed(name) and not is_there(name)}
    if Version(torch.__version__).release < (2, 13):
        missing = {name for name in missing if name.partition(":")[2] not in LATER_COLLECTIVES}
    assert not missing


def test_only_trackers_are_named_that_are_not_installed() -> None:
    """Nothing here needs them: a script that imports them is kept offline, or watched."""
    trackers = {library["module"] for library in offline_libraries()} | SOLVERS
    missing = {re.split("[.:]", name)[0] for name in (*PATCHED, *PRIVATE) if not is_installed(name)}
    assert missing <= trackers


def imported(nodes: list[ast.AST]) -> dict[str, str]:
    """What local names of a file stand for in other libraries, plain aliases too."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                names[one.asname or one.name.partition(".")[0]] = (
                    one.name if one.asname else one.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
    names = {name: path for name, path in names.items() if not path.startswith("ridgeline")}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Attribute):
            path = dotted(node.value, names)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if path is not None and isinstance(target, ast.Name):
                    names[target.id] = path
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
            paths = [dotted(one, names) for one in node.iter.elts]
            if isinstance(node.target, ast.Name) and any(paths):
                names[node.target.id] = next(path for path in paths if path)
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """`torch.optim.Optimizer` of an expression that begins with an imported name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *reversed(parts)])


def assigned(nodes: list[ast.AST]) -> Iterator[tuple[int, ast.expr]]:
    """Whose attributes or items a file sets or deletes, and where."""
    for node in nodes:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"setattr", "delattr"}
        ):
            yield node.lineno, node.args[0]
        for target in targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target) in HOOKS:
                continue
            if isinstance(target, ast.Attribute | ast.Subscript):
                yield target.lineno, target.value


def replaced(nodes: list[ast.AST]) -> list[tuple[int, str]]:
    """Whose attributes of another library a file sets, but for settings and listed containers."""
    names = imported(nodes)
    allowed = SETTINGS | {name.replace(":", ".") for name in PRIVATE}
    paths = ((line, dotted(owner, names)) for line, owner in assigned(nodes))
    return [(line, path) for line, path in paths if path is not None and path not in allowed]


def test_nothing_but_the_list_of_patches_assigns_to_another_library() -> None:
    found = {place: replaced(nodes) for place, nodes in sources.nodes()}
    assert not {place: lines for place, lines in found.items() if lines}


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.save = f",
        "from torch import nn as layers\nlayers.Module.compile = f",
        "import torch\nkind: object = torch.optim.Optimizer\nkind.step = f",
        "import torch\nfor one in (torch.Tensor, list):\n    setattr(one, 'to', f)",
        "def g():\n    import gc\n    del gc.collect",
    ],
)
def test_a_patch_that_is_not_in_the_list_is_found(code: str) -> None:
    assert replaced(list(ast.walk(ast.parse(code))))


def test_every_patch_of_the_list_is_made() -> None:
    made = {
        text
        for place, node in sources.of_kind(ast.Constant)
        if place != "patches.py" and isinstance(text := node.value, str)
    }
    made |= {held["call"] for library in offline_libraries() for held in library.get("held", ())}
    collectives = (*patches.COLLECTIVES, *patches.LATER_COLLECTIVES)
    lists = (*collectives, *patches.UPLOADS, *patches.LIBDEVICE, *patches.ON_CUDA)
    listed = {name for name in PATCHED if re.split(r"[:.]", name)[-1] in lists}
    assert not set(PATCHED) - listed - made


def own_names() -> set[str]:
    """Private names that Ridgeline defines itself."""
    defined = sources.of_kind(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = {node.name for _, node in defined}
    found |= {node.id for _, node in sources.of_kind(ast.Name) if isinstance(node.ctx, ast.Store)}
    return found | {
        node.attr
        for _, node in sources.of_kind(ast.Attribute)
        if isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"self", "cls"}
    }


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def read_private() -> Iterator[tuple[str, int, str]]:
    """Place, line and the private names that files take from something other than `self`."""
    for place, node in sources.of_kind(ast.Attribute, ast.ImportFrom, ast.Import, ast.Call):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield place, node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("ridgeline"):
            parts = [*(node.module or "").split("."), *(one.name for one in node.names)]
            yield from ((place, node.lineno, part) for part in parts if is_private(part))
        elif isinstance(node, ast.Import):
            parts = [part for one in node.names for part in one.name.split(".")]
            yield from ((place, node.lineno, part) for part in parts if is_private(part))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"getattr", "setattr", "hasattr", "delattr"}
            and isinstance(node.args[1], ast.Constant)
            and is_private(str(node.args[1].value))
        ):
            yield place, node.lineno, str(node.args[1].value)


def test_every_private_name_that_is_read_stands_in_the_list() -> None:
    listed = {part for name in (*PATCHED, *PRIVATE) for part in re.split(r"[.:]", name)}
    known = listed | own_names() | DOCUMENTED
    unknown = [
        f"{place}:{line}: {name}" for place, line, name in read_private() if name not in known
    ]
    assert not unknown


def test_every_private_name_of_the_list_is_read() -> None:
    read = {name for _, _, name in read_private()}
    texts = {
        str(node.value) for place, node in sources.of_kind(ast.Constant) if place != "patches.py"
    }
    unread = [
        name
        for name in PRIVATE
        if not any(part in read | texts for part in re.split(r"[.:]", name) if is_private(part))
    ]
    assert not unread


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module with a class and one derived from it, whose names may be patched."""

    class Base:
        def call(self) -> str:
            return "base"

        @staticmethod
        def static() -> str:
            return "static"

    made = types.ModuleType("made_library")
    made.function = lambda: "function"
    made.Base = Base
    made.Derived = type("Derived", (Base,), {})
    monkeypatch.setitem(sys.modules, "made_library", made)
    for name in ("function", "Base.static", "Derived.call", "gone"):
        monkeypatch.setitem(PATCHED, f"made_library:{name}", "a test")
    return made


def test_patches_come_off_in_reverse_order_and_leave_nothing(library: types.ModuleType) -> None:
    before = (library.function, vars(library.Base)["static"], "call" in vars(library.Derived))
    undo = in_reverse(
        [
            patch("made_library:function", lambda original: lambda: f"first {original()}"),
            patch("made_library:function", lambda original: lambda: f"second {original()}"),
            patch(
                "made_library:Base.static",
                lambda _: staticmethod(lambda: "ours"),
            ),
            patch("made_library:Derived.call", lambda original: lambda of: f"{original(of)} too"),
        ]
    )
    assert library.function() == "second first function"
    assert (library.Derived().call(), library.Base().call()) == ("base too", "base")
    assert library.Base().static() == "ours"
    undo()
    assert before == (library.function, vars(library.Base)["static"], False)
    assert "call" not in vars(library.Derived)


def test_what_another_has_put_on_top_is_left_there(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    undo = patch("made_library:function", lambda original: lambda: f"ours {original()}")
    ours = library.function
    library.function = lambda: f"theirs {ours()}"
    undo()
    assert library.function() == "theirs ours function"
    assert "made_library:function was replaced by another since" in capsys.readouterr().err


def test_a_name_that_a_release_lacks_costs_a_line_and_not_the_run(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    patch("made_library:gone", lambda original: original)()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ridgeline: made_library:gone is not there")
    assert line.endswith("left out: a test")
    assert not hasattr(library, "gone")


def test_what_is_not_in_the_list_is_not_patched() -> None:
    with pytest.raises(KeyError):
        patch("torch:zeros", lambda original: original)
