"""Each thread of the OpenMP pool stays on a core of its own, as the runtime itself binds it.

Threads that the scheduler moves leave their caches behind, and on machines with several memory
nodes their memory too. The OpenMP runtime binds its pool where variables of the environment say
so before it is loaded: GNU's by OMP_PROC_BIND and OMP_PLACES, Intel's by KMP_AFFINITY, and the
latter's threads then also stop spinning sooner (KMP_BLOCKTIME). Which of them is there is seen
from the libraries beside torch. So this is a row of the environment: a script cannot set it for
itself once torch is imported, and a patch sets it before the script's first import.

A bound main thread hands its core on to whatever it starts: forked children (a loader's workers)
get all of the process's cores back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.hardware.machine import this_machine
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.openmp import (
    runtime_of_torch,
    runtime_options,
    set_before_imports,
)

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="thread-binding",
    title="OpenMP threads bound to cores",
    cures=("few-threads",),
    costs="Other work on the bound cores makes the step wait, and programs that the script starts "
    "inherit one core; it is set in the environment, before torch is imported.",
    source="PyTorch performance tuning guide, CPU specific optimizations; OpenMP 5.2, sections "
    "21.2 and 21.3; Intel oneAPI documentation, thread affinity interface",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
    moves_work=True,
    slot="binding",
    required={"runtime": str},
)

_VARIABLES = {
    "gnu": {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
    "intel": {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"},
}
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_CORES = "RIDGELINE_CORES"
"""The variable that says which cores the process may use: a bound thread cannot ask any more."""
_LEAST_THREADS = 1.3
"""Cores that the step keeps busy on average: below, one thread does nearly everything."""
_MOST_WAITING = 0.1
"""Share of the step in which a runnable thread waited for a core: above, the machine is not ours,
and a bound thread cannot give way."""
_STARTS_THE_POOL = 1 << 18
"""Elements of a tensor that torch divides among its threads."""


options = runtime_options


def applies(context: Context) -> Applicability:
    """Several threads compute on cores that are theirs, and nobody has bound them."""
    settings, step = context.profile.settings, context.profile.step_seconds.mean
    if context.device != "cpu":
        return Applicability(False, f"the model is on {context.device}")
    if not hasattr(os, "sched_setaffinity"):
        return Applicability(False, "this system cannot bind threads to cores")
    if context.profile.world_size > 1:
        return Applicability(False, "several ranks would be bound to the same cores")
    if settings.cpu_seconds < _LEAST_THREADS * step:
        return Applicability(False, "one thread computes nearly everything")
    if settings.num_threads > settings.cpu_count:
        return Applicability(False, "it has more threads than cores")
    if (share := context.profile.crowded_share) > _MOST_WAITING:
        return Applicability(False, f"other work takes its cores for {share:.0%} of a step")
    bound = next((name for name in _BINDING if name in os.environ), None)
    if bound is not None:
        return Applicability(False, f"{bound} is set")
    if runtime_of_torch() is None:
        return Applicability(False, "no OpenMP runtime was found beside torch")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Hardly a gain on one socket, more where memory has several nodes; a loss beside others."""
    computing = context.phase_share("forward", "backward", "optimizer")
    several = this_machine(gpus=[]).cpu.num_sockets > 1
    return amdahl(computing, 0.95, 1.4 if several else 1.03)


def environment(options: Options) -> dict[str, str]:
    """What the runtime reads as it is loaded, and which cores there were."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {**_VARIABLES[str(options["runtime"])], _CORES: cores}


def apply(points: Points, options: Options) -> Undo:
    """See that the runtime has bound its pool; give forked children all cores."""
    cores = {int(number) for number in os.environ.get(_CORES, "").split(",") if number}
    seen = False

    def look(module: nn.Module) -> None:
        import torch

        nonlocal seen
        if seen:
            return
        seen = True
        torch.zeros(_STARTS_THE_POOL).add_(1)
        bound = bound_threads(cores)
        if bound:
            points.changed(CARD.name, f"{bound} thread(s) keep to a core of {len(cores)}")
        else:
            points.refuse(CARD.name, "the OpenMP runtime did not bind its threads")

    def release() -> None:
        if cores:
            os.sched_setaffinity(0, cores)

    points.on_model.append(look)
    os.register_at_fork(after_in_child=release)
    return lambda: points.on_model.remove(look)


def bound_threads(cores: set[int]) -> int:
    """How many threads of this process may not use all of its cores."""
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return sum(os.sched_getaffinity(task) < cores for task in tasks)


def edits(context: Context, options: Options) -> list[Edit]:
    """The variables, before anything is imported, and all cores for forked children."""
    released = (
        "_cores = os.sched_getaffinity(0)  # a bound thread hands one core on to what it forks\n"
        "os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, _cores))"
    )
    return set_before_imports(context, _VARIABLES[str(options["runtime"])], then=released)
