"""Tasks as a placement sees them: what each asks of one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WHOLE = 1000
"""Thousandths of a GPU, as Alibaba's traces count."""


@dataclass(frozen=True, slots=True, order=True)
class TaskKind:
    """What a task asks for; many tasks ask for the same."""

    cpu_milli: int
    gpu_milli: int
    """What it asks of each GPU, in thousandths: 1000 is a GPU of one's own; 0: no GPU."""
    num_gpus: int
    memory_bytes: int
    models: tuple[str, ...] = ()
    """GPU models that will do; none: all."""

    @property
    def total_milli(self) -> int:
        """Thousandths of GPUs in all."""
        return self.gpu_milli * self.num_gpus

    @property
    def shares(self) -> bool:
        """Whether it takes a part of one GPU."""
        return self.num_gpus == 1 and self.gpu_milli < WHOLE


@dataclass(frozen=True, slots=True)
class PlacedTasks:
    """Tasks in order of arrival, by kind."""

    kinds: tuple[TaskKind, ...]
    kind_of: NDArray[np.int64]
    """Place in `kinds`, per task."""

    def __len__(self) -> int:
        return len(self.kind_of)

    @property
    def milli(self) -> NDArray[np.int64]:
        """Thousandths of GPUs that each task asks for."""
        return np.array([kind.total_milli for kind in self.kinds])[self.kind_of]


def tasks_of(asked: Sequence[TaskKind]) -> PlacedTasks:
    """Tasks in the order given."""
    kinds = tuple(sorted(set(asked)))
    places = {kind: place for place, kind in enumerate(kinds)}
    return PlacedTasks(kinds, np.array([places[kind] for kind in asked], dtype=np.int64))


def arriving(tasks: PlacedTasks, gpus: int, multiple: float, seed: int) -> PlacedTasks:
    """All tasks and others drawn from them, shuffled, until they ask for `multiple` × `gpus`.

    As the FGD paper inflates its workload (Weng et al., ATC 2023, section 6.1); where the tasks
    already ask for more, some are left out.
    """
    random = np.random.default_rng(seed)
    target = multiple * gpus * WHOLE
    asked = tasks.milli
    if asked.sum() >= target:
        order = random.permutation(len(tasks))
        kept = order[np.cumsum(asked[order]) <= target]
        return PlacedTasks(tasks.kinds, tasks.kind_of[kept])
    lacking = target - asked.sum()
    drawn = np.empty(0, dtype=np.int64)
    while asked[drawn].sum() <= lacking:
        drawn = np.concatenate([drawn, random.integers(0, len(tasks), len(tasks))])
    drawn = drawn[np.cumsum(asked[drawn]) <= lacking]
    every = np.concatenate([tasks.kind_of, tasks.kind_of[drawn]])
    return PlacedTasks(tasks.kinds, random.permutation(every))
