"""Judges many example files in one process that has imported everything once.

    TRITON_INTERPRET=1 python -m tests.kernels.check.many FILE…

Each file is judged in a fork of its own, by the very function that `kernels check` runs, as many at
once as there are cores; one JSON line a file, in the order in which they end: its name, the causes
of its findings, or why there are none.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from ridgeline.kernels.check.interpreted import check


def judged(file: Path) -> dict[str, object]:
    try:
        found = check(file, "")
    except Exception as error:
        return {"file": str(file), "error": f"{type(error).__name__}: {error}"}
    if "error" in found:
        return {"file": str(file), "error": found["error"]}
    causes = sorted({one.cause for one in found["findings"]})
    return {"file": str(file), "error": "", "causes": causes}


def tell(answer: dict[str, object]) -> None:
    line = json.dumps(answer) + "\n"
    os.write(sys.stdout.fileno(), line.encode())  # whole, as forks share it


def main() -> None:
    torch.set_num_threads(1)
    running: dict[int, str] = {}
    for name in sys.argv[1:]:
        if len(running) == (os.cpu_count() or 1):
            await_one(running)
        child = os.fork()
        if child == 0:
            tell(judged(Path(name)))
            os._exit(0)
        running[child] = name
    while running:
        await_one(running)


def await_one(running: dict[int, str]) -> None:
    """Wait until any of the forks ends, and say so if it failed."""
    child, status = os.wait()
    name = running.pop(child)
    if status:
        tell({"file": name, "error": f"ended with {status}"})


if __name__ == "__main__":
    main()
