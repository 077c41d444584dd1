"""Collectives of data-parallel runs: DDP's buckets, FSDP's gathers and scatters, NCCL's stream."""

from __future__ import annotations

from tests.trace.simulated.host import TALK, Blocking, Rank, Thread
from tests.trace.simulated.machine import Work
from tests.trace.simulated.program import Collective, Op

_QUIET = ("multimem", "deepep")
"""Libraries that leave no metadata in a kernel's arguments."""


def collective(thread: Thread, what: Collective, stream: int) -> Blocking:
    """Start this rank's part; all ranks number their collectives alike."""
    rank = thread.rank
    number, parallel = rank.collectives, rank.program.parallel
    rank.collectives += 1
    transfer = what.time_us(rank.gpu, parallel.link, parallel.ranks)
    if number == rank.program.trouble.late_message:
        transfer += rank.program.trouble.late_message_us
    args = {} if what.kind in _QUIET else {"collective": what, "seq": number}
    with thread.span("cpu_op", f"c10d::{what.operation}_"):
        thread.now += thread.jitter(14.0)
        with thread.span("annotation", f"nccl:{what.operation.strip('_')}"):
            thread.now += thread.jitter(6.0)
            yield from thread.launch(
                what.kind, 0.0, stream=stream, call="cudaLaunchKernelExC", blocks=24,
                meeting=rank.machine.meet(number, parallel.ranks, transfer), **args,
            )  # fmt: skip
            thread.now += thread.jitter(4.0)


class DataParallel:
    """What DDP or FSDP adds to a rank's passes; nothing for other programs."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.parallel = rank, rank.program.parallel
        self.waiting: list[float] = []
        """Bytes of gradients that are not yet on their way."""
        self.gathered: dict[tuple[int, bool], Work] = {}
        self.layers: dict[int, float] = {}
        for op in rank.program.backward:
            if op.gradient_bytes:
                self.layers[op.layer] = self.layers.get(op.layer, 0.0) + op.gradient_bytes

    def last(self) -> Work | None:
        line = self.rank.machine.streams.get((self.rank.number, TALK))
        return line[-1] if line else None

    def gradients(self, thread: Thread, op: Op, *, last: bool) -> Blocking:
        """A backward operator has made gradients: DDP sends full buckets."""
        if self.parallel.kind == "fsdp":
            yield from self._scatter(thread, op)
            return
        if self.parallel.kind != "ddp":
            return
        if op.gradient_bytes:
            self.waiting += [op.gradient_bytes / self.parallel.pieces] * self.parallel.pieces
        now = self.parallel.overlap or last
        while self.waiting and now and (last or sum(self.waiting) >= self.parallel.bucket_bytes):
            bucket = 0.0
            while self.waiting and (not bucket or bucket < self.parallel.bucket_bytes):
                bucket += self.waiting.pop(0)
            yield from self._send(thread, Collective("all_reduce", "allreduce", bucket, 2))

    def _send(self, thread: Thread, what: Collective) -> Blocking:
        ready = thread.last()
        thread.stream_waits(TALK, [ready] if ready else [])
        yield from collective(thread, what, TALK)

    def join(self, thread: Thread) -> None:
        """The optimizer's kernels wait for all collectives."""
        last = self.last()
        if last is not None:
            thread.stream_waits(self.rank.compute, [last])
        self.gathered.clear()

    def enter_layer(self, thread: Thread, layer: int, *, forward: bool) -> Blocking:
        """FSDP: the layer's weights are gathered, the next layer's too when it overlaps."""
        if self.parallel.kind != "fsdp" or layer not in self.layers:
            return
        yield from self._gather(thread, layer, forward=forward)
        wanted = self.gathered.get((layer, forward))
        ahead = layer + (1 if forward else -1)
        if self.parallel.overlap and ahead in self.layers:
            yield from self._gather(thread, ahead, forward=forward)
        if wanted is not None:
            thread.stream_waits(self.rank.compute, [wanted])

    def _gather(self, thread: Thread, layer: int, *, forward: bool) -> Blocking:
        if (layer, forward) in self.gathered:
            return
        if not self.parallel.overlap:  # the gather waits for the layer before
            ready = thread.last()
            thread.stream_waits(TALK, [ready] if ready else [])
        what = Collective("all_gather", "_allgather_base", self.layers[layer])
        yield from collective(thread, what, TALK)
        last = self.last()
        assert last is not None
        self.gathered[layer, forward] = last

    def _scatter(self, thread: Thread, op: Op) -> Blocking:
        """FSDP: when the last gradient of a layer is there, it is reduced and scattered."""
        if not op.gradient_bytes:
            return
        key = op.layer
        left = [one for one in self.rank.program.backward
                if one.layer == key and one.gradient_bytes]  # fmt: skip
        if op is not left[-1]:
            return
        what = Collective("reduce_scatter", "_reduce_scatter_base", self.layers[key])
        yield from self._send(thread, what)
        if not self.parallel.overlap:
            last = self.last()
            assert last is not None
            thread.stream_waits(self.rank.compute, [last])
