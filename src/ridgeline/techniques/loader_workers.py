"""Batches made by worker processes while the step runs.

Worth it when making a batch waits (disk, network, Python that decodes one item at a time) or
when cores are idle. Workers that compete with the step for the same cores, or that are started
anew for a data set in memory, make it slower: so several numbers are tried, fewer workers too.

The order of batches stays the same. Items that draw random numbers draw others in a worker.
"""

from __future__ import annotations

import math
import multiprocessing
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records import LoaderFacts
from ridgeline.records.edits import Edit, FirstOf, SetArgument
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, trainer_setting

CARD = Card(
    name="loader-workers",
    title="DataLoader worker processes",
    cures=("input-starved",),
    costs="Memory and start-up of the workers; random augmentation draws other numbers.",
    source="PyTorch documentation, torch.utils.data, multi-process data loading",
    equivalence="statistical",
    stage=Stage.INPUT,
    moves_work=True,
    slot="samples",
    required={"num_workers": int},
    optional={"prefetch_factor": int, "dataset": str},
)

_PREFETCH = 4
_HANDING_OVER_SECONDS = 2e-3
"""What a step with all cores in use loses to workers that compute and hand over a batch: 0.8 to
2.5 ms with one or two of them, seen on four scripts on two cores (on one, 7 ms with one)."""
_IN_EACH_OTHERS_WAY = 2.0
"""Times as long for two busy threads on one core."""
_MAX_OPTIONS = 3


def applies(context: Context) -> Applicability:
    """The loop waits for batches."""
    if not context.profile.loaders:
        return Applicability(False, "no DataLoader was iterated")
    waiting = context.phase_share("data")
    if waiting < 0.02:
        return Applicability(False, f"the loop waits for data {waiting:.1%} of a step")
    if not options(context):
        return Applicability(False, "no other number of workers fits this machine")
    return Applicability(True, "")


def options(context: Context) -> list[Options]:
    """Numbers of workers worth trying, the most promising first."""
    loader = _starved(context)
    if loader is None:
        return []
    cores = max(context.profile.settings.cpu_count, 1)
    if loader.num_workers == 0:
        wanted = [_needed(context, loader, cores), cores, max(cores - 1, 1)]
    elif loader.num_workers > cores:
        wanted = [cores, max(cores - 1, 1), max(cores // 2, 1)]
    else:
        wanted = [min(2 * loader.num_workers, 2 * cores), cores]
    several = len({other.dataset for other in context.profile.loaders}) > 1
    found: list[Options] = []
    for count in dict.fromkeys(wanted):
        if count != loader.num_workers:
            setting: Options = {"num_workers": count, "prefetch_factor": _PREFETCH}
            if several:
                setting["dataset"] = loader.dataset
            found.append(setting)
    return found[:_MAX_OPTIONS]


def _starved(context: Context) -> LoaderFacts | None:
    return max(context.profile.loaders, key=lambda loader: loader.wait_seconds, default=None)


def _needed(context: Context, loader: LoaderFacts, cores: int) -> int:
    """Workers that make batches as fast as the rest of the step uses them up."""
    step = context.profile.step_seconds.mean
    rest = max(step * (1 - context.phase_share("data")), 1e-4)
    fetch = loader.fetch_seconds or loader.wait_seconds
    return max(1, min(math.ceil(1.2 * fetch / rest), 2 * cores))


def predict(context: Context, options: Options) -> Gain:
    """The wait shrinks by the number of workers, or vanishes behind the step."""
    share = context.phase_share("data")
    loader = _starved(context)
    before = max(loader.num_workers, 1) if loader is not None else 1
    count = int(options["num_workers"])
    if count < before:  # too many workers stand in each other's way
        return amdahl(share, 0.9, 3.0)
    rest = max(1 - share, 1e-3)
    # n workers make a batch every share/n; what the step covers is not waited for.
    left = max(share * before / count - rest, 0.02 * share)
    high = 1 / (rest + left)
    step, cores = context.profile.step_seconds.mean, context.profile.settings.cpu_count
    if context.device == "cuda" or cores > 2:
        return Gain(min(high, 1.0 + (high - 1) * 0.4), high)
    if loader is not None and _computes(loader):
        # The workers compute on the cores that the step uses: only work can be shared out.
        best = 1 / (1 - share + share * before / max(cores, 1))
        # At worst each gets half a core, and the slower of the two is waited for.
        worst = _IN_EACH_OTHERS_WAY * max(share * before / count, rest)
        return Gain(1 / (max(worst, 1.0) + _HANDING_OVER_SECONDS / step), min(high, best))
    return Gain(min(high, 1.0 + (high - 1) * 0.1), high)


def _computes(loader: LoaderFacts) -> bool:
    """Is making a batch mostly work, and not waiting for a disk or a server?"""
    made, computed = loader.fetch_seconds, loader.fetch_cpu_seconds
    return made is not None and computed is not None and computed >= 0.5 * made


def apply(points: Points, options: Options) -> Undo:
    """Give every map-style loader its workers as it is constructed."""
    count = int(options["num_workers"])
    changed = 0

    def give_workers(arguments: dict[str, Any]) -> None:
        nonlocal changed
        if not _can_have_workers(arguments, options.get("dataset")):
            return
        arguments.update(num_workers=count, persistent_workers=True)
        arguments["prefetch_factor"] = int(options.get("prefetch_factor", _PREFETCH))
        changed += 1
        points.changed(CARD.name, f"{changed} loader(s) with {count} worker(s)")

    points.on_loader.append(give_workers)
    return lambda: points.on_loader.remove(give_workers)


def _can_have_workers(arguments: dict[str, Any], only: Any) -> bool:
    import torch
    from torch.utils.data import IterableDataset

    dataset = arguments["dataset"]
    if only is not None and type(dataset).__name__ != only:
        return False
    if isinstance(dataset, IterableDataset):  # every worker would yield the whole of it
        return False
    held = [*vars(dataset).values()] if hasattr(dataset, "__dict__") else []
    held += [item for value in held if isinstance(value, (list, tuple)) for item in value[:8]]
    # Other ways of starting a process run the script's own file again, which it must allow for.
    if multiprocessing.get_start_method() != "fork":
        return False
    # A forked child cannot use CUDA.
    return not any(isinstance(item, torch.Tensor) and item.is_cuda for item in held)


def edits(context: Context, options: Options) -> list[Edit]:
    """The arguments of each loader's constructor."""
    values = {
        "num_workers": str(options["num_workers"]),
        "persistent_workers": "True",
        "prefetch_factor": str(options.get("prefetch_factor", _PREFETCH)),
    }
    loaders = [
        loader
        for loader in context.profile.loaders
        if loader.site is not None and options.get("dataset") in (None, loader.dataset)
    ]
    return [
        FirstOf(
            edits=(
                SetArgument(site=loader.site, callee="DataLoader", keyword=keyword, value=value),
                # A framework has made another loader out of the script's.
                SetArgument(
                    files=(loader.site.file,), callee="DataLoader", keyword=keyword, value=value
                ),
                *trainer_setting(context, f"dataloader_{keyword}", value),
            )
        )
        for loader in loaders
        if loader.site is not None
        for keyword, value in values.items()
    ]
