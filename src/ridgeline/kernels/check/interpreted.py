"""The process that runs a file's `example()` under the interpreter: FILE in, JSON on a path out.

    TRITON_INTERPRET=1 python -m ridgeline.kernels.check.interpreted FILE KERNEL ANSWER

`example()` calls the kernels as their user does, on small CPU tensors. What it returns is compared:
pairs of (found, expected), one or a list of them; expected is best computed in float64.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch

from ridgeline.errors import RidgelineError
from ridgeline.kernels.check import bfloat16
from ridgeline.kernels.check.judging import findings, launch_record
from ridgeline.kernels.check.watching import LaunchWatch
from ridgeline.records.kernel_check import KernelFinding

_TIMES_THE_FLOOR = 1.25
"""A result may be so much further from what is expected than rounding that once would be."""
_STEPS_OF_A_FLOOR = 5
"""Rounding errs by a fifth of a step on average, also where what is expected needs none."""
_OF_FLOAT32 = 64.0
"""The same for float32, in which every step rounds."""


def load(file: Path) -> ModuleType:
    """A file as a module, which inspect can find again."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent))
    spec.loader.exec_module(module)
    return module


def check(file: Path, kernel: str) -> dict[str, Any]:
    """Run the example; the launches and findings of `kernel`, or of all if it is empty."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bfloat16.install()
    watch = LaunchWatch()
    module = load(file)
    example = getattr(module, "example", None)
    if not callable(example):
        return {"error": "defines no example(); add a function that calls the kernels"}
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("warn")  # torch.empty is filled with NaN
    watch.install()
    returned = example()
    seen = [one for one in watch.launches if kernel in ("", one.kernel)]
    if not seen:
        named = sorted({one.kernel for one in watch.launches})
        what = f"launches no kernel {kernel}" if kernel else "launches no kernel"
        return {"error": f"example() {what}; it launches {', '.join(named) or 'none'}"}
    found = [*findings(seen), *_inexact(returned, seen[-1].kernel, file)]
    return {"launches": [launch_record(one) for one in seen], "findings": found}


def _inexact(returned: Any, kernel: str, file: Path) -> Iterator[KernelFinding]:
    for found, expected in _pairs(returned):
        if found.shape != expected.shape:
            yield _misshapen(found, expected, kernel, file)
            continue
        exact, rounded = expected.detach().double(), expected.detach().to(found.dtype).double()
        size = float(exact.norm()) or 1.0
        error = float((found.detach().double() - exact).norm()) / size
        narrow = found.dtype in (torch.float16, torch.bfloat16)
        step = torch.finfo(found.dtype).eps if found.dtype.is_floating_point else 0.0
        floor = max(float((rounded - exact).norm()) / size, step / _STEPS_OF_A_FLOOR)
        allowed = floor * (_TIMES_THE_FLOOR if narrow else _OF_FLOAT32)
        if not error <= allowed:
            summary = (
                f"the relative error is {error:.2g}, {error / (floor or 1e-30):.3g} times "
                "that of rounding the expected result once"
            )
            evidence: dict[str, float | int | str] = {
                "relative_error": error,
                "rounding_error": floor,
            }
            if not math.isfinite(error):
                wrong = int((~found.isfinite() & exact.isfinite()).sum())
                summary = f"{wrong} of {found.numel()} results are NaN or infinite"
                evidence = {"results": wrong, "of_results": found.numel()}
            yield KernelFinding(
                cause="inexact",
                kernel=kernel,
                summary=summary,
                evidence=evidence,
                where=str(file),
                cure="check the formula and its scales, and accumulate in float32",
            )


def _misshapen(
    found: torch.Tensor, expected: torch.Tensor, kernel: str, file: Path
) -> KernelFinding:
    return KernelFinding(
        cause="inexact",
        kernel=kernel,
        summary=f"the shape is {list(found.shape)}, and {list(expected.shape)} is expected",
        evidence={"elements": found.numel(), "of_elements": expected.numel()},
        where=str(file),
        cure="return pairs of (found, expected) of one shape",
    )


def _pairs(returned: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if not isinstance(returned, list | tuple):
        return []
    if len(returned) == 2 and all(isinstance(one, torch.Tensor) for one in returned):
        return [(returned[0], returned[1])]
    return [(one[0], one[1]) for one in returned if isinstance(one, list | tuple) and len(one) == 2]


def main(file: str, kernel: str, answer: str) -> None:
    """Write the answer, or in one line why there is none."""
    try:
        found = check(Path(file), kernel)
    except RidgelineError as error:
        found = {"error": str(error)}
    Path(answer).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
