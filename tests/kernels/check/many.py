"""Judges many example files in one process that has imported everything once.

    TRITON_INTERPRET=1 python -m tests.kernels.check.many FILE…

Each file is judged in a fork of its own, by the very function that `kernels check` runs; one JSON
line a file: its name, the causes of its findings, or why there are none.
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
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            tell(judged(Path(name)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            tell({"file": name, "error": f"ended with {status}"})


if __name__ == "__main__":
    main()
