"""What a job asks for beside a number of GPUs, and what makes it faster or slower."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["node", "nvlink", "rack"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWants:
    """The rarer wishes of a job; the default is a job that wants whole GPUs and nothing else."""

    cpus: float = 0.0
    """Cores of the whole job, spread over its nodes as its GPUs are."""
    memory_bytes: float = 0.0
    gpu_slice: str = ""
    """A MIG profile, as `1g.10gb`, of which the job takes one."""
    gpu_type: str = ""
    """The only kind of GPU that will do, as nodes name theirs; several with `|` between them."""
    on_demand: bool = False
    """Whether it may not run on spot capacity."""
    level: Level = "node"
    """Within what it is to be placed. A job of more than a node's GPUs takes whole nodes."""
    required: bool = True
    """Whether it waits for that, or takes GPUs wherever they are where it cannot have it."""
    min_gpus: int = 0
    """An elastic job starts with so many; 0: with all of them."""
    max_gpus: int = 0
    """An elastic job grows to so many; 0: not above `num_gpus`."""
    parallel_share: float = 1.0
    """The share of an elastic job's time on one GPU that more GPUs make shorter (Amdahl)."""
    comm_share: float = 0.0
    """The share of its time in which it does nothing but communicate, placed compactly."""
    pods: int = 0
    """Pods of the job, where they may start one by one; 0: one for each node."""
    gpu_use: float = 1.0
    """The share of the time in which its kernels run, were it alone on its GPU."""

    @property
    def elastic(self) -> bool:
        """Whether its size may change while it runs."""
        return bool(self.min_gpus or self.max_gpus)

    @property
    def detailed(self) -> bool:
        """Whether counting free GPUs per node does not tell where it fits."""
        return bool(
            self.cpus or self.memory_bytes or self.gpu_slice or self.gpu_type or self.on_demand
            or self.level != "node" or not self.required
        )  # fmt: skip


PLAIN = JobWants()


def kinds_in(gpu_type: str) -> list[str]:
    """The kinds of GPU of which any will do; empty: all of them.

    >>> kinds_in("a100|h100"), kinds_in("")
    (['a100', 'h100'], [])
    """
    return [one.strip() for one in gpu_type.split("|") if one.strip()]


def any_of(kinds: Iterable[str]) -> str:
    """Kinds of GPU of which any will do, in one text: the same for the same kinds."""
    return "|".join(sorted(set(kinds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePiece:
    """What one node is asked for at once."""

    gpus: int
    """Whole GPUs; 0 where it is a part of one, or none."""
    milli: int = 0
    """Thousandths of one GPU."""
    gpu_slice: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_type: str = ""
    on_demand: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a job asks of a pool whose nodes are told apart; jobs that ask alike share one."""

    full: NodePiece | None
    """What is asked of each of `num_full` nodes."""
    num_full: int
    rest: NodePiece | None
    """What is asked of one node more."""
    single: NodePiece | None
    """One GPU's part of the job, where GPUs that lie apart will do."""
    level: Level
    required: bool

    @property
    def gpus(self) -> int:
        """Whole GPUs of the job."""
        return sum(times * one.gpus for one, times in self.pieces())

    @property
    def one_piece(self) -> NodePiece | None:
        """What a single node is asked for; none: several are, or one of several ways will do."""
        pieces = self.pieces()
        if len(pieces) != 1 or pieces[0][1] != 1 or (self.single is not None and self.gpus > 1):
            return None
        return pieces[0][0]

    def pieces(self) -> list[tuple[NodePiece, int]]:
        """What is asked of nodes, and of how many."""
        found = [(self.full, self.num_full), (self.rest, 1)]
        return [(one, times) for one, times in found if one is not None and times]


def wish_of(num_gpus: float, wants: JobWants, largest: int) -> Wish:
    """What a job asks of nodes of which the largest has `largest` GPUs."""
    whole = math.floor(num_gpus)
    share = num_gpus - whole

    def piece(gpus: int, milli: int = 0) -> NodePiece:
        part = (gpus / num_gpus) if whole else 1.0
        return NodePiece(
            gpus=gpus,
            milli=milli,
            gpu_slice=wants.gpu_slice,
            cpu_milli=math.ceil(1000 * wants.cpus * part - 1e-6),
            memory_bytes=math.ceil(wants.memory_bytes * part),
            gpu_type=wants.gpu_type,
            on_demand=wants.on_demand,
        )

    if wants.gpu_slice:
        alone = piece(0)
        return Wish(full=None, num_full=0, rest=alone, single=None, level="node", required=True)
    if not whole:
        alone = piece(0, round(1000 * share))
        return Wish(full=None, num_full=0, rest=alone, single=None, level="node", required=True)
    num_full, rest = divmod(whole, largest)
    scatters = wants.level == "node" and not wants.required
    return Wish(
        full=piece(largest) if num_full else None,
        num_full=num_full,
        rest=piece(rest) if rest else None,
        single=piece(1) if scatters else None,
        level=wants.level,
        required=wants.required,
    )
