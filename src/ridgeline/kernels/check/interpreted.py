"""The process that runs a file's `example()` under the interpreter: FILE in, JSON on a path out.

    TRITON_INTERPRET=1 python -m ridgeline.kernels.check.interpreted FILE KERNEL ANSWER

`example()` calls the kernels as their user does, on small tensors; `cuda` means the CPU
there. What it returns is compared: pairs of (found, expected), one or a list of them; expected is
best computed in float64. A third tensor of a pair, the same step by step in the dtype of found, may
err as much as it does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from triton.runtime.errors import InterpreterError

from ridgeline.errors import RidgelineError, in_words
from ridgeline.from_source import import_file
from ridgeline.kernels.check import bfloat16, float8, language, libdevice, scalars
from ridgeline.kernels.check.judging import WASTES, findings, launch_record
from ridgeline.kernels.check.on_cuda import on_cuda
from ridgeline.kernels.check.other_layouts import OtherLayouts, told
from ridgeline.kernels.check.other_numbers import (
    TIMES_ALLOWED,
    OtherNumbers,
    comparable,
    kernel_of,
    larger,
    overflows,
    small_and_negative,
)
from ridgeline.kernels.check.seen import SeenLaunch
from ridgeline.kernels.check.watching import LaunchWatch
from ridgeline.records.kernel_check import KernelFinding

_TIMES_THE_FLOOR = 1.25
"""A result may be so much further from what is expected than rounding that once would be."""
_STEPS_OF_A_FLOOR = 5
"""Rounding errs by a fifth of a step on average, also where what is expected needs none."""
_TIMES_PLAIN = 1.1
"""A result may be so much further away than what was computed plainly in its dtype."""
_OF_FLOAT32 = 64.0
"""The factor for float32, in which every step rounds."""
_STEP_OF_TF32 = 2.0**-10
_OF_TF32 = 2.0
"""What matmuls in tf32 may cost float32 results, in steps: each of two factors is cut."""
_MOST_LAYOUTS = 4
"""Tensors that are laid out otherwise one at a time, where all together cannot be."""
_OF_A_LAYOUT = "take each tensor's own strides, or let the wrapper refuse what lies otherwise"

_OTHERS = re.compile(r"/(site|dist)-packages/|/ridgeline/|/lib/python3|^<")
"""Files that the author of a kernel did not write."""
_CURES = {
    "CUDA": "the interpreter runs on the CPU, which has nothing like it: leave it out of example()",
    "NVIDIA driver": "the interpreter runs on the CPU, which has none: leave it out of example()",
    "'NoneType'": "a function of the kernel gave nothing: the interpreter may not have it",
}
"""What a failure says → what to do about it."""


def load(file: Path) -> ModuleType:
    """A file as a module, which inspect can find again, under no other module's name."""
    name = f"checked_{file.stem}" if _is_taken(file) else file.stem
    sys.path.insert(len(sys.path) if name != file.stem else 0, str(file.parent))
    return import_file(name, file)


def _is_taken(file: Path) -> bool:
    """Whether another module has the file's name, which others would then import in its place."""
    try:
        known = importlib.util.find_spec(file.stem)
    except ValueError:  # __main__ and its like
        return True
    return known is not None and known.origin != str(file)


def check(file: Path, kernel: str) -> dict[str, Any]:
    """Run the example; the launches and findings of `kernel`, or of all if it is empty."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bfloat16.install()
    float8.install()
    libdevice.install()
    scalars.install()
    language.install()
    watch = LaunchWatch()
    watch.install()
    torch.manual_seed(0)
    torch.set_deterministic_debug_mode("warn")  # torch.empty is filled with NaN
    with on_cuda():
        try:
            module = load(file)
        except (Exception, SystemExit) as error:
            return {"error": _failure(error, file, "importing it")}
        example = getattr(module, "example", None)
        if not callable(example):
            return {"error": "defines no example(); add a function that calls the kernels"}
        watch.launches.clear()
        try:
            returned = example()
        except (Exception, SystemExit) as error:
            return {"error": _failure(error, file, "example()")}
        seen = [one for one in watch.launches if kernel in ("", one.kernel)]
        if not seen:
            named = sorted({one.kernel for one in watch.launches})
            what = f"launches no kernel {kernel}" if kernel else "launches no kernel"
            return {"error": f"example() {what}; it launches {', '.join(named) or 'none'}"}
        compared = _compared(returned)
        wrong = next((one for one in compared if not all(map(torch.is_tensor, one))), None)
        if wrong is not None:
            types = ", ".join(type(one).__name__ for one in wrong)
            return {
                "error": f"example() returns ({types}); return pairs of tensors, found and expected"
            }
        results = [one for pair in compared for one in pair]
        found = [*findings(seen, results), *_inexact(compared, seen, file)]
        if compared and not {one.cause for one in found} - WASTES:
            others = _with_other_numbers(example, watch, file)
            found += [one for one in others if kernel in ("", one.kernel)]
    launches = [launch_record(one) for one in seen]
    return {"launches": launches, "findings": found, "compared": len(compared)}


def _with_other_numbers(
    example: Callable[[], Any], watch: LaunchWatch, file: Path
) -> list[KernelFinding]:
    """What more runs show; nothing where the example fails on their numbers."""
    usual, watch.once = watch.launches, True
    found: list[KernelFinding] = []
    for change, judge in ((larger, overflows), (small_and_negative, _otherwise)):
        watch.launches = []
        torch.manual_seed(0)
        with contextlib.suppress(Exception, SystemExit), OtherNumbers(change):
            found += judge(_compared(example()), watch.launches, usual, str(file))
    return [*found, *_with_other_layouts(example, watch, usual, str(file))]


def _otherwise(
    compared: Sequence[tuple[torch.Tensor, ...]],
    now: Sequence[SeenLaunch],
    usual: Sequence[SeenLaunch],
    where: str,
) -> Iterator[KernelFinding]:
    """Results of small numbers below zero that are wrong, though those of usual ones are not."""
    if not comparable(now, usual):
        return
    for found, expected, *plain in compared:
        wide = found.dtype in (torch.float32, torch.float64, torch.bfloat16)
        if wide and found.shape == expected.shape and bool(expected.isfinite().all()):
            said = "where normal numbers are small and negative, "
            cut = _cuts(usual)
            yield from _worse((found, expected, *plain), now, where, said, TIMES_ALLOWED, cut=cut)


def _worse(
    compared: tuple[torch.Tensor, ...],
    now: Sequence[SeenLaunch],
    where: str,
    said: str,
    times: float,
    *,
    cut: bool,
) -> Iterator[KernelFinding]:
    """A finding where a result of another run is further away than `times` what is allowed."""
    found, expected, *plain = compared
    error, floor = _error(found, expected), _rounding_error(found, expected)
    if not error <= times * _allowed(found, expected, plain, cut=cut):
        one = _too_far(found, expected, error, floor, kernel_of(now, found), where)
        yield msgspec.structs.replace(one, summary=said + one.summary)


def _with_other_layouts(
    example: Callable[[], Any], watch: LaunchWatch, usual: Sequence[SeenLaunch], where: str
) -> list[KernelFinding]:
    """What a run shows in which rows lie apart, or several, in each of which those of one do."""
    found, drawn = _with_a_layout(example, watch, usual, where, OtherLayouts())
    for alone in range(0 if found is not None else min(drawn, _MOST_LAYOUTS)):
        one, _ = _with_a_layout(example, watch, usual, where, OtherLayouts(alone))
        found = [*(found or []), *(one or [])]
    return found or []


def _with_a_layout(
    example: Callable[[], Any],
    watch: LaunchWatch,
    usual: Sequence[SeenLaunch],
    where: str,
    layouts: OtherLayouts,
) -> tuple[list[KernelFinding] | None, int]:
    """The findings, None where the run cannot be judged, and how many tensors were drawn."""
    watch.launches = []
    torch.manual_seed(0)
    compared = None
    with contextlib.suppress(Exception, SystemExit), layouts:
        compared = _compared(example())
    alike = [one.kernel for one in watch.launches] == [one.kernel for one in usual]
    if compared is None or not alike or not told(watch.launches, usual, layouts.steps):
        return None, layouts.drawn
    said = "where rows of tensors lie apart, "
    found = [
        msgspec.structs.replace(finding, cause="layout-dependent", cure=_OF_A_LAYOUT)
        for one in compared
        if one[0].shape == one[1].shape
        for finding in _worse(one, watch.launches, where, said, 1.0, cut=_cuts(usual))
    ]
    return found, layouts.drawn


def _failure(error: BaseException, file: Path, what: str) -> str:
    """Why an example failed: the innermost line that its author wrote, what it said, and a cure."""
    frames = traceback.extract_tb(error.__traceback__)
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__  # each kernel that calls another wraps the error once more
        frames += traceback.extract_tb(error.__traceback__)
    written = [one for one in frames if not _OTHERS.search(one.filename)]
    place = ""
    if written:
        at = written[-1]
        place = f"line {at.lineno}: " if at.filename == str(file) else f"{_place(at)}: "
    name, said = type(error).__name__, in_words(error)
    if said == name and frames and frames[-1].line:
        said = frames[-1].line  # an assertion without words
    cure = next((cure for part, cure in _CURES.items() if part in said), "")
    return f"{place}{what} fails: {name}: {said}{cure and f'; {cure}'}"


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _inexact(
    compared: list[tuple[torch.Tensor, ...]], seen: list[SeenLaunch], file: Path
) -> Iterator[KernelFinding]:
    for found, expected, *plain in compared:
        kernel = next((one for one in reversed(seen) if one.wrote_to(found)), seen[-1]).kernel
        if found.shape != expected.shape:
            yield _misshapen(found, expected, kernel, file)
            continue
        error, floor = _error(found, expected), _rounding_error(found, expected)
        if not error <= _allowed(found, expected, plain, cut=_cuts(seen)):
            yield _too_far(found, expected, error, floor, kernel, str(file))


def _cuts(seen: Sequence[SeenLaunch]) -> bool:
    """Whether any launch multiplies in tf32."""
    return any(one.matrix_dtype == "tf32" for one in seen)


def _allowed(
    found: torch.Tensor, expected: torch.Tensor, plain: Sequence[torch.Tensor], *, cut: bool
) -> float:
    """The largest error that is no finding; `cut`: factors of matmuls are in tf32."""
    narrow = found.dtype not in (torch.float32, torch.float64)
    allowed = _rounding_error(found, expected) * (_TIMES_THE_FLOOR if narrow else _OF_FLOAT32)
    allowed = max(allowed, _OF_TF32 * _STEP_OF_TF32 if cut and not narrow else 0.0)
    return max([allowed, *(_TIMES_PLAIN * _error(one, expected) for one in plain)])


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error in the norm of all elements together."""
    exact = expected.detach().double()
    return float((found.detach().double() - exact).norm()) / (float(exact.norm()) or 1.0)


def _rounding_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """What rounding the expected result once to the dtype of what was found costs."""
    if not found.dtype.is_floating_point:
        return _error(expected.detach().double().round(), expected)
    step = torch.finfo(found.dtype).eps
    return max(_error(expected.detach().to(found.dtype), expected), step / _STEPS_OF_A_FLOOR)


def _too_far(
    found: torch.Tensor,
    expected: torch.Tensor,
    error: float,
    floor: float,
    kernel: str,
    where: str,
) -> KernelFinding:
    summary = (
        f"the relative error is {error:.2g}, {error / (floor or 1e-30):.3g} times "
        "that of rounding the expected result once"
    )
    evidence: dict[str, float | int | str] = {"relative_error": error, "rounding_error": floor}
    if not math.isfinite(error):
        wrong = int((~found.double().isfinite() & expected.isfinite()).sum())
        summary = f"{wrong} of {found.numel()} results are NaN or infinite"
        evidence = {"results": wrong, "of_results": found.numel()}
    return KernelFinding(
        cause="inexact",
        kernel=kernel,
        summary=summary,
        evidence=evidence,
        where=where,
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


def _compared(returned: Any) -> list[tuple[torch.Tensor, ...]]:
    """Tuples of found, expected and perhaps the same computed plainly, whatever holds them."""
    if not isinstance(returned, list | tuple):
        return []
    if len(returned) in (2, 3) and any(isinstance(one, torch.Tensor) for one in returned):
        return [tuple(returned)]
    return [tuple(one) for one in returned if isinstance(one, list | tuple) and len(one) in (2, 3)]


def main(file: str, kernel: str, answer: str) -> None:
    """Write the answer, or in one line why there is none."""
    try:
        found = check(Path(file), kernel)
    except RidgelineError as error:
        found = {"error": str(error)}
    Path(answer).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
