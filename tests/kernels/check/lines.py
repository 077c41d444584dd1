"""Lines of our own kernels that no example of `kernels check` runs: what would not be judged.

    TRITON_INTERPRET=1 python -m tests.kernels.check.lines

Each example runs in a fork of its own, whose lines are traced; one line of text for each that none
has run.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ridgeline.kernels.check import conduct
from ridgeline.kernels.check.interpreted import check

KERNELS = Path(conduct.__file__).parents[1] / "triton"


def run_by(example: Path) -> set[tuple[str, int]]:
    """Files and lines of kernels that an example runs, or a failed assertion."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writer, "w") as out:
            out.write(json.dumps(_traced(example)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        lines = json.load(answer)
    os.wait()
    return {(file, line) for file, line in lines}


def _traced(example: Path) -> list[tuple[str, int]]:
    ran: set[tuple[str, int]] = set()

    def each_line(frame: FrameType, event: str, value: Any) -> Any:
        ran.add((frame.f_code.co_filename, frame.f_lineno))
        return each_line

    def each_call(frame: FrameType, event: str, value: Any) -> Any:
        if not frame.f_code.co_filename.startswith(str(KERNELS)):
            return None
        return each_line

    sys.settrace(each_call)
    found = check(example, "")
    sys.settrace(None)
    assert not found.get("error"), found
    return sorted(ran)


def statements() -> Iterator[tuple[Path, ast.stmt]]:
    """Every statement of every kernel, texts aside."""
    for file in sorted(KERNELS.glob("*.py")):
        for function in ast.parse(file.read_text()).body:
            if isinstance(function, ast.FunctionDef) and function.decorator_list:
                if "triton.jit" not in map(ast.unparse, function.decorator_list):
                    continue
                for one in ast.walk(function):
                    text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
                    if isinstance(one, ast.stmt) and one is not function and not text:
                        yield file, one


def main() -> None:
    torch.set_num_threads(1)
    ran = set().union(*map(run_by, sorted(conduct.EXAMPLES.glob("[a-z]*.py"))))
    for file, one in statements():
        last = one.lineno if hasattr(one, "body") else one.end_lineno or one.lineno
        if not any((str(file), line) in ran for line in range(one.lineno, last + 1)):
            sys.stdout.write(f"{file.name}:{one.lineno}: {ast.unparse(one).splitlines()[0]}\n")


if __name__ == "__main__":
    main()
