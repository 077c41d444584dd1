"""What the agent remembers of the script's models, optimizers and loaders while it runs."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import nn

from ridgeline.measure.child.anatomy import is_in_training, is_unfinished, weights
from ridgeline.measure.child.fetch_times import FetchTimes
from ridgeline.measure.child.guard import attempt, guarded
from ridgeline.measure.child.main_model import MainModel
from ridgeline.measure.child.sites import user_site
from ridgeline.records import LoaderFacts, Site
from ridgeline.records.script_facts import Habit, HabitName


@dataclass(slots=True)
class ModelWatch:
    """What is remembered of one outermost module."""

    module: weakref.ref[nn.Module]
    num_parameters: int
    calls: int = 0
    prepared: bool = False
    site: Site | None = None
    site_in_training: bool = False
    recomputed: bool = False
    """A part of its forward ran again inside backward."""
    float_outputs: list[bool] | None = None
    """Which outputs are floats, as in `ModelFacts`; None before its first forward."""
    unfinished: bool = False
    """A lazy part has no parameters yet: to be counted again at the next call."""
    is_meta: bool = False
    """Its parameters have shapes and no values."""
    device: torch.device | None = None
    """Where they were when they were counted."""

    def called_from(self, here: Callable[[], Site | None], *, training: bool) -> None:
        """Remember where it was first called, and rather where it was called to train."""
        if self.site is None or (training and not self.site_in_training):
            self.site = here()
            self.site_in_training = training

    def device_of(self, weight: torch.Tensor) -> torch.device:
        """Where it computes with `weight`, which between functional calls may stay on meta."""
        return self.device if weight.is_meta and self.device is not None else weight.device


@dataclass(slots=True)
class OptimizerWatch:
    """What is remembered of one optimizer."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    site: Site | None
    step_site: Site | None = None
    steps: int = 0
    since_anchor: int = 0
    made: float = field(default_factory=perf_counter)
    """When it was constructed, and when it last stepped, on `perf_counter`'s clock."""
    stepped: float = 0.0
    prepared: bool = False
    zeroed_in_place: int = 0


def _whole(asked: Callable[[], Any]) -> int | None:
    try:
        value = asked()
    except Exception:  # the script's own answer to a question that the script never asked
        return None
    return value if isinstance(value, int) else None


def _untimed(loader: Any, site: Site | None) -> LoaderFacts:
    return LoaderFacts(
        batch_size=_whole(lambda: loader.batch_size),
        num_workers=loader.num_workers,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        prefetch_factor=_whole(lambda: loader.prefetch_factor),
        dataset=type(loader.dataset).__name__,
        num_batches=_whole(lambda: len(loader)),
        batch_bytes=0,
        site=site,
        fetch_seconds=None,
        wait_seconds=0.0,
        restarts=0,
        start_seconds=0.0,
    )


@dataclass(slots=True)
class LoaderWatch:
    """What is remembered of one DataLoader, or of those that one line makes one after another."""

    loader: weakref.ref[Any]
    site: Site | None
    facts: LoaderFacts | None = None
    """What it was when it was last iterated, without times; it may be gone before its iterator."""
    waits: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    restarts: int = 0
    fresh: bool = False
    """No batch yet since the iterator was made."""
    batch_bytes: int = 0
    fetches: FetchTimes = field(default_factory=lambda: FetchTimes(0))
    dataset: int = 0
    """Identity of the dataset, by which workers find the loader."""
    construction_seconds: float = 0.0
    """How long the iterator took to make whose first batch is still to come."""

    def waited(self, seconds: float) -> None:
        """A batch came after `seconds`."""
        if self.fresh:
            self.starts.append(seconds + self.construction_seconds)
        else:
            self.waits.append(seconds)
        self.fresh = False


@dataclass(slots=True)
class Switches:
    """What was seen of the script's own settings, and figures that are no habit."""

    forwards: int = 0
    backwards: int = 0
    backward_site: Site | None = None
    gradient_scaler: bool = False
    gc_seconds: float = 0.0
    autocast_dtype: str | None = None
    gradients_enabled: bool = False
    """During the last forward that was no evaluation."""
    profiler_on: bool = False
    torchscript_site: Site | None = None


@dataclass(slots=True)
class Tally:
    """One habit while the steps run; `facts.py` divides by their number."""

    calls: int = 0
    seconds: float = 0.0
    site: Site | None = None


class Watched:
    """All watches of one process."""

    def __init__(self) -> None:
        self.models: dict[int, ModelWatch] = {}
        self.optimizers: dict[int, OptimizerWatch] = {}
        self.loaders: dict[int, LoaderWatch] = {}
        self.switches = Switches()
        self.habits: dict[HabitName, Tally] = {}
        """Habits counted since the last `restart`."""
        self.looked: dict[HabitName, Habit] = {}
        """Habits per step that only the instruments can see; kept from their last window."""
        self.padding: list[float] = []
        self.operator_names: set[str] = set()
        """Operators that the dispatch mode saw, as the profiler names them."""
        self.prints: dict[Site, list[float]] = {}
        """Place → tensors turned into text there, and seconds."""
        self.look_closer = False
        """Instruments are on: reading input values is allowed."""
        self.weigh_inputs = False
        """Memory is looked at: what the main model is given counts."""
        self.input_bytes = 0
        """Tensors that the main model was last given, a cache of keys among them."""
        self.anchor: OptimizerWatch | None = None
        """The optimizer whose steps end a step."""
        self.anchored = False
        """It is settled."""
        self.chosen_optimizer: int | None = None
        """The place of the anchor in an earlier run of the script."""
        self.main = MainModel()
        self._iterators: dict[int, tuple[weakref.ref[Any], LoaderWatch]] = {}
        self._gc_started = 0.0
        self._gc_counts = True
        gc.callbacks.append(self._on_gc)

    @property
    def optimizers_made(self) -> bool:
        """Has the script constructed an optimizer?"""
        return bool(self.optimizers)

    @property
    def place_of_anchor(self) -> int | None:
        """Which optimizer ends steps, in the order in which they were made."""
        made = enumerate(self.optimizers.values())
        return next((place for place, watch in made if watch is self.anchor), None)

    def model(self, module: nn.Module) -> ModelWatch | None:
        """The watch of an outermost module; None when it has, and will have, no weights."""
        watch = self.models.get(id(module))
        if watch is None or watch.module() is not module:
            watch = ModelWatch(module=weakref.ref(module), num_parameters=0, unfinished=True)
            self.models[id(module)] = watch
        if watch.unfinished:
            attempt(self._count, module, watch, otherwise=None)
        return watch if watch.num_parameters or watch.unfinished else None

    def _count(self, module: nn.Module, watch: ModelWatch) -> None:
        watch.unfinished = False  # what fails here is not tried at every call
        found = weights(module)
        watch.num_parameters = sum(parameter.numel() for parameter in found)
        watch.is_meta = bool(found) and found[0].is_meta
        watch.device = found[0].device if found else None
        watch.unfinished = is_unfinished(module)
        if watch.is_meta:
            return
        self.main.counted(module, watch.num_parameters, list(self.models).index(id(module)))

    def place_of_main(self, *, is_known: bool) -> int | None:
        """Which of the modules that were called is the model, in the order of their first calls.

        Where no step has shown it: the largest, and of equal ones that which was called most, for a
        script may warm up what it wraps.
        """
        watches = list(self.models.values())
        if is_known:
            return next((i for i, one in enumerate(watches) if self.main.is_it(one.module())), None)
        sizes = [(watch.num_parameters, watch.calls) for watch in watches]
        return sizes.index(max(sizes)) if sizes else None

    def forward_begins(self, module: nn.Module, *, evaluating: bool) -> None:
        """Note under which switches an outermost module is called."""
        if evaluating:
            self.count("evaluation")
            if is_in_training(module):
                self.count("no_grad_in_training", located=False)
            return
        self.switches.gradients_enabled = torch.is_grad_enabled()
        if self.switches.autocast_dtype is None:
            self.switches.autocast_dtype = _autocast_dtype()

    def optimizer_made(self, optimizer: torch.optim.Optimizer, site: Site | None) -> None:
        """Remember where an optimizer was constructed."""
        self.optimizers[id(optimizer)] = OptimizerWatch(optimizer=weakref.ref(optimizer), site=site)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> OptimizerWatch:
        """The watch of an optimizer that steps."""
        watch = self.optimizers.get(id(optimizer))
        if watch is None or watch.optimizer() is not optimizer:
            self.optimizer_made(optimizer, None)
            watch = self.optimizers[id(optimizer)]
        return watch

    def loader_made(self, loader: Any, site: Site | None) -> None:
        """Remember where a DataLoader was constructed.

        A line that makes one for each epoch (`for x in DataLoader(…)`) goes on with the watch of
        the one before, which is gone.
        """
        gone = [
            key
            for key, one in self.loaders.items()
            if site is not None and one.site == site and one.loader() is None
        ]
        watch = self.loaders.pop(gone[0]) if gone else None
        if watch is None:
            watch = LoaderWatch(
                loader=weakref.ref(loader), site=site, fetches=FetchTimes(loader.num_workers)
            )
        watch.loader = weakref.ref(loader)
        watch.dataset = id(loader.dataset)
        self.loaders[id(loader)] = watch

    @guarded()
    def fetch_times(self, dataset: Any) -> FetchTimes | None:
        """Where to add the time of a batch that is made of this dataset."""
        for watch in self.loaders.values():
            if watch.dataset == id(dataset):
                return watch.fetches
        return None

    def loader_started(self, loader: Any, iterator: Any, seconds: float) -> None:
        """A new iterator over `loader`, or the persistent one reset, took `seconds` to make."""
        watch = self.loaders.get(id(loader))
        if watch is None:
            return
        watch.facts = attempt(_untimed, loader, watch.site, otherwise=None)
        watch.restarts += 1
        watch.construction_seconds = seconds
        watch.fresh = True
        self._iterators[id(iterator)] = (weakref.ref(iterator), watch)

    def loader_of(self, iterator: Any) -> LoaderWatch | None:
        """The watch of the loader behind an iterator."""
        known = self._iterators.get(id(iterator))
        if known is None or known[0]() is not iterator:
            return None
        return known[1]

    @guarded()
    def printed(self, site: Site | None, seconds: float) -> None:
        """A tensor was turned into text."""
        if site is not None:
            row = self.prints.setdefault(site, [0, 0.0])
            row[0] += 1
            row[1] += seconds

    @guarded()
    def count(
        self, name: HabitName, seconds: float = 0.0, *, calls: int = 1, located: bool = True
    ) -> None:
        """The script did it once more, on the line that runs."""
        tally = self.habits.setdefault(name, Tally())
        tally.calls += calls
        tally.seconds += seconds
        if located:
            tally.site = user_site()

    def restart(self) -> None:
        """Start counting anew (warm-up is over)."""
        old = self.switches
        self.switches = Switches(
            backward_site=old.backward_site,
            gradient_scaler=old.gradient_scaler,
            autocast_dtype=old.autocast_dtype,
            profiler_on=old.profiler_on,
            torchscript_site=old.torchscript_site,
        )
        for optimizer in self.optimizers.values():
            optimizer.steps = optimizer.zeroed_in_place = 0
        for loader in self.loaders.values():
            loader.waits.clear()
            loader.starts.clear()
            loader.fetches.clear()
            loader.restarts = 0
        for model in self.models.values():
            model.calls = 0
            model.recomputed = False
        self.prints.clear()
        self.habits.clear()

    @contextlib.contextmanager
    def uncounted_collections(self) -> Iterator[None]:
        """Collections in the block are not the script's doing."""
        self._gc_counts = False
        try:
            yield
        finally:
            self._gc_counts = True

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_started = perf_counter()
        elif self._gc_counts:
            self.switches.gc_seconds += perf_counter() - self._gc_started


def _autocast_dtype() -> str | None:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return None
