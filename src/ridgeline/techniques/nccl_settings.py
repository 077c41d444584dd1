"""NCCL's algorithm, protocol, channels and buffers, set for the job and measured on it.

NCCL chooses them by a model of the machine, which links that are shared, slow or unusual do not
follow. What helps is found by trying: each setting is an environment variable that every rank reads
when its first communicator is made (NVIDIA, NCCL documentation, "Environment Variables"). A tree
reduces small buffers over many nodes in fewer steps than a ring; the Simple protocol uses links
fully where buffers are large; more channels put more multiprocessors at work on it; larger buffers
mean fewer hand-shakes; CollNet lets switches add (SHARP), where its plug-in is installed.

The LL128 protocol is never set: where NCCL does not choose it by itself, the documentation warns
of damaged data. What somebody has set already is left alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.records.measurement import script_of
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="nccl-settings",
    title="NCCL's algorithm, protocol, channels and buffers",
    cures=("exposed-communication",),
    costs="It suits this job on these machines, and may not suit another; sums across ranks are"
    " rounded in another order. Set in the environment, before NCCL begins.",
    source="NVIDIA, NCCL documentation, Environment Variables",
    equivalence="rounding",
    stage=Stage.COMMUNICATION,
    slot="nccl",
    required={"variable": str, "value": str},
)

_TRIED = (
    ("NCCL_ALGO", "Tree"),
    ("NCCL_ALGO", "Ring"),
    ("NCCL_PROTO", "Simple"),
    ("NCCL_MIN_NCHANNELS", "16"),
    ("NCCL_BUFFSIZE", str(8 * 2**20)),
    ("NCCL_COLLNET_ENABLE", "1"),
)
"""In the order in which they are tried."""
_LEAST_SHARE = 0.03


def applies(context: Context) -> Applicability:
    """Several ranks on GPUs, whose communication is felt."""
    if context.device != "cuda":
        return Applicability(False, f"the model is on {context.device}, which NCCL does not serve")
    if context.profile.world_size < 2:
        return Applicability(False, "one process has nobody to talk to")
    share = context.phase_share("communication")
    if share < _LEAST_SHARE:
        return Applicability(False, f"{share:.1%} of a step is communication that nothing hides")
    if not options(context):
        return Applicability(False, "all of NCCL's settings are made already")
    return Applicability(True, "")


def options(context: Context) -> list[Options]:
    """The settings that nobody has made."""
    del context
    return [
        {"variable": variable, "value": value}
        for variable, value in _TRIED
        if variable not in os.environ
    ]


def predict(context: Context, options: Options) -> Gain:
    """Some of the exposed communication goes, or grows."""
    return amdahl(context.phase_share("communication"), 0.8, 1.3)


def environment(options: Options) -> dict[str, str]:
    """The one variable, for every rank."""
    return {str(options["variable"]): str(options["value"])}


def apply(points: Points, options: Options) -> Undo:
    """See that the job's collectives are NCCL's; the environment has the rest."""
    seen = False

    def look(module: nn.Module) -> None:
        from torch import distributed

        nonlocal seen
        if seen:
            return
        seen = True
        if not distributed.is_available() or not distributed.is_initialized():
            points.refuse(CARD.name, "the job has no process group")
        elif "nccl" not in distributed.get_backend():
            points.refuse(CARD.name, f"its collectives are {distributed.get_backend()}'s")
        else:
            points.changed(CARD.name, f"{options['variable']}={options['value']}")

    points.on_model.append(look)
    return lambda: points.on_model.remove(look)


def edits(context: Context, options: Options) -> list[Edit]:
    """The variable, before anything is imported."""
    script = script_of(context.profile.environment.command)
    if script is None:
        return []
    variable, value = options["variable"], options["value"]
    code = f'import os\n\nos.environ.setdefault("{variable}", "{value}")'
    return [AtStart(files=(os.path.normpath(script),), code=code, before_imports=True)]
