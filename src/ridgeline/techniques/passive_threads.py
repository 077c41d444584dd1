"""OpenMP threads that sleep while they wait for each other, on cores that others want too.

A parallel operator ends when the last of its threads has done its part. Those that are done spin,
and go on spinning for the next operator. On a machine with free cores nothing is quicker; where
other programs, or the script's own workers, want the cores, they spin in the time of the very
thread that they wait for, and every operator takes as long as the kernel lets a spinning thread
run. Threads that sleep give their core away at once, and wake some ten microseconds later: where
cores are free, steps of small operators take up to three times as long with them, and large ones a
tenth longer (layers of 64 to 1,024 on two cores of an AMD EPYC, torch 2.13).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ridgeline.hardware.core_pressure import WAIT_VARIABLES
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
    name="passive-threads",
    title="OpenMP threads that sleep while they wait",
    cures=("crowded-threads",),
    costs="A loss where cores are free, up to threefold for small operators, since each waits for "
    "its threads to wake: for as long as others run. It is set in the environment, before torch is "
    "imported.",
    source="OpenMP 5.2, section 21.7 (OMP_WAIT_POLICY); GNU libgomp manual, GOMP_SPINCOUNT; Intel "
    "oneAPI documentation, KMP_BLOCKTIME",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
    moves_work=True,
    slot="waiting",
    required={"runtime": str},
)

_VARIABLES = {"gnu": {"OMP_WAIT_POLICY": "passive"}, "intel": {"KMP_BLOCKTIME": "0"}}
_LEAST_BESIDE = 0.1
"""Share of the step in which threads beside its own compute or want to: below, none is shared."""


options = runtime_options


def applies(context: Context) -> Applicability:
    """Several threads compute on cores that others want, and nobody has said how they wait."""
    settings, given = context.profile.settings, context.profile.environment.variables
    if context.device != "cpu":
        return Applicability(False, f"the model is on {context.device}")
    if settings.num_threads < 2:
        return Applicability(False, "one thread waits for no other")
    if not context.profile.is_crowded:  # on free cores it is a loss
        share = context.profile.crowded_share
        return Applicability(False, f"its threads waited for a core for {share:.0%} of a step")
    if context.profile.beside_seconds < _LEAST_BESIDE * context.profile.step_seconds.mean:
        return Applicability(False, "one thread computes nearly everything")
    said = next((name for name in WAIT_VARIABLES if name in given), None)
    if said is not None:
        return Applicability(False, f"{said} is set")
    if runtime_of_torch() is None:
        return Applicability(False, "no OpenMP runtime was found beside torch")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Hardly anything, or nearly all that is computed: spinning threads look like busy ones."""
    computing = context.phase_share("forward", "backward", "optimizer")
    return amdahl(computing, 1.0, 20.0)


def environment(options: Options) -> dict[str, str]:
    """What the runtime reads as it is loaded."""
    return _VARIABLES[str(options["runtime"])]


def apply(points: Points, options: Options) -> Undo:
    """See that the process has the variables, as its model first runs."""
    wanted = _VARIABLES[str(options["runtime"])]
    seen = False

    def look(module: nn.Module) -> None:
        nonlocal seen
        if seen:
            return
        seen = True
        other = next((name for name, it in wanted.items() if os.environ.get(name) != it), None)
        if other is None:
            points.changed(CARD.name, "threads of OpenMP sleep while they wait")
        else:
            points.refuse(CARD.name, f"the script sets {other} itself")

    points.on_model.append(look)
    return lambda: points.on_model.remove(look)


def edits(context: Context, options: Options) -> list[Edit]:
    """The variable, before anything is imported."""
    return set_before_imports(context, _VARIABLES[str(options["runtime"])])
