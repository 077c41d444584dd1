"""The process keeps the memory of freed tensors instead of returning it to the kernel.

glibc maps every large block anew and unmaps it when it is freed, and it trims the end of the
heap. Both make the kernel hand out and clear the same pages in every step. Without either, a
step's tensors lie where the last step's lay.
"""

from __future__ import annotations

import ctypes
import platform

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="malloc-retain",
    title="Freed memory kept in the process",
    cures=("page-faults",),
    costs="The process never gets smaller than its largest step, and gaps between blocks may "
    "raise its peak memory.",
    source="The GNU C Library manual, Malloc Tunable Parameters; PyTorch performance tuning guide, "
    "memory allocators",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
)

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""glibc's numbers for `mallopt`."""
_RETAIN = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _TOP_PAD: 64 << 20}
_DEFAULTS = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 << 10, _TOP_PAD: 128 << 10}
_LEAST_FAULTS = 500.0
_MOST_SHARE = 0.8


def applies(context: Context) -> Applicability:
    """Many page faults per step, and a C library with these switches."""
    if context.device != "cpu":
        return Applicability(False, f"the model is on {context.device}")
    if platform.libc_ver()[0] != "glibc":
        return Applicability(False, "the C library is not glibc")
    faults = context.profile.settings.page_faults
    if faults < _LEAST_FAULTS:
        return Applicability(False, f"{faults:.0f} page faults per step")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Most of the time in the kernel goes; how it is spread over the threads is not known."""
    step = context.profile.step_seconds.mean
    bounds = context.profile.settings.kernel_wall_seconds(step)
    low, high = (min(_MOST_SHARE, seconds / step) for seconds in bounds)
    return Gain(amdahl(low, 3.0, 3.0).low, amdahl(high, 10.0, 10.0).high)


def apply(points: Points, options: Options) -> Undo:
    """Set the switches before the script allocates anything large."""
    if not _set(_RETAIN):
        return lambda: None
    points.changed(CARD.name, "malloc keeps freed memory: no mmap, no trim")

    def undo() -> None:
        _set(_DEFAULTS)

    return undo


def _set(switches: dict[int, int]) -> bool:
    """Did the C library take all of them?"""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*switch) == 1 for switch in switches.items())


def edits(context: Context, options: Options) -> list[Edit]:
    """One statement at the start of the script."""
    calls = ", ".join(f"({number}, {value})" for number, value in _RETAIN.items())
    code = (
        f"for _switch, _value in ({calls}):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD\n"
        "    ctypes.CDLL(None).mallopt(_switch, _value)"
    )
    return [AtStart(files=context.files, code=code)]
