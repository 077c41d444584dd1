"""Beam searches under way: which sequences belong to which, and what an ended one sends."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import FinishReason, Sequence, Status
from ridgeline.serve.engine.answers import last_delta
from ridgeline.serve.messages import Delta
from ridgeline.serve.sampling.beams import BeamSearch


@dataclass(slots=True, eq=False)
class Search:
    """One request."""

    beams: BeamSearch
    first: Sequence
    """Of its prompt; its times and counts are the request's."""
    arrived: float


class Searches:
    """All of an engine's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._of: dict[Sequence, Search] = {}
        self._by_id: dict[str, Search] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __getitem__(self, sequence: Sequence) -> Search:
        return self._of[sequence]

    def by_id(self, request_id: str) -> Search:
        """The search of a request under way."""
        return self._by_id[request_id]

    @property
    def open_ids(self) -> list[str]:
        """Of requests under way."""
        return list(self._by_id)

    def adapters(self) -> set[str]:
        """Names in use."""
        return {search.beams.submit.adapter for search in self._by_id.values()}

    def add(self, search: Search) -> None:
        """A search begins."""
        self._of[search.first] = search
        self._by_id[search.beams.submit.id] = search

    def settle(self, search: Search, now: float) -> tuple[list[Sequence], list[Sequence]]:
        """Carry out what was decided in this step; returns sequences that began and that ended."""
        before = [one for one, owner in self._of.items() if owner is search]
        search.beams.settle(self._scheduler, now)
        after = [] if search.beams.done else search.beams.sequences
        began = [one for one in after if one not in self._of]
        ended = [one for one in before if one not in after]
        for one in ended:
            del self._of[one]
        for one in began:
            self._of[one] = search
        return began, ended

    def close(self, search: Search, now: float) -> list[Sequence]:
        """End a search at any time; returns the sequences that ended with it."""
        mine = self.forget(search)
        for one in mine:
            self._scheduler.finish(one, FinishReason.ABORT, now)
        return mine

    def forget(self, search: Search) -> list[Sequence]:
        """Take a search out of the books; returns its sequences, for the caller to end."""
        mine = [one for one, owner in self._of.items() if owner is search]
        for one in mine:
            del self._of[one]
        self._by_id.pop(search.beams.submit.id, None)
        return mine


def deltas_of(search: Search, now: float) -> list[Delta]:
    """The last and only Delta of each answer."""
    beams, first = search.beams, search.first
    if beams.done:
        found = beams.deltas()
    else:
        found = [
            Delta(id=beams.submit.id, index=index, finish_reason="abort")
            for index in range(beams.submit.n)
        ]
    if first.status is Status.FINISHED:
        first.finished_at = now  # the search's end, not that of its first beam
    return [
        last_delta(delta, first, search.arrived, output_tokens=len(delta.tokens)) for delta in found
    ]
