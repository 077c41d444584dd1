"""Samples that are kept: the same batches to the bit, and none that change."""

from __future__ import annotations

import multiprocessing
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.techniques.profiles import context
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from ridgeline.measure.child.points import Points
from ridgeline.techniques import technique

TECHNIQUE = technique("samples-in-memory")
OWN = np.random.default_rng(0)


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


class Made(Dataset):
    """Samples made by a function of their number."""

    def __init__(self, count: int, make: Any) -> None:
        self.count, self.make, self.calls = count, make, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.make(index)


def picture(index: int) -> torch.Tensor:
    return torch.sin(torch.arange(12.0) * (index + 1)).reshape(3, 4)


KINDS = {
    "a tensor": picture,
    "a picture and its class": lambda i: (picture(i), i % 10),
    "a dictionary": lambda i: {"x": picture(i), "weight": i / 7, "ids": torch.arange(3) + i},
    "nested": lambda i: ({"x": picture(i)}, [i, float(i)]),
    "a named tuple": lambda i: Pair(picture(i), i),
    "arrays": lambda i: (np.full((2, 2), i, np.float32), np.int64(i)),
    "truth": lambda i: (picture(i), i % 2 == 0),
}


def epochs(dataset: Dataset, passes: int = 2, *, kept: bool, **settings: Any) -> list[Any]:
    """Every batch of some epochs, with the technique applied or not."""
    points, batches = Points(), []
    undo = TECHNIQUE.apply(points, {"dataset": type(dataset).__name__}) if kept else None
    torch.manual_seed(3)
    loader = DataLoader(dataset, **settings)
    for _ in range(passes):
        for prepare in points.before_loader:
            prepare(loader)
        iterator = iter(loader)
        for wrap in points.wrap_loader:
            iterator = wrap(loader, iterator)
        batches += list(iterator)
    if undo is not None:
        undo()
        assert points.wrap_loader == points.before_loader == []
        assert loader.num_workers == settings.get("num_workers", 0)
        batches.append(dict(points.effects))
    return batches


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 40), batch_size=st.integers(1, 9), shuffle=st.booleans(),
    drop_last=st.booleans(),
)  # fmt: skip
def test_batches_are_the_same_to_the_bit(kind, count, batch_size, shuffle, drop_last):
    how = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    plain = epochs(Made(count, KINDS[kind]), kept=False, **how)
    *kept, effects = epochs(Made(count, KINDS[kind]), kept=True, **how)
    assert len(kept) == len(plain)
    assert all(map(same, kept, plain))
    assert f"{count} samples kept" in effects["samples-in-memory"]


def test_whole_tensors_are_taken_as_they_are():
    dataset = TensorDataset(torch.randn(100, 5), torch.arange(100))
    plain = epochs(dataset, kept=False, batch_size=7, shuffle=True)
    *kept, effects = epochs(dataset, kept=True, batch_size=7, shuffle=True)
    assert all(map(same, kept, plain))
    assert effects


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_that_make_such_batches_are_not_started(persistent, monkeypatch):
    started = []
    start = multiprocessing.Process.start
    monkeypatch.setattr(
        multiprocessing.Process, "start", lambda self: started.append(self) or start(self)
    )
    how = {"batch_size": 7, "shuffle": True, "num_workers": 2, "persistent_workers": persistent}
    dataset = Made(60, KINDS["a picture and its class"])
    *kept, effects = epochs(dataset, kept=True, **how)
    assert not started
    assert effects
    plain = epochs(dataset, kept=False, **how)
    assert started
    assert all(map(same, kept, plain))


def test_workers_that_compute_on_the_cores_of_the_step_are_worth_doing_without():
    made = {"num_workers": 8, "fetch_seconds": 0.05, "wait_seconds": 0.0}
    beside = context(loader={**made, "fetch_cpu_seconds": 0.1}, phases={"data": 0.0})
    assert TECHNIQUE.applies(beside).ok
    assert TECHNIQUE.predict(beside, {}).high > 1.5
    gpu = {"model": {"device": "cuda:0"}}
    idle = [
        context(loader={**made, "fetch_cpu_seconds": 1e-4}, phases={"data": 0.0}),
        context(loader={**made, "fetch_cpu_seconds": 0.1}, phases={"data": 0.0}, **gpu),
    ]
    assert ["of a step" in TECHNIQUE.applies(one).reason for one in idle] == [True, True]


@pytest.mark.parametrize("changes", ["samples draw random numbers", "the workers are prepared"])
def test_workers_stay_where_they_may_be_needed(changes):
    drawn = {"samples draw random numbers": lambda i: torch.rand(3)}
    prepared = {"the workers are prepared": {"worker_init_fn": print}}
    dataset = Made(20, drawn.get(changes, picture))
    how = {"batch_size": 5, "num_workers": 1, **prepared.get(changes, {})}
    *_, effects = epochs(dataset, 1, kept=True, **how)
    assert not effects


def test_a_part_of_a_data_set_is_kept_too():
    part = Subset(Made(50, KINDS["a picture and its class"]), range(10, 40))
    plain = epochs(part, kept=False, batch_size=4, shuffle=True)
    *kept, effects = epochs(part, kept=True, batch_size=4, shuffle=True)
    assert all(map(same, kept, plain))
    assert effects


def test_a_batch_belongs_to_the_script():
    dataset = Made(8, picture)
    points = Points()
    TECHNIQUE.apply(points, {"dataset": "Made"})
    loader = DataLoader(dataset, batch_size=8)
    for _ in range(2):
        (batch,) = points.wrap_loader[0](loader, iter(loader))
        assert torch.equal(batch[3], picture(3))
        batch.zero_()


def test_samples_are_made_once_but_for_those_that_are_looked_at():
    dataset = Made(1000, picture)
    epochs(dataset, 10, kept=True, batch_size=50)
    assert dataset.calls < 1100


CHANGING = {
    "torch": lambda i: picture(i) + torch.rand(3, 4),
    "numpy": lambda i: np.random.rand(3) + i,  # noqa: NPY002
    "python": lambda i: (picture(i), random.random()),
    "of its own": lambda i: OWN.random(3),
    "drawn and dropped": lambda i: (torch.rand(1), picture(i))[1],
}
OTHERWISE = {
    "words": lambda i: (picture(i), f"name {i}"),
    "other lengths": lambda i: torch.zeros(i + 1),
    "other types": lambda i: torch.zeros(2, dtype=torch.int64 if i > 1500 else torch.float32),
    "whole and broken numbers": lambda i: 2 if i > 1500 else 2.5,
    "nothing": lambda i: (),
}


@pytest.mark.parametrize("kind", [*CHANGING, *OTHERWISE])
def test_samples_that_change_or_cannot_be_stacked_are_left_alone(kind):
    make = (CHANGING | OTHERWISE)[kind]
    batch_size = 1 if kind in OTHERWISE else 4
    count = 2000 if kind in ("other types", "whole and broken numbers") else 20
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    *kept, effects = epochs(Made(count, make), 1, kept=True, batch_size=batch_size)
    assert not effects
    if kind in CHANGING and kind != "of its own":
        after = random.random(), np.random.rand()  # noqa: NPY002
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        plain = epochs(Made(count, make), 1, kept=False, batch_size=batch_size)
        assert all(map(same, kept, plain)), "looking draws nothing that is not put back"
        assert after == (random.random(), np.random.rand())  # noqa: NPY002


def test_a_data_set_that_changes_between_epochs_is_let_go():
    dataset = Made(10, picture)
    points = Points()
    TECHNIQUE.apply(points, {"dataset": "Made"})
    loader = DataLoader(dataset, batch_size=10)
    for factor in (1, 1, 5, 7):
        dataset.make = lambda i, factor=factor: factor * picture(i)
        (batch,) = points.wrap_loader[0](loader, iter(loader))
        assert torch.equal(batch[4], factor * picture(4))
