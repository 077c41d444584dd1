"""Workers of pytest that start warm: forks of a process that has imported what tests import.

Every worker collects the whole suite, and half of that is the import of torch, transformers and
the like: seventeen seconds of a core for each. `tests/conftest.py` gives xdist this file as its
workers' Python. It lends what execnet gave it for standard input and output to a fork of the
cradle (`tests/cradle.py`), and ends when that ends.
"""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType

# The largest imports of the whole suite, each at least a tenth of a second.
IMPORTS = (
    "anthropic",
    "compressed_tensors.compressors",
    "fastapi",
    "gguf",
    "kubernetes.config",
    "libcst.matchers",
    "networkx",
    "onnx",
    "openai",
    "pandas",
    "playwright.sync_api",
    "pyarrow.parquet",
    "pytest",
    "ridgeline.diagnose.doctor",
    "ridgeline.drills.bank",
    "ridgeline.serve.http.server",
    "ridgeline.train.build",
    "ridgeline.tune.patch",
    "schemathesis",
    "sklearn.datasets",
    "tensorboard",
)
_LOOK_SECONDS = 0.2


def work(script: str) -> None:
    """In the worker: what `python -c script` does."""
    import atexit
    import threading

    sys.argv = ["-c"]
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        exec(script, main.__dict__)  # noqa: S102 - execnet's
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()


def _lend(run: str, script: str) -> None:
    os.environ["PYTEST_XDIST_TESTRUNUID"] = run
    from tests.cradle import cradle

    process = cradle(*IMPORTS).bear_on(
        (0, 1, 2),
        "tests.warm_workers:work",
        [script],
        environment=dict(os.environ),
        folder=os.getcwd(),
    )
    for descriptor in (0, 1):  # who reads them sees the end when the worker's own are closed
        os.close(descriptor)
    while _runs(process):
        time.sleep(_LOOK_SECONDS)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    _lend(sys.argv[1], sys.argv[-1])
