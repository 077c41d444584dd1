"""Who holds payloads, and how many copies of each frame are on their way to which sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from ridgeline.frames.edges import Edge, FrameSources, FrameToken, Payload
from ridgeline.frames.fates import Loss
from ridgeline.frames.stage_state import JobState, StageState

_IN_VAIN = ("no partner", "superseded")
"""Reasons of frames that waited for another, whose own loss is the cause."""


class FrameCopies:
    """Counts copies up and down.

    Args:
        release: Called with each payload that nothing holds any more.
    """

    def __init__(self, release: Callable[[Any], None] | None) -> None:
        self._release = release

    def enter(self, edge: Edge, token: FrameToken) -> None:
        """One more copy, on an edge or, of what is reused, in a job of its reader."""
        token.payload.holders += 1
        for _, entry in token.sources:
            for sink in edge.sinks:
                entry.alive[sink] += 1

    def merge(self, tokens: Iterable[FrameToken], state: StageState, job: JobState) -> None:
        """Count a frame that came by several inputs once from here on."""
        sources = [source for token in tokens for source in token.sources]
        if len(sources) > len(job.sources):
            self._count(sources, state, -1)
            self._count(job.sources, state, +1)

    def come_out(self, state: StageState, job: JobState) -> None:
        """A job has ended; what it handed on is counted already."""
        self._count(job.sources, state, -1)
        self.let_inputs_go(job)

    def let_inputs_go(self, job: JobState) -> None:
        """A job holds its inputs no longer."""
        for payload in job.payloads:
            self.let_go(payload)

    def lose_waiting(self, token: FrameToken, edge: Edge, reason: str, now: float) -> None:
        """A copy ends on an edge."""
        loss = Loss(2 if reason in _IN_VAIN else 0, "dropped", edge.name, reason, now)
        self._lose(token.sources, edge.sinks, edge.needed, loss)
        self.let_go(token.payload)

    def lose_inside(self, job: JobState, state: StageState, loss: Loss) -> None:
        """A copy ends inside a stage."""
        self._lose(job.sources, state.sinks, state.needed, loss)
        for payload in job.payloads:
            self.let_go(payload)

    def let_go(self, payload: Payload) -> None:
        """One holder of a payload less."""
        payload.holders -= 1
        if not payload.holders and self._release:
            self._release(payload.value)

    def refuse(self, value: Any) -> None:
        """Nothing ever held it."""
        if self._release:
            self._release(value)

    @staticmethod
    def _count(sources: Iterable[Any], state: StageState, change: int) -> None:
        for _, entry in sources:
            for sink in state.sinks:
                entry.alive[sink] += change

    @staticmethod
    def _lose(
        sources: FrameSources, sinks: tuple[int, ...], needed: frozenset[int], loss: Loss
    ) -> None:
        spared = replace(loss, rank=1) if loss.rank == 0 and len(needed) < len(sinks) else loss
        for book, entry in sources:
            for sink in sinks:
                book.lose(entry, sink, loss if sink in needed else spared)
