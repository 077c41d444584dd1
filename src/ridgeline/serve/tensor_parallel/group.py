"""What the ranks of one model say to each other while they compute, and what it costs.

A sum or a gathering lets all ranks wait for the slowest, so the seconds that are counted here are
transfer and waiting together: what a step would not take if there was one rank. On a CPU they are
the call's own; on a GPU they lie between two events of the stream, and what a CUDA graph replays is
not counted.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.serve.tensor_parallel.plan import RankPlace

LONGEST_SECONDS = 600.0
"""A collective that takes longer hangs: as long as a step may take before the engine is ended."""


class RankGroup:
    """The ranks of one model, as one of them sees them; there is at most one in a process."""

    def __init__(
        self,
        meeting: Path,
        *,
        rank: int,
        size: int,
        device: torch.device,
        shares: int | None = None,
    ) -> None:
        """Wait for the others.

        Args:
            meeting: A file, in a folder that is there, by which the ranks find each other.
            rank: Which of them this is.
            size: How many there are.
            device: Where this one computes.
            shares: How many of them share the layers of one stage; they stand in a row. None: all.
        """
        self.rank = rank
        self.size = size
        self.device = device
        self.bytes = 0
        """The bytes that this rank has put into collectives."""
        self._seconds = 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._sends: deque[tuple[dist.Work, Tensor]] = deque()
        """States on their way, with what has to stay as it is until they have arrived."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.FileStore(str(meeting), size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=LONGEST_SECONDS),
            device_id=device if device.type == "cuda" else None,
        )
        self.shares = shares or size
        """The ranks of one stage."""
        self.stage, self.stages = rank // self.shares, size // self.shares
        self.line = self._line()
        """Those that share this one's layers."""

    @property
    def seconds(self) -> float:
        """The time of all collectives so far, as far as the device has come."""
        while self._pending and self._pending[0][1].query():
            began, ended = self._pending.popleft()
            self._seconds += began.elapsed_time(ended) / 1e3
        return self._seconds

    def reset(self) -> None:
        """Begin to count anew."""
        self._pending.clear()
        self._seconds, self.bytes = 0.0, 0

    def send_on(self, states: Tensor) -> None:
        """Send states to the rank of the next stage that has the same share of its layers.

        Through gloo it is not waited for: the next stage may be at an earlier step, whose states
        this one would have to take first. Between two stages there are as many steps as stages.
        """
        states = states.contiguous()
        rank = (self.rank + self.shares) % self.size
        if states.is_cuda:
            self.timed(lambda: dist.send(states, rank), states)
            return
        self.timed(lambda: self._sends.append((dist.isend(states, rank), states)), states)
        while len(self._sends) > self.stages:
            self._sends.popleft()[0].wait()

    def take(self, like: Tensor) -> Tensor:
        """States of this shape from the stage before, which sends them on."""
        found = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        rank = (self.rank - self.shares) % self.size
        self.timed(lambda: dist.recv(found, rank), found)
        return found

    def least(self, value: int) -> int:
        """The smallest of all ranks' numbers."""
        number = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.all_reduce(number, dist.ReduceOp.MIN)
        return int(number)

    def close(self) -> None:
        """Leave the group; the others are not waited for."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _line(self) -> RankLine:
        """Make the group of each stage's ranks, in the same order everywhere; this one's."""
        if self.stages == 1:
            return RankLine(self, None, self.rank, self.size)
        rows = [range(first, first + self.shares) for first in range(0, self.size, self.shares)]
        made = [dist.new_group(list(row)) if self.shares > 1 else None for row in rows]
        return RankLine(self, made[self.stage], self.rank % self.shares, self.shares)

    def timed(self, collective: Callable[[], object], share: Tensor) -> None:
        """Call a collective, and count its time and its bytes."""
        self.bytes += share.nbytes
        if share.is_cuda:
            self._timed_on_stream(collective)
            return
        began = time.perf_counter()
        collective()
        self._seconds += time.perf_counter() - began

    def _timed_on_stream(self, collective: Callable[[], object]) -> None:
        if torch.cuda.is_current_stream_capturing():
            collective()
            return
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        events[0].record()
        collective()
        events[1].record()
        self._pending.append(events)


class RankLine:
    """The ranks that each have a share of the same layers, as one of them sees them."""

    def __init__(
        self, group: RankGroup, line: dist.ProcessGroup | None, rank: int, size: int
    ) -> None:
        """Count ranks within the line; None is the group of all."""
        self._group = group
        self._line = line
        self.rank = rank
        self.size = size
        self.device = group.device

    @property
    def place(self) -> RankPlace:
        """Which of the line's ranks this is."""
        return RankPlace(self.rank, self.size)

    def add_up(self, share: Tensor) -> Tensor:
        """Replace a tensor by the sum of all ranks' tensors, in place."""
        self._group.timed(lambda: dist.all_reduce(share, group=self._line), share)
        return share

    def put_together(self, share: Tensor) -> Tensor:
        """[..., C] of every rank to [..., size · C], in the order of ranks."""
        share = share.contiguous()
        found = share.new_empty(self.size, *share.shape)
        parts = list(found.unbind(0))
        self._group.timed(lambda: dist.all_gather(parts, share, group=self._line), share)
        return found.movedim(0, -2).flatten(-2)
