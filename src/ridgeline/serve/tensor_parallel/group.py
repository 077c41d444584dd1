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

LONGEST_SECONDS = 600.0
"""A collective that takes longer hangs: as long as a step may take before the engine is ended."""


class RankGroup:
    """The ranks of one model, as one of them sees them; there is at most one in a process."""

    def __init__(self, meeting: Path, *, rank: int, size: int, device: torch.device) -> None:
        """Wait for the others.

        Args:
            meeting: A file, in a folder that is there, by which the ranks find each other.
            rank: Which of them this is.
            size: How many there are.
            device: Where this one computes.
        """
        self.rank = rank
        self.size = size
        self.device = device
        self.bytes = 0
        """The bytes that this rank has put into collectives."""
        self._seconds = 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.FileStore(str(meeting), size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=LONGEST_SECONDS),
            device_id=device if device.type == "cuda" else None,
        )

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

    def add_up(self, share: Tensor) -> Tensor:
        """Replace a tensor by the sum of all ranks' tensors, in place."""
        self._timed(lambda: dist.all_reduce(share), share)
        return share

    def put_together(self, share: Tensor) -> Tensor:
        """[..., C] of every rank to [..., size · C], in the order of ranks."""
        share = share.contiguous()
        found = share.new_empty(self.size, *share.shape)
        self._timed(lambda: dist.all_gather(list(found.unbind(0)), share), share)
        return found.movedim(0, -2).flatten(-2)

    def send(self, states: Tensor, rank: int) -> None:
        """Send states to another rank, which takes them."""
        states = states.contiguous()
        self._timed(lambda: dist.send(states, rank), states)

    def take(self, like: Tensor, rank: int) -> Tensor:
        """States of this shape from another rank, which sends them."""
        found = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        self._timed(lambda: dist.recv(found, rank), found)
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

    def _timed(self, collective: Callable[[], object], share: Tensor) -> None:
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
