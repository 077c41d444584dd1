"""One hardware thread per physical core, so that two threads never share one.

Only where cores run several hardware threads. The scheduler usually gets this right on an idle
machine, so the gain is small. Forked children (loader workers) get the whole machine back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.hardware.machine import this_machine
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="thread-affinity",
    title="Threads bound to physical cores",
    cures=("few-threads",),
    costs="The process may use only one hardware thread of each core.",
    source="PyTorch performance tuning guide, CPU specific optimizations, core affinity",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
    moves_work=True,
    slot="binding",
)

_TOPOLOGY = Path("/sys/devices/system/cpu")


def applies(context: Context) -> Applicability:
    """A CPU model on cores that run several hardware threads."""
    if context.device != "cpu":
        return Applicability(False, f"the model is on {context.device}")
    if not hasattr(os, "sched_setaffinity"):
        return Applicability(False, "this system cannot bind a process to cores")
    cpu = this_machine(gpus=[]).cpu
    if cpu.num_logical_cores <= cpu.num_physical_cores:
        return Applicability(False, "every core runs one hardware thread")
    if context.profile.settings.cpu_count <= cpu.num_physical_cores:
        return Applicability(False, "the process is bound to a part of the machine already")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Compute-bound operators no longer share a core."""
    return amdahl(context.phase_share("forward", "backward", "optimizer"), 0.97, 1.15)


def apply(points: Points, options: Options) -> Undo:
    """Bind the process when the first model is about to run."""
    allowed = os.sched_getaffinity(0)
    chosen = one_per_core(allowed)
    bound = False

    def bind(module: nn.Module) -> None:
        nonlocal bound
        if bound or chosen == allowed:
            return
        bound = True
        # Pool threads that exist already keep their own mask, hence every thread.
        _bind_all_threads(chosen)
        os.register_at_fork(after_in_child=release)
        points.changed(CARD.name, f"bound to {len(chosen)} of {len(allowed)} hardware threads")

    def release() -> None:
        if bound:
            os.sched_setaffinity(0, allowed)

    points.on_model.append(bind)

    def undo() -> None:
        nonlocal bound
        points.on_model.remove(bind)
        if bound:
            _bind_all_threads(allowed)
        bound = False

    return undo


def one_per_core(allowed: set[int], topology: Path = _TOPOLOGY) -> set[int]:
    """The lowest allowed hardware thread of each core; all of them where cores are unknown."""
    chosen: dict[str, int] = {}
    for number in sorted(allowed):
        siblings = topology / f"cpu{number}" / "topology" / "thread_siblings_list"
        key = siblings.read_text().strip() if siblings.is_file() else str(number)
        chosen.setdefault(key, number)
    return set(chosen.values())


def _bind_all_threads(cores: set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def edits(context: Context, options: Options) -> list[Edit]:
    """Bind at the start of the script, before any thread is made."""
    cores = sorted(one_per_core(os.sched_getaffinity(0)))
    return [AtStart(files=context.files, code=f"os.sched_setaffinity(0, {set(cores)})")]
