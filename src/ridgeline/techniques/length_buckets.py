"""Batches of samples of like length, where each batch is padded to its longest sample.

Shuffled samples of different length waste what the longest of a batch leaves empty in all others.
Here the order that the script's own sampler draws is kept in windows of many batches; within a
window samples are sorted by length and cut into batches as before, and the window's batches come
in random order. Every epoch holds the same samples in as many batches; which of them share a
batch follows their lengths.

Whether it is the batch that decides the width is looked at, not believed: two sets of samples of
different length are collated, and must come out as wide as their own longest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records import LoaderFacts
from ridgeline.records.edits import AtStart, Edit, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="length-buckets",
    title="Batches of samples of like length",
    cures=("padding",),
    costs="Samples of like length share a batch, so a mean over a batch's tokens weighs samples "
    "otherwise; every sample is drawn once at the start to learn its length.",
    source="Khomenko et al., Accelerating recurrent neural network training using sequence "
    "bucketing, 2017; Hugging Face documentation, Trainer, group_by_length",
    equivalence="statistical",
    stage=Stage.INPUT,
    required={"dataset": str},
)

WINDOW = 50
"""Batches whose samples are sorted together: order stays random beyond it."""
_LEAST_PADDING = 0.05
_MOST_SECONDS = 30.0
"""For drawing every sample once."""
_LEAST_BATCHES = 8
_PROBED = 4
"""Samples of each of the two sets that are collated to see which decides the width."""

Batches = list[list[int]]


def applies(context: Context) -> Applicability:
    """A loader in this process pads batches, and their width changes from batch to batch."""
    profile = context.profile
    if not profile.loaders or profile.kind != "training":
        return Applicability(False, "no DataLoader was iterated to train")
    padding = _padding(context)
    if padding < _LEAST_PADDING:
        return Applicability(False, f"{padding:.0%} of the tokens are padding")
    loader = _padded(context)
    if loader.num_workers:
        return Applicability(False, "workers make the batches, ahead of the order")
    if loader.num_batches is None or loader.num_batches < _LEAST_BATCHES:
        return Applicability(False, "the data set has no length, or few batches")
    if (loader.fetch_seconds or loader.wait_seconds) * loader.num_batches > _MOST_SECONDS:
        return Applicability(False, "learning the lengths of all samples takes too long")
    if not context.shapes_vary():
        return Applicability(False, "all batches are padded to one width, whatever is in them")
    return Applicability(True, "")


def _padding(context: Context) -> float:
    profile = context.profile
    return max([profile.settings.padding_share, *(one.padding_share for one in profile.loaders)])


def _padded(context: Context) -> LoaderFacts:
    """The loader that most of the batches come from."""
    return max(context.profile.loaders, key=lambda loader: (loader.batch_bytes, loader.restarts))


def options(context: Context) -> list[Options]:
    """The data set whose samples are sorted."""
    return [{"dataset": _padded(context).dataset}]


def predict(context: Context, options: Options) -> Gain:
    """Half of the padding goes, or nearly all, in what grows with the width of a batch."""
    computing = context.phase_share("forward", "backward")
    grows = max(0.0, computing - context.profile.small_operator_share)
    padding = _padding(context)
    kept_at_best, kept_at_worst = 1 - 0.9 * padding, 1 - 0.4 * padding
    return Gain(
        amdahl(grows, 1 / kept_at_worst, 1.0).low, amdahl(computing, 1.0, 1 / kept_at_best).high
    )


def apply(points: Points, options: Options) -> Undo:
    """Let the iterators of such loaders draw their batches in another order."""
    known: dict[int, Lengths | None] = {}

    def wrap(loader: Any, iterator: Any) -> Any:
        if type(loader.dataset).__name__ != options["dataset"] or not _is_shuffled(
            loader, iterator
        ):
            return iterator
        key = id(loader.dataset)
        if key not in known:
            known[key] = lengths_of(loader)
            if known[key] is None:
                points.refuse(CARD.name, "a batch is not padded to its longest sample")
        lengths = known[key]
        if lengths is not None:
            iterator._sampler_iter = _ordered_anew(iterator._sampler_iter, lengths)
            points.changed(CARD.name, f"{len(lengths)} samples sorted in windows of {WINDOW}")
        return iterator

    points.wrap_loader.append(wrap)
    return lambda: points.wrap_loader.remove(wrap)


def _is_shuffled(loader: Any, iterator: Any) -> bool:
    """Does this process draw single samples in random order, and collate them by its own rule?"""
    from torch.utils.data import BatchSampler, RandomSampler, default_collate
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    sampler = loader.batch_sampler
    return (
        type(iterator) is _SingleProcessDataLoaderIter
        and isinstance(sampler, BatchSampler)
        and isinstance(sampler.sampler, RandomSampler)
        and loader.collate_fn is not default_collate
        and hasattr(loader.dataset, "__len__")
    )


Lengths = list[int]


def lengths_of(loader: Any) -> Lengths | None:
    """The length of every sample; None where no batch is padded to its longest one."""
    import numpy as np
    import torch

    state, python = torch.get_rng_state(), random.getstate()
    arrays = np.random.get_state()  # noqa: NPY002 - what data sets draw from
    try:
        samples = [loader.dataset[index] for index in range(len(loader.dataset))]
        lengths = [length_of(sample) for sample in samples]
        if len(lengths) < 2 * _PROBED or None in lengths:
            return None
        found = [length for length in lengths if length is not None]
        order = sorted(range(len(found)), key=found.__getitem__)
        short, long = order[:_PROBED], order[-_PROBED:]
        widths = [_width(loader.collate_fn([samples[i] for i in part])) for part in (short, long)]
        if found[short[-1]] < found[long[-1]] and widths[0] < widths[1]:
            return found
        return None
    finally:
        torch.set_rng_state(state)
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002


def length_of(sample: Any) -> int | None:
    """How long the longest of a sample's sequences is; None where it has none.

    >>> length_of({"ids": [5, 7, 9], "label": 1}), length_of(("seven", 3)), length_of(4)
    (3, 5, None)
    """
    if isinstance(sample, dict):
        return _longest(sample.values())
    shape = getattr(sample, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(sample, str):
        return len(sample)
    if isinstance(sample, (list, tuple)):
        if sample and all(isinstance(one, (int, float)) for one in sample):
            return len(sample)
        return _longest(sample)
    values = getattr(sample, "__dict__", None)
    return _longest(values.values()) if values else None


def _longest(parts: Any) -> int | None:
    found = [length for length in map(length_of, parts) if length is not None]
    return max(found, default=None)


def _width(batch: Any) -> int:
    """The largest second dimension of a batch's tensors."""
    import torch
    from torch.utils._pytree import tree_leaves

    whole = dict(batch) if hasattr(batch, "keys") else batch
    tensors = [leaf for leaf in tree_leaves(whole) if isinstance(leaf, torch.Tensor)]
    return max((int(one.shape[1]) for one in tensors if one.dim() > 1), default=0)


def _ordered_anew(batches: Iterator[list[int]], lengths: Lengths) -> Iterator[list[int]]:
    """The epoch's batches by the script's own sampler, drawn as the first of them is asked for."""
    yield from bucketed(list(batches), lengths)


def bucketed(batches: Batches, lengths: Sequence[int]) -> Batches:
    """The same samples in as many batches of the same sizes, those of like length together.

    The last batch, which may be smaller, stays the last. What is drawn follows from the order that
    is given, and disturbs no generator.

    >>> bucketed([[0, 1], [2, 3], [4]], [5, 1, 5, 1, 3])
    [[1, 3], [0, 2], [4]]
    """
    if not batches:
        return []
    *full, last = batches
    draw = random.Random(repr(batches[0]))
    made: Batches = []
    for start in range(0, len(full), WINDOW):
        window = full[start : start + WINDOW]
        order = sorted((index for batch in window for index in batch), key=lengths.__getitem__)
        cut, begin = [], 0
        for batch in window:
            cut.append(order[begin : begin + len(batch)])
            begin += len(batch)
        draw.shuffle(cut)
        made += cut
    return [*made, last]


_WRITTEN = '''
def in_length_buckets(loader, window=WINDOW):
    """The same samples in as many batches, those of like length in one."""

    def length(sample):
        if hasattr(sample, "shape"):
            return sample.shape[0] if len(sample.shape) else 0
        if isinstance(sample, str):
            return len(sample)
        if isinstance(sample, (list, tuple)):
            if sample and all(isinstance(one, (int, float)) for one in sample):
                return len(sample)
            return max(map(length, sample), default=0)
        parts = sample if isinstance(sample, dict) else getattr(sample, "__dict__", {})
        return max(map(length, parts.values()), default=0)

    class Buckets:
        def __len__(self):
            return len(loader.batch_sampler)

        def __iter__(self):
            batches = list(loader.batch_sampler)
            draw = random.Random(repr(batches[0]) if batches else 0)
            for start in range(0, len(batches) - 1, window):
                part = batches[start : min(start + window, len(batches) - 1)]
                order = sorted((index for one in part for index in one), key=lengths.__getitem__)
                cut = []
                for batch in part:
                    cut.append(order[: len(batch)])
                    order = order[len(batch) :]
                draw.shuffle(cut)
                yield from cut
            yield from batches[-1:]

    torch_state, random_state = torch.get_rng_state(), random.getstate()
    lengths = [length(loader.dataset[index]) for index in range(len(loader.dataset))]
    torch.set_rng_state(torch_state)
    random.setstate(random_state)
    return torch.utils.data.DataLoader(
        loader.dataset,
        batch_sampler=Buckets(),
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        generator=loader.generator,
    )
'''.strip().replace("WINDOW", str(WINDOW))
"""What a patch writes beside the loader; it draws what `bucketed` draws."""


def edits(context: Context, options: Options) -> list[Edit]:
    """A function that orders the batches, around the loader's construction."""
    site = _padded(context).site
    if site is None:
        return []
    return [
        AtStart(files=(site.file,), code=_WRITTEN),
        ReplaceCall(site=site, callee="DataLoader", code="in_length_buckets({func}({args}))"),
    ]
