"""House rules that no linter knows."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx as nx
import numpy as np
import pytest
import torch
from tests.sources import PACKAGE, ROOT, of_kind, parsed, trees, walk

import ridgeline
from ridgeline.compress import rounding
from ridgeline.trace import sorting

SOURCES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(
    path.parent.name for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "__pycache__"
)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
MOST_TWICE = 3
"""So many functions are said twice; a change may lower it."""
INDEXED = re.compile(r"(?<![\w/])(\w+\.py)\b(?!:[A-Z])")
TIME_OR_SIZE = re.compile(r"(^|_)(ms|msec|secs|mb|gb|kb|mib|gib|gflops|tflops)($|_)")


def test_every_file_says_what_it_is_and_has_a_name_of_its_own() -> None:
    assert not [path for path in SOURCES if path.stem in BANNED_NAMES]
    assert not [place for place, tree in trees().items() if not ast.get_docstring(tree)]


def test_units_in_names_are_si_or_bytes() -> None:
    names = {
        (place, node.arg if isinstance(node, ast.arg) else node.target.id)
        for place, node in of_kind(ast.arg, ast.AnnAssign)
        if isinstance(node, ast.arg) or isinstance(node.target, ast.Name)
    }
    assert not [(place, name) for place, name in names if TIME_OR_SIZE.search(name.lower())]


def test_nothing_below_the_faces_prints() -> None:
    printing = [
        f"{place}:{node.lineno}"
        for place, node in of_kind(ast.Call)
        if isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and Path(place).parent.name != "cli"
    ]
    assert not printing


def test_few_files_are_long_and_none_is_very_long() -> None:
    lengths = {str(path.relative_to(PACKAGE)): path.read_text().count("\n") for path in SOURCES}
    long = {place: length for place, length in lengths.items() if length > 400}
    assert len(long) <= 9, long
    assert max(lengths.values()) <= 430, long


def test_an_index_of_a_room_names_files_that_are_there() -> None:
    """The indented lines of an `__init__`: `    name.py   what it has; other.py: what that has`."""
    missing = [
        f"{place}: {name}"
        for place, tree in trees().items()
        if Path(place).name == "__init__.py"
        for line in (ast.get_docstring(tree) or "").splitlines()
        if line.startswith("    ")
        for name in INDEXED.findall(line)
        if not (PACKAGE / place).with_name(name).exists()
    ]
    assert not missing


class _Shape(ast.NodeTransformer):
    """Code without its words: names by the order in which they come, texts and numbers alike."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.setdefault(node.id, str(len(self.names))), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.names.setdefault(node.arg, str(len(self.names))))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.Constant("")

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return node if isinstance(node.value, bool | None) else ast.Constant(type(node.value)())


def _shape(function: ast.FunctionDef) -> str:
    shape = _Shape()
    parts = (function.args, *function.body[bool(ast.get_docstring(function)) :])
    return "".join(ast.dump(shape.visit(copy.deepcopy(part))) for part in parts)


def test_few_functions_say_what_another_one_says() -> None:
    """Those whose statements fill seven lines and differ in names and constants alone."""
    by_nodes: dict[tuple[type, ...], list[tuple[str, ast.FunctionDef]]] = defaultdict(list)
    for place, node in of_kind(ast.FunctionDef):
        body = node.body[bool(ast.get_docstring(node)) :]
        if body and body[-1].end_lineno - body[0].lineno >= 6 and not place.startswith("lessons/"):
            by_nodes[tuple(type(one) for part in body for one in walk(part))].append((place, node))
    by_shape: dict[str, list[str]] = defaultdict(list)
    for place, node in itertools.chain.from_iterable(
        found for found in by_nodes.values() if len(found) > 1
    ):
        by_shape[_shape(node)].append(f"{place}:{node.lineno} {node.name}")
    twice = [found for found in by_shape.values() if len(found) > 1]
    assert len(twice) <= MOST_TWICE, twice


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_it_is_for_and_what_may_not_enter(room: str) -> None:
    text = ast.get_docstring(trees()[f"{room}/__init__.py"]) or ""
    assert len(text.splitlines()) >= 3, "what it is for, what may not enter, where to start"


def test_public_names_are_these() -> None:
    assert sorted(ridgeline.__all__) == [
        "AsynchronousRun",
        "AsynchronousSettings",
        "Comparison", "CompressionLedger", "Deployment", "Device", "Evaluation", "Examination",
        "Finding", "Ledger", "Load", "Material", "MeasurementPlan", "ModelSpec", "Pipeline", "Plan",
        "RidgelineError", "SensorReading", "StepProfile", "Trace", "TuneJob", "all_techniques",
        "checklist", "compare_runs", "compress", "device", "doctor", "evaluate", "explain",
        "load_model", "load_traces", "model_roofline", "parameter_count", "parse_cluster",
        "plan_training", "plan_vision_inference", "plan_vision_training", "predict_training",
        "predict_vision_inference", "predict_vision_training", "read_evidence", "read_pipeline",
        "read_recipe", "read_run", "run_with_stack", "simulate_serving", "this_machine",
        "train_asynchronously",
        "train_recipe", "tune", "validate_training",
    ]  # fmt: skip
    for name in ridgeline.__all__:
        assert getattr(ridgeline, name) is not None
    with pytest.raises(AttributeError, match="has no attribute"):
        ridgeline.no_such_name  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    [
        "",
        "import ridgeline.tune.tuner; from ridgeline.compress import activations, apply",
    ],
)
def test_a_public_name_is_one_thing_whenever_it_is_asked_for(before: str) -> None:
    code = f"""
import inspect, pickle, types, typing
{before}
import ridgeline
first = {{name: getattr(ridgeline, name) for name in ridgeline.__all__}}
import ridgeline.tune.ab_plan, ridgeline.compress.run
import ridgeline.tune.tuner as tuner, ridgeline.compress.apply as applied
for name, value in first.items():
    assert getattr(ridgeline, name) is value, name
for function, behind in ((ridgeline.tune, tuner.tune), (ridgeline.compress, applied.compress)):
    assert isinstance(function, types.FunctionType), type(function)
    shown, real = inspect.signature(function), inspect.signature(behind)
    as_is = [(one.name, one.kind, one.annotation) for one in shown.parameters.values()]
    assert as_is == [(one.name, one.kind, one.annotation) for one in real.parameters.values()]
    assert shown.return_annotation == real.return_annotation
    assert inspect.getdoc(function).splitlines()[0] == inspect.getdoc(behind).splitlines()[0]
    assert pickle.loads(pickle.dumps(function)) is function
assert ridgeline.tune.ab_plan.silent is tuner.silent
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_type_checker_sees_functions(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(
        "import ridgeline\n"
        "from ridgeline import compress, tune\n"
        "reveal_type(tune)\nreveal_type(compress)\nreveal_type(ridgeline.tune)\n"
    )
    words = [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent",
             "--cache-dir", str(tmp_path), str(script)]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    revealed = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert len(revealed) == 3
    assert all('"def (' in line for line in revealed), revealed


def test_importing_the_package_is_free() -> None:
    code = (
        "import sys, ridgeline, ridgeline.hardware, ridgeline.records, ridgeline.report.terminal\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_there_is_one_median_and_one_percentile() -> None:
    """Half of an even number lies between two; torch's own takes the lower, indexing the upper."""
    own = re.compile(r"sorted\(.*\)\[.*// 2\]|ordered\[.*// 2\]|(?<!np)(?<!statistics)\.median\(")
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if own.search(line)
    ]
    assert found == []
    values = [4.0, 1.0, 3.0, 2.0]
    for share in (0.5, 0.9, 0.95, 0.99):
        expected = float(np.quantile(values, share))
        assert sorting.quantile(np.array(values), share) == pytest.approx(expected)
        spread = torch.tensor(sorted(values))
        assert float(rounding._quantile(spread, share)) == pytest.approx(expected)
    assert statistics.median(values) == sorting.median(np.array(values)) == 2.5


def test_a_finding_never_names_a_technique_that_does_not_exist() -> None:
    known = set(ridgeline.all_techniques())
    named = set()
    for place, node in of_kind(ast.keyword):
        if node.arg == "technique" and place.startswith("diagnose/"):
            named |= {
                c.value
                for c in ast.walk(node.value)
                if isinstance(c, ast.Constant) and isinstance(c.value, str)
            }
    assert named
    assert named <= known, named - known


@functools.cache
def suite() -> dict[str, ast.Module]:
    """What each file of the tests says, by its place in the repository."""
    paths = (ROOT / "tests").rglob("*.py")
    return parsed((path for path in paths if not {"planted", "scripts"} & set(path.parts)), ROOT)


@functools.cache
def nodes_of_suite() -> list[tuple[str, ast.AST]]:
    """Place and node of every node of the tests."""
    return [(place, node) for place, tree in suite().items() for node in walk(tree)]


MAY_BIND = {"tests/cradle.py", "tests/ports.py", "tests/techniques/rehearsal.py"}
"""Where a port is held for as long as it is used, or a file is the port."""
SLEEPERS = {
    "tests/cli/test_interrupted.py": "draws a moment at random, none of which is wrong",
    "tests/realtime/executors/test_executing.py": "plays stages and sensors that are slow",
    "tests/realtime/executors/test_streams.py": "plays a GPU that takes its time",
    "tests/serve/http/files_of_a_request.py": "no test: other processes look for a flag so often",
    "tests/serve/stub_engine.py": "plays a slow engine",
    "tests/train/test_processes.py": "plays a rank that hangs",
    "tests/train/watch/phases_worker.py": "plays a slow phase",
}


def called(node: ast.AST) -> str:
    """The last name of what is called; nothing, if it is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def judged_by(function: ast.AST) -> set[str]:
    """What in a function can fail: "assert" and "raise", and the names of what it calls."""
    found = set()
    for node in walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            found.add("assert")
        elif isinstance(node, ast.Call):
            name = called(node)
            checks = any(
                one.arg == "check" and getattr(one.value, "value", None) is True
                for one in node.keywords
            )
            found.add("assert" if checks or name.startswith("assert_") else name)
    return found


def test_every_test_can_fail() -> None:
    functions = [
        (place, node, judged_by(node))
        for place, node in nodes_of_suite()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    judges = {"assert", "raises", "warns", "fail", "exec", "run_path"}
    helpers = [(node.name, names) for _, node, names in functions]
    while found := {name for name, names in helpers if names & judges} - judges:
        judges |= {name for name in found if not name.startswith("test_")}
        helpers = [(name, names) for name, names in helpers if name not in found]
    idle = [
        f"{place}:{node.lineno} {node.name}"
        for place, node, names in functions
        if node.name.startswith("test_")
        and Path(place).name.startswith("test_")
        and not names & judges
    ]
    assert not idle


def says_nothing(test: ast.expr, rest: list[ast.stmt]) -> bool:
    """An assertion that holds whatever the code does."""
    if isinstance(test, ast.Constant):
        return True
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In):
        left = test.left
        return (
            isinstance(left, ast.Constant)
            and isinstance(left.value, str)
            and left.value.isalnum()
            and len(left.value) < 2
        )
    if isinstance(test, ast.Call) and called(test) == "isinstance":
        kind = ast.unparse(test.args[1])
        subject = ast.unparse(test.args[0])
        decoded = "loads(" in subject  # another's text, whose kind may be all that is promised
        return (
            kind in {"list", "dict", "tuple", "str"}
            and not decoded
            and not any(subject in ast.unparse(one) for one in rest)
        )
    return False


def test_no_assertion_holds_whatever_the_code_does() -> None:
    found = []
    for place, node in nodes_of_suite():
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for number, one in enumerate(block if isinstance(block, list) else []):
                if isinstance(one, ast.Assert) and says_nothing(one.test, block[number + 1 :]):
                    found.append(f"{place}:{one.lineno} {ast.unparse(one)}")
    assert not found


def test_no_test_finds_a_port_and_lets_it_go() -> None:
    found = [
        f"{place}:{node.lineno}"
        for place, node in nodes_of_suite()
        if called(node) == "bind" and place not in MAY_BIND
    ]
    assert not found, "use tests/ports.py, or let the server choose its port and say it"


def test_no_test_sleeps_in_hope() -> None:
    found = []

    def look(place: str, node: ast.AST, *, polling: bool) -> None:
        if called(node) == "sleep" and not polling and ast.unparse(node) != "asyncio.sleep(0)":
            found.append(f"{place}:{node.lineno}")
        polling = polling or isinstance(node, ast.While | ast.For | ast.AsyncFor)
        for child in ast.iter_child_nodes(node):
            look(place, child, polling=polling)

    sleeping = {place for place, node in nodes_of_suite() if called(node) == "sleep"}
    for place in sleeping - SLEEPERS.keys():
        look(place, suite()[place], polling=False)
    assert not found, "wait for what you wait for"


FRAGMENT = re.compile(r"(Of|That|As|Those)\b")
"""How a sentence begins that can only be read after the name above it."""


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?:])\s|\n\n", text.strip())[0]


def described() -> Iterator[tuple[str, int, str]]:
    """Place, line and text of each docstring: of modules, classes, functions, and under fields."""
    for place, node in of_kind(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield place, getattr(node, "lineno", 1), text
        if isinstance(node, ast.Module | ast.ClassDef):
            for field, below in itertools.pairwise(node.body):
                if isinstance(field, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
                    value = getattr(below.value, "value", None)
                    if isinstance(value, str):
                        yield place, below.lineno, value


def test_what_is_said_of_a_name_can_be_read_without_it() -> None:
    fragments = [
        f"{place}:{line}: {first_sentence(text)}"
        for place, line, text in described()
        if len(first_sentence(text).split()) < 4 or FRAGMENT.match(first_sentence(text))
    ]
    assert not fragments


def test_a_public_class_name_means_one_thing_in_the_whole_house() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for place, node in of_kind(ast.ClassDef):
        if not node.name.startswith("_"):
            places[node.name].add(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_file_imports_itself_in_a_circle() -> None:
    house = grimp.build_graph("ridgeline", cache_dir=None, exclude_type_checking_imports=True)
    imports = nx.DiGraph(
        (module, imported)
        for module in house.modules
        for imported in house.find_modules_directly_imported_by(module)
    )
    circles = [one for one in nx.strongly_connected_components(imports) if len(one) > 1]
    assert imports.number_of_edges() > 2000
    assert circles == []
