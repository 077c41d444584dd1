"""Finds lessons, hands out exercises, and starts the processes that run and mark them.

Nothing here imports torch, Triton or numba: a list of lessons is there at once.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from ridgeline.errors import InputError, MissingExtra, OurDefect
from ridgeline.records.input_file import read_text
from ridgeline.records.lesson import Lesson, LessonGrade, LessonTime, LessonTitle

_ROOM = Path(__file__).parent
_EXTRA = "lessons"
LONGEST_SECONDS = 300.0
"""An answer is marked within seconds; one that takes so long has a loop that never ends."""
_NEEDED = ("torch", "triton", "numba")
Answer = TypeVar("Answer")


class _Refusal(msgspec.Struct):
    error: str


def lessons() -> list[LessonTitle]:
    """Every lesson, in the order of the course."""
    found = []
    for file in (_ROOM / "topics").glob("[a-z]*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        order = next(
            ast.literal_eval(one.value)
            for one in tree.body
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "ORDER"
        )
        title = (ast.get_docstring(tree) or "").splitlines()[0]
        found.append((order, LessonTitle(name=file.stem.replace("_", "-"), title=title)))
    return [title for _, title in sorted(found, key=lambda one: one[0])]


def lesson(name: str) -> LessonTitle:
    """The lesson of that name.

    Raises:
        InputError: There is none; the message says which are near.
    """
    known = {one.name: one for one in lessons()}
    wanted = name.casefold().replace("_", "-")
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else "`ridgeline lesson` lists them"
        raise InputError(f"no lesson {name!r}; {hint}")
    return known[wanted]


def needs(name: str) -> list[str]:
    """Packages of the extra that a lesson imports; all need torch, and Triton's interpreter."""
    tree = ast.parse((_ROOM / "topics" / f"{_file_name(name)}.py").read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    imported = {one.module for one in nodes if isinstance(one, ast.ImportFrom) and one.module}
    imported |= {name.name for one in nodes if isinstance(one, ast.Import) for name in one.names}
    roots = {"torch", "triton", *(one.partition(".")[0] for one in imported)}
    return [one for one in _NEEDED if one in roots]


def _file_name(name: str) -> str:
    return name.replace("-", "_")


def exercise(name: str) -> str:
    """The text of the file that a learner starts from."""
    file = f"{_file_name(lesson(name).name)}.py"
    return (_ROOM / "exercises" / file).read_text(encoding="utf-8")


def teach(name: str) -> Lesson:
    """Run a lesson here, and on a GPU where there is one.

    Raises:
        MissingExtra: Triton or numba is not installed.
    """
    wanted = lesson(name)
    found = _answer(wanted, None, Lesson)
    twin = _ROOM / "cuda" / f"{_file_name(wanted.name)}.cu"
    found = msgspec.structs.replace(found, twin=str(twin) if twin.is_file() else "")
    gpu = _gpu()
    if not gpu:
        return found
    times = _answer(wanted, None, list[LessonTime], interpret=False)
    return msgspec.structs.replace(found, times=[*found.times, *times], device=gpu)


def grade(name: str, file: Path) -> LessonGrade:
    """Mark a learner's file.

    Raises:
        InputError: The file is no Python, has no `solve`, or fails.
    """
    wanted = lesson(name)
    _check_text(file)
    return _answer(wanted, file.resolve(), LessonGrade)


def _check_text(file: Path) -> None:
    """See that a file could be an answer, before anything is started."""
    cure = "begin with what --exercise writes"
    text = read_text(file, option="--check", cure=cure)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        place = f", line {line}" if line else ""
        raise InputError(f"--check {file}{place}: is no Python; {cure}") from None
    if not any(isinstance(one, ast.FunctionDef) and one.name == "solve" for one in tree.body):
        raise InputError(f"--check {file}: defines no solve(); {cure}")


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _answer(
    wanted: LessonTitle, file: Path | None, kind: type[Answer], *, interpret: bool = True
) -> Answer:
    for module in needs(wanted.name):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, _EXTRA)
    chosen = "1" if interpret else "0"
    environment = {**os.environ, "TRITON_INTERPRET": chosen, "NUMBA_ENABLE_CUDASIM": chosen}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        given = [wanted.name, wanted.title, str(file or ""), str(answer)]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "ridgeline.lessons.process", *given],
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=None if file is None else LONGEST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise InputError(
                f"--check {file}: no marks after {LONGEST_SECONDS:g} s; look for a loop that never"
                " ends"
            ) from None
        if not answer.is_file():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            if file is not None:
                raise InputError(f"--check {file}: its process ended early ({last})")
            raise OurDefect(f"the lesson {wanted.name} failed: {last}", details=done.stderr)
        content = answer.read_bytes()
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        refusal = msgspec.json.decode(content, type=_Refusal)
        raise InputError(f"--check {file}: {refusal.error}") from None
