"""Rules of placement, one file each, with a `CARD` and a function `scores`.

`-` in a rule's name is `_` in its file's. A rule scores nodes that hold a task: the largest score
wins, and of equal ones the first in an order that the seed draws. A rule that looks at typical
tasks, or chooses the GPU itself, is a class instead, as `RULE`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.nodes import NodeState
from ridgeline.queue.placement.tasks import TaskKind

Scores = Callable[[NodeState, NDArray[np.int64], TaskKind], NDArray[np.int64]]
GpuChoice = Literal["fullest", "random", "own"]


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

    def scores(
        self, nodes: NodeState, places: NDArray[np.int64], kind: TaskKind
    ) -> NDArray[np.int64]:
        """Scores of nodes [M] that hold a task, larger is better."""

    def gpu_for(self, nodes: NodeState, node: int, kind: TaskKind) -> int:
        """The GPU for a task that shares, where the card says `own`."""


def rule_names() -> list[str]:
    """The names of all rules.

    >>> "fgd" in rule_names()
    True
    """
    return sorted(one.name.replace("_", "-") for one in pkgutil.iter_modules(__path__))


def find_rule(name: str) -> tuple[RuleCard, Any]:
    """The card of a rule, and what makes one of typical tasks.

    Raises:
        InputError: There is none of that name; the known ones are listed.
    """
    if name not in rule_names():
        raise InputError(f"--policy {name}: known are {', '.join(rule_names())}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    rule = getattr(module, "RULE", None)
    return module.CARD, rule or partial(_ScoresAlone, module.scores)


class _ScoresAlone:
    """A rule that is a function, and leaves the GPU to the common choice."""

    def __init__(self, scores: Scores, typical: TypicalTasks) -> None:
        self.scores = scores

    def gpu_for(self, nodes: NodeState, node: int, kind: TaskKind) -> int:
        """Nobody asks, as the card does not say `own`."""
        raise NotImplementedError
