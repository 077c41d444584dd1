"""Messages between two ranks: stages of a pipeline, and rings of context parallelism.

Each pair of ranks has a communicator, hence a stream, of its own, as NCCL's process group has; with
1F1B, whose messages cross each other, one per direction. A message waits for what its rank had
queued before it, and both ends of it end together.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.trace.simulated.host import Blocking, Rank, Thread
from tests.trace.simulated.program import Collective, Op

_FIRST_STREAM = 40


def message(thread: Thread, peer: int, stream: int, *, sends: bool) -> Blocking:
    """Start this rank's end of the next message to or from a peer."""
    rank = thread.rank
    parallel, own = rank.program.parallel, rank.number
    pair = (own, peer) if sends else (peer, own)
    rank.messages[pair] = number = rank.messages.get(pair, -1) + 1
    what = Collective("send_recv", "send" if sends else "recv", parallel.message_bytes)
    transfer = 2 * what.time_us(rank.gpu, parallel.link, 2)
    arrow = f"{own}->{peer}" if sends else f"{own}<-{peer}"
    ready = thread.last()
    thread.stream_waits(stream, [ready] if ready else [])
    with (
        thread.span("cpu_op", f"c10d::{what.operation}"),
        thread.span("annotation", f"nccl:{what.operation} {arrow}"),
    ):
        thread.now += thread.jitter(15.0)
        yield from thread.launch(
            what.kind, 0.0, stream=stream, call="cudaLaunchKernelExC", blocks=24,
            meeting=rank.machine.meet((*pair, number), 2, transfer),
            collective=what, peer=peer,
        )  # fmt: skip


class Stage:
    """A rank's part of a pipeline: its operators, and its neighbours."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.ranks = rank, rank.program.parallel.ranks
        self.crosses = rank.program.parallel.schedule == "1f1b"

    def order(self, passes: int) -> Iterator[bool]:
        """Forward (true) or backward, pass by pass, of a step.

        GPipe does all forward passes first; 1F1B those that later stages need to begin with, then
        one of each in turn.
        """
        ahead = min(passes, self.ranks - 1 - self.rank.number) if self.crosses else passes
        yield from [True] * ahead
        yield from [True, False] * (passes - ahead)
        yield from [False] * ahead

    def _stream(self, peer: int, *, to_the_right: bool) -> int:
        return _FIRST_STREAM + peer + (self.ranks if self.crosses and to_the_right else 0)

    def own(self, ops: tuple[Op, ...]) -> list[Op]:
        """The operators of this rank's layers."""
        layers = 1 + max(op.layer for op in self.rank.program.forward)
        stages = [max(0, op.layer) * self.ranks // layers for op in ops]
        return [op for op, stage in zip(ops, stages, strict=True) if stage == self.rank.number]

    def receive(self, thread: Thread, step: int) -> Blocking:
        """Wait on the GPU for what the stage before (-1) or after (+1) sends."""
        peer = self.rank.number + step
        if 0 <= peer < self.ranks:
            stream = self._stream(peer, to_the_right=step < 0)
            yield from message(thread, peer, stream, sends=False)
            done = thread.last(stream)
            assert done is not None
            thread.stream_waits(self.rank.compute, [done])

    def send(self, thread: Thread, step: int) -> Blocking:
        """Send what was computed to the stage before or after."""
        peer = self.rank.number + step
        if 0 <= peer < self.ranks:
            stream = self._stream(peer, to_the_right=step > 0)
            yield from message(thread, peer, stream, sends=True)


def pass_around(thread: Thread) -> Blocking:
    """Pass keys and values around the ring, and wait on the GPU for what the round has brought."""
    rank = thread.rank
    ranks, number = rank.program.parallel.ranks, rank.number
    to, source = (number + 1) % ranks, (number - 1) % ranks
    for _ in range(ranks - 1):
        yield from message(thread, to, _FIRST_STREAM, sends=True)
        yield from message(thread, source, _FIRST_STREAM + 1, sends=False)
    done = thread.last(_FIRST_STREAM + 1)
    assert done is not None
    thread.stream_waits(rank.compute, [done])
