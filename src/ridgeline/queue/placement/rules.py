"""Rules of placement by name: a card, and what scores the nodes that hold a task.

The largest score wins, and of equal ones the first in an order that the seed draws. A rule is a
function `scores`, a row of `RULES`; one that looks at typical tasks, or chooses the GPU itself, is
a class instead (`FragmentationGradient`).

kube-scheduler scores by NodeResourcesFit and NodeResourcesBalancedAllocation: documentation,
"Scheduler Configuration" and "Resource Bin Packing"; plugins
noderesources/least_allocated, most_allocated and balanced_allocation of release 1.36. All scores
are whole numbers from 0 to 100. The other default plugins give all nodes of such a cluster one
score. That balance is scored by how much the task changes it, each of the two cut to a whole
percent, was read off 3,887 placements of the real scheduler 1.36.2 with the default profile: it
took a node with the best score so computed in 94 % of them, against 66 % where balance itself is
scored, as in older releases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.nodes import WHOLE, NodeState, TaskKind

Places = NDArray[np.int64]
"""Numbers of nodes [M]."""
Scores = NDArray[np.int64]
"""One for each place."""
ScoreFunction = Callable[[NodeState, Places, TaskKind], Scores]
GpuChoice = Literal["fullest", "random", "own"]
LARGEST_CPU_MILLI, LARGEST_GPU_MILLI = 128_000, 8_000
"""What a weight of one stands for, as in the simulator of the authors of Weng et al., ATC 2023."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCard:
    """What a rule is, and what it leaves to chance."""

    title: str
    gpu: GpuChoice = "fullest"
    """On which GPU of the node a task that shares is put."""
    node: Literal["first", "kube", "any"] = "first"
    """Which of the nodes with the best score is taken: the first in an order that the seed draws,
    or the one that kube-scheduler takes of those that it looks at; `any`: without regard to scores.
    """
    source: str = ""


class PlacementRule(Protocol):
    """A score for nodes. It may only depend on what is left of each node by itself."""

    def __init__(self, typical: TypicalTasks) -> None: ...

    def scores(self, nodes: NodeState, places: Places, kind: TaskKind) -> Scores:
        """Scores of nodes that hold a task, larger is better."""

    def gpu_for(self, nodes: NodeState, node: int, kind: TaskKind) -> int:
        """The GPU for a task that shares, where the card says `own`."""


def rule_names() -> list[str]:
    """The names of all rules.

    >>> "fgd" in rule_names()
    True
    """
    return sorted(RULES)


def find_rule(name: str) -> tuple[RuleCard, Any]:
    """The card of a rule, and what makes one of typical tasks.

    Raises:
        InputError: There is none of that name; the known ones are listed.
    """
    if name not in RULES:
        raise InputError(f"--policy {name}: known are {', '.join(rule_names())}")
    card, rule = RULES[name]
    return card, rule if isinstance(rule, type) else partial(_ScoresAlone, rule)


class _ScoresAlone:
    """A rule that is a function, and leaves the GPU to the common choice."""

    def __init__(self, scores: ScoreFunction, typical: TypicalTasks) -> None:
        del typical
        self.scores = scores

    def gpu_for(self, nodes: NodeState, node: int, kind: TaskKind) -> int:
        """Nobody asks, as the card does not say `own`."""
        raise NotImplementedError


def best_fit(nodes: NodeState, places: Places, kind: TaskKind) -> Scores:
    """The least CPU and GPUs left over score best, from 0 to 100, cut to whole numbers."""
    cpu = (nodes.cpu_left[places] - kind.cpu_milli) / LARGEST_CPU_MILLI
    gpu = (nodes.total_left[places] - kind.total_milli) / LARGEST_GPU_MILLI
    found: Scores = ((1.0 - 0.5 * cpu - 0.5 * gpu) * 100.0).astype(np.int64)
    return found


def dot_product(nodes: NodeState, places: Places, kind: TaskKind) -> Scores:
    """Leftovers that point away from what is asked score best, from 0 to 100."""
    cpu = nodes.cpu_left[places] / LARGEST_CPU_MILLI * (kind.cpu_milli / LARGEST_CPU_MILLI)
    gpu = nodes.total_left[places] / LARGEST_GPU_MILLI * (kind.total_milli / LARGEST_GPU_MILLI)
    found: Scores = (100.0 * (1.0 - (cpu + gpu) / 2.0)).astype(np.int64)
    return found


def clustering(nodes: NodeState, places: Places, kind: TaskKind) -> Scores:
    """Only its group, its group among others, idle, or only other groups."""
    if not kind.num_gpus:
        return by_chance(nodes, places, kind)
    group = "share" if kind.shares else str(kind.num_gpus)
    classes = np.array([_class(nodes.groups[place], group) for place in places.tolist()])
    fuller = 25 * (LARGEST_GPU_MILLI - nodes.total_left[places]) // LARGEST_GPU_MILLI
    found: Scores = fuller + 25 * classes
    return found


def _class(groups: dict[str, int], group: str) -> int:
    if group in groups:
        return 3 if len(groups) == 1 else 2
    return 0 if groups else 1


def packing(nodes: NodeState, places: Places, kind: TaskKind) -> Scores:
    """Up to 100 on GPUs in use, to 50 with free GPUs of a used node, to 33 on an idle one."""
    if not kind.num_gpus:
        return by_chance(nodes, places, kind)
    free = nodes.free_gpus[places]
    idle = np.maximum(33 - free, free)
    takes_free = np.full(len(places), kind.num_gpus)
    shared = np.zeros(len(places), dtype=np.int64)
    if kind.shares:
        left = nodes.gpu_left[places]
        fitting = np.where((left >= kind.gpu_milli) & (left > 0), left, WHOLE + 1)
        fullest = fitting.min(axis=1)
        takes_free = (fullest == WHOLE).astype(np.int64)
        shared = np.maximum(100 - fullest * 100 // WHOLE // 10, 50)
    used = np.where(takes_free > 0, np.maximum(50 - takes_free, 33), shared)
    return np.where(free == nodes.num_gpus[places], idle, used)


def by_chance(nodes: NodeState, places: Places, kind: TaskKind) -> Scores:
    """Zero for all, as chance decides."""
    del nodes, kind
    return np.zeros(len(places), dtype=np.int64)


def kube_scores(
    nodes: NodeState,
    places: NDArray[np.int64],
    kind: TaskKind,
    *,
    aim: Literal["least", "most"],
    gpu_weight: int,
) -> NDArray[np.int64]:
    """Scores of nodes [M]: CPU and memory with weight 1, GPUs with theirs, and balance."""
    asked = (
        (nodes.cpu, nodes.cpu_left, kind.cpu_milli, 1),
        (nodes.memory, nodes.memory_left, kind.memory_bytes, 1),
        (nodes.num_gpus, nodes.free_gpus, kind.total_milli // WHOLE, gpu_weight),
    )
    total = np.zeros(len(places), dtype=np.int64)
    weights = np.zeros(len(places), dtype=np.int64)
    for capacity, left, asks, weight in asked:
        have = capacity[places]
        used = have - left[places] + asks
        if weight and (asks or weight == 1):  # a resource that is not asked for is not scored
            free_or_used = have - used if aim == "least" else used
            total += weight * (free_or_used * 100 // np.maximum(have, 1)) * (have > 0)
            weights += weight * (have > 0)
    evened = _balance(nodes, places, kind) - _balance(nodes, places)
    balanced = 50 + evened // 2
    found: NDArray[np.int64] = total // np.maximum(weights, 1) + balanced
    return found


def _balance(
    nodes: NodeState, places: NDArray[np.int64], kind: TaskKind | None = None
) -> NDArray[np.int64]:
    """100 less the standard deviation, in percent, of the shares of CPU and memory in use."""
    cpu = nodes.cpu[places] - nodes.cpu_left[places] + (kind.cpu_milli if kind else 0)
    memory = nodes.memory[places] - nodes.memory_left[places] + (kind.memory_bytes if kind else 0)
    shares = (
        np.minimum(1.0, cpu / np.maximum(nodes.cpu[places], 1)),
        np.minimum(1.0, memory / np.maximum(nodes.memory[places], 1)),
    )
    found: NDArray[np.int64] = ((1.0 - np.abs(shares[0] - shares[1]) / 2.0) * 100.0).astype(int)
    return found


def _kube(title: str, aim: Literal["least", "most"], gpu_weight: int) -> tuple[RuleCard, Any]:
    """The kube-scheduler with the sum of its two plugins, from 0 to 200."""
    card = RuleCard(title=f"kube-scheduler {title}", node="kube", source="Kubernetes 1.36")
    return card, partial(kube_scores, aim=aim, gpu_weight=gpu_weight)


_MOST_GPUS = 1024
"""More than any node has."""


class FragmentationGradient:
    """Fragmentation gradient descent takes the node and GPU where fragmentation grows least.

    F of every node is kept, and computed anew where something was put (Weng et al., ATC 2023,
    algorithm 1).
    """

    def __init__(self, typical: TypicalTasks) -> None:
        self._typical = typical
        self._now = np.empty(0)
        self._seen = np.empty(0, dtype=np.int64)
        self._best: dict[TaskKind, NDArray[np.int64]] = {}
        """The first GPU with the best score, by node, as of when the node was last scored."""

    def scores(
        self, nodes: NodeState, places: NDArray[np.int64], kind: TaskKind
    ) -> NDArray[np.int64]:
        """The sigmoid of the fall of F in GPUs, from 0 to 100, cut to whole numbers."""
        rows, gpus, scores = self._options(nodes, places, kind)
        # Options come node by node; of equal ones the first GPU is the best.
        numbered = scores * _MOST_GPUS + (_MOST_GPUS - 1 - gpus)
        best = np.maximum.reduceat(numbered, np.searchsorted(rows, np.arange(len(places))))
        if kind.shares:
            if kind not in self._best:
                self._best[kind] = np.zeros(len(nodes), dtype=np.int64)
            self._best[kind][places] = _MOST_GPUS - 1 - best % _MOST_GPUS
        return np.asarray(best // _MOST_GPUS)

    def gpu_for(self, nodes: NodeState, node: int, kind: TaskKind) -> int:
        """The first GPU with the best score: that of when the node got its score."""
        del nodes
        return int(self._best[kind][node])

    def _options(
        self, nodes: NodeState, places: NDArray[np.int64], kind: TaskKind
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Rows of `places`, GPUs (the first of those with as much left) and scores [options]."""
        left = nodes.gpu_left[places]
        if kind.shares:
            count = left.shape[1]
            alike = (left[:, :, None] == left[:, None, :]) & np.tri(count, k=-1, dtype=bool)
            rows, gpus = np.nonzero((left >= kind.gpu_milli) & ~alike.any(axis=2))
            after = left[rows].copy()
            after[np.arange(len(rows)), gpus] -= kind.gpu_milli
        else:
            rows, gpus = np.arange(len(places)), np.zeros(len(places), dtype=np.int64)
            free = left == WHOLE
            taken = free & (free.cumsum(axis=1) <= kind.num_gpus)
            after = np.where(taken, 0, left)
        at = places[rows]
        cpu = nodes.cpu_left[at] - kind.cpu_milli
        grows = self._fragmented(nodes, places, at, cpu, after) - self._now[at]
        scores = (100.0 / (1.0 + np.exp(grows / WHOLE))).astype(np.int64)
        return rows, gpus, scores

    def _fragmented(
        self,
        nodes: NodeState,
        places: NDArray[np.int64],
        at: NDArray[np.int64],
        cpu: NDArray[np.int64],
        after: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """F of nodes with so much left; what it is now is noted where it changed."""
        if len(self._now) != len(nodes):
            self._now = np.zeros(len(nodes))
            self._seen = np.full(len(nodes), -1)
        old = places[self._seen[places] != nodes.version[places]]
        found = self._typical.fragmented(
            nodes,
            np.concatenate([old, at]),
            np.concatenate([nodes.cpu_left[old], cpu]),
            np.concatenate([nodes.gpu_left[old], after]),
        )
        self._now[old] = found[: len(old)]
        self._seen[old] = nodes.version[old]
        return found[len(old) :]


RULES: dict[str, tuple[RuleCard, ScoreFunction | type[PlacementRule]]] = {
    "best-fit": (
        RuleCard(title="least CPU and GPU left over", source="Weng et al., ATC 2023, section 6.2"),
        best_fit,
    ),
    "clustering": (
        RuleCard(
            title="tasks of as many GPUs together",
            source="Xiao et al., Gandiva, OSDI 2018; as in Weng et al., ATC 2023",
        ),
        clustering,
    ),
    "dot-product": (
        RuleCard(
            title="smallest product of what is left and what is asked",
            source="Grandl et al., Tetris, SIGCOMM 2014; as in Weng et al., ATC 2023",
        ),
        dot_product,
    ),
    "fgd": (
        RuleCard(
            title="least growth of fragmentation",
            gpu="own",
            source="Weng et al., ATC 2023, algorithm 1",
        ),
        FragmentationGradient,
    ),
    "kube-default": _kube("as it comes: the emptiest node by CPU and memory", "least", 0),
    "kube-least-allocated": _kube(
        "with LeastAllocated, GPUs ten times CPU and memory", "least", 10
    ),
    "kube-most-allocated": _kube("with MostAllocated, GPUs ten times CPU and memory", "most", 10),
    "packing": (
        RuleCard(
            title="GPUs in use first, then nodes in use",
            source="Weng et al., MLaaS in the wild, NSDI 2022; as in ATC 2023",
        ),
        packing,
    ),
    "random": (
        RuleCard(title="any node that holds the task", gpu="random", node="any"),
        by_chance,
    ),
}
"""Name → its card, and the function that scores, or a class that is made of typical tasks."""
