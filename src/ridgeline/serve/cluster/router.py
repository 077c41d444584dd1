"""Several engines as one: requests go where they start soonest (`batching/routing.py`).

A replica that is down takes no new requests. A request that a replica refuses before its first
token because of the replica (down, queue full, adapter not there) goes to another; one that is cut
off later ends with the error, because what was streamed cannot be taken back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ridgeline.batching.routing import Choice, Load, Routes
from ridgeline.serve.cluster.combined import combined_ready, combined_stats
from ridgeline.serve.cluster.punctuality import Punctuality
from ridgeline.serve.messages import Delta, Ready, Refused, Stats, Submit
from ridgeline.serve.process.client import EngineLink, RequestRefused

SILENCE_SECONDS = 5.0
"""Without a heartbeat, which comes twice a second: no new requests for this replica."""
ELSEWHERE = (404, 429, 503)
"""Refusals of one replica that say nothing about the others: adapter not there, full, down."""
_NO_BLOCKS = 1 << 16
"""Remembered of a replica that was not up when the router began."""


@dataclass(slots=True, eq=False)
class Replica:
    """One engine and what this router has sent there."""

    link: EngineLink
    open: dict[str, int] = field(default_factory=dict)
    """By request: its uncached prompt tokens until its first token came, then 0."""
    draining: bool = False
    """It gets no new requests."""
    last_ready: Ready | None = None
    """What it said when it last came up, as far as the router has noticed."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing of this router is open there."""

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def up(self) -> bool:
        """Whether it answers."""
        return self.link.ready is not None and self.link.heartbeat_age_seconds < SILENCE_SECONDS

    @property
    def counts(self) -> bool:
        """Whether it speaks for the fleet: it takes requests, or has some open."""
        return not self.draining or bool(self.open)

    def load(self) -> Load | None:
        """None: it gets no requests."""
        if not self.up or self.draining:
            return None
        stats = self.link.stats
        pending = sum(self.open.values())
        if stats is None:
            return Load(open=len(self.open), pending_tokens=pending)
        return Load(
            open=max(len(self.open), stats.running + stats.waiting),
            pending_tokens=pending,
            cache_usage=stats.cache_usage,
            adapters=stats.adapters,
        )


class Router:
    """An `EngineLink` over others."""

    def __init__(
        self,
        links: Sequence[EngineLink],
        *,
        block_size: int = 16,
        punctuality: Punctuality | None = None,
    ) -> None:
        self.replicas = [Replica(link) for link in links]
        self.punctuality = punctuality or Punctuality()
        self._routes = Routes([_NO_BLOCKS] * len(links), block_size=block_size)
        self._past: list[Stats] = []
        """What replicas had counted that were ended: none, or one for all."""

    @property
    def ready(self) -> Ready | None:
        """Of the replicas that are up together; None while there is none."""
        all_ready = [one.link.ready for one in self.replicas if one.link.ready and one.counts]
        return combined_ready(all_ready) if all_ready else None

    @property
    def stats(self) -> Stats | None:
        """Of all together."""
        all_stats = [one.link.stats for one in self.replicas if one.link.stats and one.counts]
        return combined_stats(all_stats, self._past) if all_stats else None

    @property
    def heartbeat_age_seconds(self) -> float:
        """Of the liveliest: one that answers is enough to serve."""
        return min(one.link.heartbeat_age_seconds for one in self.replicas)

    async def submit(self, submit: Submit) -> AsyncGenerator[Delta, None]:
        """As `EngineClient.submit`, of the replica that was chosen."""
        refused: RequestRefused | None = None
        tried: set[int] = set()
        with self.punctuality.request(submit.id) as seen:
            while (choice := self._choose(submit, tried)) is not None:
                tried.add(choice.replica)
                began = False
                try:
                    async with aclosing(self._submit_to(choice, submit)) as deltas:
                        async for delta in deltas:
                            began = True
                            seen.note(delta)
                            yield delta
                except RequestRefused as error:
                    if began or error.refusal.status not in ELSEWHERE:
                        raise
                    refused = error
                else:
                    return
            raise refused or _nobody(submit.id)

    async def abort(self, request_id: str) -> None:
        """Nobody waits for this request any more; unknown ids are no error."""
        for replica in self.replicas:
            if request_id in replica.open:
                await replica.link.abort(request_id)

    async def embed(
        self, prompts: tuple[tuple[int, ...], ...], adapter: str = ""
    ) -> tuple[tuple[float, ...], ...]:
        """One vector per prompt, by the model or an adapter of it. Raises RequestRefused."""
        tokens = sum(len(prompt) for prompt in prompts)
        refused: RequestRefused | None = None
        tried: set[int] = set()
        while choice := self._routes.choose((), adapter, self._loads(tried), time.monotonic()):
            tried.add(choice.replica)
            replica = self.replicas[choice.replica]
            try:
                with _Open(replica, f"embed-{id(prompts)}", tokens):
                    return await replica.link.embed(prompts, adapter)
            except RequestRefused as error:
                if error.refusal.status not in ELSEWHERE:
                    raise
                refused = error
        raise refused or _nobody("embed")

    @property
    def adapters(self) -> dict[str, str]:
        """Name → path of those that every replica has, or is to have when it has started."""
        first, *others = [one.link.adapters for one in self.replicas]
        return {name: path for name, path in first.items() if all(name in one for one in others)}

    async def load_adapter(self, name: str, path: str) -> None:
        """On every replica that is up, or on none; the others have it from their next start on.

        Raises:
            RequestRefused: One refuses it.
        """
        done: list[Replica] = []
        up = self._up()
        for replica in up:
            try:
                await replica.link.load_adapter(name, path)
            except RequestRefused:
                for one in done:
                    await one.link.unload_adapter(name)
                raise
            done.append(replica)
        for replica in self.replicas:
            if replica not in up:
                replica.link.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        """On every replica. Raises the first RequestRefused, after trying all."""
        refused: RequestRefused | None = None
        up = self._up()
        for replica in self.replicas:
            if replica not in up:
                replica.link.adapters.pop(name, None)
                continue
            try:
                await replica.link.unload_adapter(name)
            except RequestRefused as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def ended(self, index: int) -> None:
        """A drained replica is about to be ended: keep what it has counted."""
        stats = self.replicas[index].link.stats
        if stats is not None:
            self._past = [combined_stats([stats], self._past)]

    async def drain(self, index: int) -> None:
        """Send a replica nothing more, and wait until what it has is done."""
        self.replicas[index].draining = True
        await self.replicas[index].idle.wait()

    def resume(self, index: int) -> None:
        """A drained replica takes requests again."""
        self.replicas[index].draining = False

    def _choose(self, submit: Submit, tried: set[int]) -> Choice | None:
        loads = self._loads(tried)
        return self._routes.choose(submit.prompt, submit.adapter, loads, time.monotonic())

    def _loads(self, tried: set[int]) -> list[Load | None]:
        loads: list[Load | None] = []
        for index, replica in enumerate(self.replicas):
            ready = replica.link.ready
            if ready is not None and ready is not replica.last_ready:
                self._routes.started(index, ready.ledger.num_blocks)
                replica.last_ready = ready
            loads.append(None if index in tried else replica.load())
        return loads

    async def _submit_to(self, choice: Choice, submit: Submit) -> AsyncGenerator[Delta, None]:
        replica, adapter = self.replicas[choice.replica], submit.adapter
        self._routes.remember(choice.replica, submit.prompt, adapter, time.monotonic())
        tokens = list(submit.prompt)
        with _Open(replica, submit.id, choice.uncached_tokens):
            async with aclosing(replica.link.submit(submit)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    replica.open[submit.id] = 0
                    if delta.index == 0:
                        tokens.extend(delta.tokens)
                    yield delta
        # The next turn of a conversation begins with this answer.
        self._routes.remember(choice.replica, tokens, adapter, time.monotonic())

    def _up(self) -> list[Replica]:
        up = [one for one in self.replicas if one.up]
        if not up:
            raise _nobody("adapter")
        return up


@dataclass(frozen=True, slots=True)
class _Open:
    """A request of this router is open at a replica."""

    replica: Replica
    request_id: str
    pending_tokens: int

    def __enter__(self) -> None:
        self.replica.open[self.request_id] = self.pending_tokens
        self.replica.idle.clear()

    def __exit__(self, *_: object) -> None:
        del self.replica.open[self.request_id]
        if not self.replica.open:
            self.replica.idle.set()


def _nobody(request_id: str) -> RequestRefused:
    text = "no engine is up; they are being started again, try in a moment"
    return RequestRefused(Refused(id=request_id, message=text, status=503))
