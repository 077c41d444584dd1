"""Intra-operator threads, as many as there are cores to run them.

One thread per physical core is PyTorch's own default; scripts, containers and OMP_NUM_THREADS
change it, for worse when the number no longer fits the machine. A model of many tiny operators
can be faster on a single thread, where no operator waits for the others to wake.
"""

from __future__ import annotations

from ridgeline.hardware.machine import this_machine
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.switch import set_by_call, set_switch

CARD = Card(
    name="thread-count",
    title="Number of CPU threads",
    cures=("few-threads", "many-threads", "tiny-operators"),
    costs="Other work on the machine gets less of it; sums are split differently.",
    source="PyTorch documentation, CPU threading and TorchScript inference, tuning",
    equivalence="rounding",
    stage=Stage.SETTINGS,
    moves_work=True,
    required={"num_threads": int},
)


def applies(context: Context) -> Applicability:
    """A CPU model whose thread count differs from some sensible one."""
    if context.device != "cpu":
        return Applicability(False, f"the model is on {context.device}")
    if not _counts(context):
        threads = context.profile.settings.num_threads
        return Applicability(False, f"{threads} thread(s) fit this machine")
    return Applicability(True, "")


def options(context: Context) -> list[Options]:
    """The thread counts worth trying."""
    return [{"num_threads": count} for count in _counts(context)]


def predict(context: Context, options: Options) -> Gain:
    """With more threads up to linear on what is not overhead; with fewer, overhead may halve."""
    before = context.profile.settings.num_threads
    after = int(options["num_threads"])
    compute = context.phase_share("forward", "backward", "optimizer")
    if after < before <= _cores(context):
        return amdahl(context.profile.small_operator_share, 0.8, 1.5)
    if after < before:  # threads that wait for each other on too few cores
        return amdahl(compute, 1.0, 1.5)
    parallel = compute * (1 - context.profile.small_operator_share)
    return amdahl(parallel, 1.0, after / before)


def _cores(context: Context) -> int:
    """Cores for each process: ranks on one machine share it."""
    usable = min(this_machine(gpus=[]).cpu.num_usable_cores, context.profile.settings.cpu_count)
    return max(usable // max(context.profile.world_size, 1), 1)


def _counts(context: Context) -> list[int]:
    now = context.profile.settings.num_threads
    usable = _cores(context)
    physical = min(this_machine(gpus=[]).cpu.num_physical_cores, usable)
    wanted = []
    if now < physical or now > usable:
        wanted.append(physical)
    # Loader workers and the step share the cores.
    if now >= physical > 2 and any(loader.num_workers for loader in context.profile.loaders):
        wanted.append(physical - 1)
    if now > 1 and context.profile.small_operator_share > 0.3:
        wanted.append(1)
    return [count for count in dict.fromkeys(wanted) if count != now]


def apply(points: Points, options: Options) -> Undo:
    """Set it when the first model is about to run, after the script's own setting."""
    import torch

    wanted = int(options["num_threads"])
    return set_switch(points, CARD, torch.get_num_threads, torch.set_num_threads, wanted)


def edits(context: Context, options: Options) -> list[Edit]:
    """One line after the imports, or another number where the script sets it."""
    return set_by_call(context, "set_num_threads", str(options["num_threads"]))
