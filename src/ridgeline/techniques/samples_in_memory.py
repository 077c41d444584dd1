"""Samples that are the same each time, made once and kept; a batch is rows of whole tensors.

A data set that decodes, scales or slices one sample at a time does so again in every epoch, and
the loader stacks a batch of them anew. Where samples do not change, all of them are collated
once when the loader is first iterated; after that a batch is one indexing of each column, with
the same bits. What `tf.data.Dataset.cache` and MONAI's `CacheDataset` do for a known data set
is done here for any map-style one with torch's own collation.

Workers that make such batches are not started: what takes them milliseconds on the cores that
the step computes with is one indexing here.

Whether samples change is looked at, not believed: some are drawn twice and must come out equal
without having drawn a random number, and some are drawn again in every epoch.
"""

from __future__ import annotations

import pickle
import random
import weakref
from collections.abc import Callable
from typing import Any

from ridgeline import quantity
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records import LoaderFacts
from ridgeline.records.edits import AtStart, Edit, ReplaceCall, SetArgument
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="samples-in-memory",
    title="Samples made once and kept in memory",
    cures=("input-starved",),
    costs="Memory for every sample, and a start that makes them all once; not for data sets "
    "that change while they train.",
    source="PyTorch documentation, torch.utils.data; TensorFlow documentation, "
    "tf.data.Dataset.cache",
    equivalence="bit-equal",
    stage=Stage.INPUT,
    moves_work=True,
    slot="samples",
    required={"dataset": str},
)

_MOST_BYTES = 4 * 2**30
_MOST_SECONDS = 60.0
"""For making every sample once."""
_LOOKED_AT = 8
"""Samples that are drawn twice before any is kept."""
_CHUNK = 1024
_NO_WORKERS = {"num_workers": "0", "persistent_workers": "False", "prefetch_factor": "None"}
"""Arguments of a loader without workers, which refuses the values of one that has some."""
_WRITTEN = '''class SamplesInMemory(torch.utils.data.Dataset):
    """Samples that are the same each time, made once; a batch is rows of them."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.keep()

    def keep(self):
        every = [self.dataset[index] for index in range(len(self.dataset))]
        self.columns = torch.utils.data.default_collate(every)
        self.made_of = self.attributes()

    def attributes(self):
        return [id(value) for value in vars(self.dataset).values()]

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]

    def __getitems__(self, indices):
        if self.made_of != self.attributes():  # drawn anew for an epoch, say
            self.keep()
        return self.rows(self.columns, indices)

    def __getattr__(self, name):
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def rows(self, columns, indices):
        if isinstance(columns, dict):
            return {name: self.rows(column, indices) for name, column in columns.items()}
        if isinstance(columns, (list, tuple)):
            return [self.rows(column, indices) for column in columns]
        return columns[indices]


def whole_batch(batch):
    return batch'''


def applies(context: Context) -> Applicability:
    """Batches are waited for, or made on the step's cores, of a data set that fits in memory."""
    if not context.profile.loaders:
        return Applicability(False, "no DataLoader was iterated")
    loader = _starved(context)
    waiting, made = context.phase_share("data"), _made_beside(context, loader)
    if waiting + made < 0.02:
        beside = f", and workers take {made:.1%} of its cores" if loader.num_workers else ""
        return Applicability(False, f"the loop waits for data {waiting:.1%} of a step{beside}")
    if loader.num_batches is None:
        return Applicability(False, "the data set has no length")
    size = loader.batch_bytes * loader.num_batches
    if size > _MOST_BYTES:
        return Applicability(False, f"all samples take {quantity.binary_memory(size)}")
    seconds = (loader.fetch_seconds or loader.wait_seconds) * loader.num_batches
    if seconds > _MOST_SECONDS:
        return Applicability(False, f"all samples take {quantity.seconds(seconds)} to make")
    return Applicability(True, "")


def _made_beside(context: Context, loader: LoaderFacts) -> float:
    """Share of the step that workers take from it: they compute on the cores that it uses."""
    step, cores = context.profile.step_seconds.mean, context.profile.settings.cpu_count
    if not loader.num_workers or context.device != "cpu" or not step:
        return 0.0
    rest = 1.0 - context.phase_share("data")
    return min(rest, (loader.fetch_cpu_seconds or 0.0) / (step * max(cores, 1)))


def _starved(context: Context) -> LoaderFacts:
    return max(context.profile.loaders, key=lambda loader: loader.wait_seconds)


def options(context: Context) -> list[Options]:
    """The data set that is waited for."""
    return [{"dataset": _starved(context).dataset}]


def predict(context: Context, options: Options) -> Gain:
    """The wait becomes one indexing per tensor of the batch, and workers leave the cores."""
    waiting = context.phase_share("data")
    everything = waiting + _made_beside(context, _starved(context))
    return Gain(amdahl(waiting, 2.0, 50.0).low, amdahl(everything, 2.0, 50.0).high)


def apply(points: Points, options: Options) -> Undo:
    """Let the iterators of such loaders take rows of what was kept."""
    kept: dict[int, SampleColumns | None] = {}
    workers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    """Loaders that go without → how many they had."""
    numbers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    """Loaders whose workers would live on → the random numbers' state at the next epoch: only
    an iterator that is made anew draws the seed of its workers."""

    def columns_for(loader: Any) -> SampleColumns | None:
        dataset = loader.dataset
        if type(dataset).__name__ != options["dataset"] or not _is_plain(loader):
            return None
        if id(dataset) not in kept:
            weakref.finalize(dataset, kept.pop, id(dataset), None)
            kept[id(dataset)] = columns_of(dataset)
        return kept[id(dataset)]

    def without_workers(loader: Any) -> None:
        if loader in workers and loader.persistent_workers:
            numbers[loader] = _generator(loader).get_state()
        if loader.num_workers and _can_do_without(loader) and columns_for(loader) is not None:
            workers[loader], loader.num_workers = loader.num_workers, 0
        elif loader in workers and columns_for(loader) is None:
            loader.num_workers = workers.pop(loader)

    def wrap(loader: Any, iterator: Any) -> Any:
        if loader in numbers:
            _generator(loader).set_state(numbers.pop(loader))
        columns, dataset = columns_for(loader), loader.dataset
        if columns is None or not _is_made_here(iterator):
            return iterator
        if not columns.still_hold(dataset):
            kept[id(dataset)] = None
            return iterator
        fetcher = iterator._dataset_fetcher
        fetcher.fetch = _rows_or(columns, fetcher.fetch)
        points.changed(
            CARD.name, f"{len(columns)} samples kept, {quantity.memory(columns.num_bytes)}"
        )
        return iterator

    points.before_loader.append(without_workers)
    points.wrap_loader.append(wrap)

    def undo() -> None:
        points.before_loader.remove(without_workers)
        points.wrap_loader.remove(wrap)
        for loader, count in workers.items():
            loader.num_workers = count

    return undo


def _generator(loader: Any) -> Any:
    """What the loader draws its seeds from."""
    import torch

    return torch.default_generator if loader.generator is None else loader.generator


def _is_made_here(iterator: Any) -> bool:
    """Does this process itself make the batches?"""
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    return type(iterator) is _SingleProcessDataLoaderIter


def _can_do_without(loader: Any) -> bool:
    """Do workers nothing but make samples? What prepares them may be what makes samples work."""
    return loader.worker_init_fn is None and not loader.timeout


def _is_plain(loader: Any) -> bool:
    """Are the batches stacked by torch, of samples with a number?"""
    from torch.utils.data import IterableDataset, default_collate

    return (
        loader.batch_sampler is not None
        and loader.collate_fn is default_collate
        and not isinstance(loader.dataset, IterableDataset)
        and hasattr(loader.dataset, "__len__")
    )


def _rows_or(columns: SampleColumns, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def fetch(indices: Any) -> Any:
        if all(type(index) is int for index in indices):
            return columns.rows(indices)
        return original(indices)

    return fetch


class SampleColumns:
    """All samples of a data set as torch's own collation stacks them."""

    def __init__(self, leaves: list[Any], structure: Any) -> None:
        self._leaves = leaves
        self._structure = structure
        self._epochs = 0

    def __len__(self) -> int:
        return len(self._leaves[0])

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(leaf.numel() * leaf.element_size() for leaf in self._leaves)

    def rows(self, indices: list[int]) -> Any:
        """The batch of these samples, in this order; tensors of its own."""
        import torch
        from torch.utils._pytree import tree_unflatten

        index = torch.tensor(indices)
        return tree_unflatten([leaf[index] for leaf in self._leaves], self._structure)

    def still_hold(self, dataset: Any) -> bool:
        """Are a few samples, others in every epoch, what they were?"""
        self._epochs += 1
        if len(dataset) != len(self):
            return False
        if self._epochs == 1:
            return True
        some = [(self._epochs * step) % len(self) for step in (7919, 104_729)]
        return _undisturbed(lambda: _same(_collated(dataset, some), self.rows(some)))


def columns_of(dataset: Any) -> SampleColumns | None:
    """Every sample, made now; None where they change, differ in shape or do not fit."""
    import torch
    from torch.utils._pytree import tree_flatten
    from torch.utils.data import TensorDataset

    if type(dataset) is TensorDataset:
        return SampleColumns(*tree_flatten(list(dataset.tensors))) if len(dataset) else None
    count = len(dataset)
    some = [step * count // _LOOKED_AT for step in range(_LOOKED_AT)] if count else []
    if not some or not _undisturbed(lambda: _are_steady(dataset, some)):
        return None
    columns: list[Any] = []
    structure: Any = None
    for start in range(0, count, _CHUNK):
        batch = _collated(dataset, range(start, min(start + _CHUNK, count)))
        leaves, shape = tree_flatten(batch) if batch is not None else ([], None)
        if not columns:
            structure = shape
            columns = [torch.empty(count, *leaf.shape[1:], dtype=leaf.dtype) for leaf in leaves]
            if SampleColumns(columns, shape).num_bytes > _MOST_BYTES or not columns:
                return None
        if shape != structure or not _fit(columns, leaves):
            return None
        for column, leaf in zip(columns, leaves, strict=True):
            column[start : start + len(leaf)] = leaf
    return SampleColumns(columns, structure)


def _fit(columns: list[Any], leaves: list[Any]) -> bool:
    pairs = zip(columns, leaves, strict=True)
    return all(
        column.dtype == leaf.dtype and column.shape[1:] == leaf.shape[1:] for column, leaf in pairs
    )


def _are_steady(dataset: Any, some: list[int]) -> bool:
    """Do these samples come out twice the same?"""
    once = _collated(dataset, some)
    return once is not None and _same(once, _collated(dataset, some))


def _collated(dataset: Any, indices: Any) -> Any:
    """A batch of nothing but tensors on the host; None where it is another."""
    import torch
    from torch.utils._pytree import tree_leaves
    from torch.utils.data import default_collate

    samples = [dataset[index] for index in indices]
    if len({_kind(sample) for sample in samples}) != 1:  # their type would depend on the batch
        return None
    try:
        batch = default_collate(samples)
    except (TypeError, RuntimeError, ValueError):  # samples that torch cannot stack
        return None
    leaves = tree_leaves(batch)
    plain = all(type(leaf) is torch.Tensor and leaf.device.type == "cpu" for leaf in leaves)
    return batch if leaves and plain else None


def _kind(sample: Any) -> tuple[Any, ...]:
    """The types of what a sample holds, in order."""
    from torch.utils._pytree import tree_leaves

    return tuple((type(leaf), getattr(leaf, "dtype", None)) for leaf in tree_leaves(sample))


def _same(a: Any, b: Any) -> bool:
    import torch
    from torch.utils._pytree import tree_flatten

    (left, structure), (right, other) = tree_flatten(a), tree_flatten(b)
    return bool(structure == other and all(map(torch.equal, left, right)))


def _undisturbed(judge: Callable[[], bool]) -> bool:
    """What `judge` says, and False where it drew random numbers, which are as before then."""
    import numpy as np
    import torch

    def pickled_state() -> bytes:
        return pickle.dumps(np.random.get_state())  # noqa: NPY002 - what data sets draw from

    python, arrays, tensors = random.getstate(), pickled_state(), torch.get_rng_state()
    steady = judge()
    if (
        random.getstate() == python
        and pickled_state() == arrays
        and torch.equal(torch.get_rng_state(), tensors)
    ):
        return steady
    random.setstate(python)
    np.random.set_state(pickle.loads(arrays))  # noqa: NPY002, S301 - our own, of a moment ago
    torch.set_rng_state(tensors)
    return False


def edits(context: Context, options: Options) -> list[Edit]:
    """A data set around the script's, and a loader that takes its batches as they are."""
    loaders = [
        loader
        for loader in context.profile.loaders
        if loader.dataset == options["dataset"] and loader.site is not None
    ]
    if not loaders:
        return []
    written: list[Edit] = []
    for loader in loaders:
        site = loader.site
        assert site is not None, "only such were taken"
        if not written:
            written.append(AtStart(files=(site.file,), code=_WRITTEN))
        code = "{func}(SamplesInMemory({0}), {rest})"
        written.append(ReplaceCall(site=site, callee="DataLoader", code=code))
        values = {"collate_fn": "whole_batch"} | (_NO_WORKERS if loader.num_workers else {})
        written += [
            SetArgument(site=site, callee="DataLoader", keyword=keyword, value=value)
            for keyword, value in values.items()
        ]
    return written
