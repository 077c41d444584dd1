"""Several engines as one: requests go where they start soonest (`batching/routing.py`).

A replica that is down takes no new requests. A request that a replica refuses before its first
token because of the replica (down, queue full, adapter not there) goes to another; one that is cut
off later ends with the error, because what was streamed cannot be taken back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ridgeline.batching.routing import ReplicaLoad, Route, Routes
from ridgeline.serve.cluster.combined import combined_ready, combined_stats
from ridgeline.serve.cluster.slo_attainment import SloAttainment, TimedRequest
from ridgeline.serve.messages import Delta, Ready, Refused, Stats, Submit
from ridgeline.serve.process.client import Deliver, EngineLink, RequestRefused

SILENCE_SECONDS = 5.0
"""A replica without a heartbeat for so long, which comes twice a second, gets no new requests."""
ELSEWHERE = (404, 429, 503)
"""Refusals of one replica that say nothing about the others: adapter not there, full, down."""
_NO_BLOCKS = 1 << 16
"""Remembered of a replica that was not up when the router began."""


@dataclass(slots=True, eq=False)
class RoutedReplica:
    """One engine and what this router has sent there."""

    link: EngineLink
    open: dict[str, int] = field(default_factory=dict)
    """Uncached prompt tokens of each request until its first token came, then 0."""
    draining: bool = False
    """Whether it gets no new requests."""
    last_ready: Ready | None = None
    """What it said when it last came up, as far as the router has noticed."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing of this router is open there."""

    def __post_init__(self) -> None:
        self.idle.set()

    def begin(self, request_id: str, pending_tokens: int) -> None:
        """Note that a request is open there, with so many prompt tokens to compute."""
        self.open[request_id] = pending_tokens
        self.idle.clear()

    def end(self, request_id: str) -> None:
        """Note that a request is open there no longer."""
        del self.open[request_id]
        if not self.open:
            self.idle.set()

    @property
    def up(self) -> bool:
        """Whether its engine answers now."""
        return self.link.ready is not None and self.link.heartbeat_age_seconds < SILENCE_SECONDS

    @property
    def counts(self) -> bool:
        """Whether it speaks for the fleet: it takes requests, or has some open."""
        return not self.draining or bool(self.open)

    def load(self) -> ReplicaLoad | None:
        """What is known of its load; None: it gets no requests."""
        if not self.up or self.draining:
            return None
        stats = self.link.stats
        pending = sum(self.open.values())
        if stats is None:
            return ReplicaLoad(open=len(self.open), pending_tokens=pending)
        return ReplicaLoad(
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
        attainment: SloAttainment | None = None,
    ) -> None:
        self.replicas = [RoutedReplica(link) for link in links]
        self.attainment = attainment or SloAttainment()
        self._routes = Routes([_NO_BLOCKS] * len(links), block_size=block_size)
        self._past: list[Stats] = []
        """What replicas had counted that were ended: none, or one for all."""

    @property
    def ready(self) -> Ready | None:
        """What the replicas that are up say together; None while there is none."""
        all_ready = [one.link.ready for one in self.replicas if one.link.ready and one.counts]
        return combined_ready(all_ready) if all_ready else None

    @property
    def stats(self) -> Stats | None:
        """The last heartbeats of all together."""
        all_stats = [one.link.stats for one in self.replicas if one.link.stats and one.counts]
        return combined_stats(all_stats, self._past) if all_stats else None

    @property
    def heartbeat_age_seconds(self) -> float:
        """The age of the liveliest replica's heartbeat: one that answers is enough to serve."""
        return min(one.link.heartbeat_age_seconds for one in self.replicas)

    def send(
        self, submit: Submit, deliver: Deliver, went_to: Callable[[int], None] | None = None
    ) -> Callable[[], None]:
        """Send a request to the replica where it starts soonest; see `EngineLink.send`.

        Args:
            submit: The request.
            deliver: What is given its messages.
            went_to: What is told each replica that it is sent to, by number.
        """
        timed = self.attainment.begin(submit.id)
        request = _Routed(self, submit, deliver, timed, went_to)
        if not request.send():
            asyncio.get_running_loop().call_soon(request.give_up)
        return request.withdraw

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for any more; unknown ids are no error."""
        for replica in self.replicas:
            if request_id in replica.open:
                replica.link.abort(request_id)

    async def embed(
        self, prompts: tuple[tuple[int, ...], ...], adapter: str = ""
    ) -> tuple[tuple[float, ...], ...]:
        """One vector per prompt, by the model or an adapter of it. Raises RequestRefused."""
        name, tokens = f"embed-{id(prompts)}", sum(len(prompt) for prompt in prompts)
        refused: RequestRefused | None = None
        tried: set[int] = set()
        while choice := self._routes.choose((), adapter, self._loads(tried), time.monotonic()):
            tried.add(choice.replica)
            replica = self.replicas[choice.replica]
            replica.begin(name, tokens)
            try:
                return await replica.link.embed(prompts, adapter)
            except RequestRefused as error:
                if error.refusal.status not in ELSEWHERE:
                    raise
                refused = error
            finally:
                replica.end(name)
        raise refused or RequestRefused(_nobody("embed"))

    @property
    def adapters(self) -> dict[str, str]:
        """Paths of the adapters, by name, that every replica has, or is to have."""
        first, *others = [one.link.adapters for one in self.replicas]
        return {name: path for name, path in first.items() if all(name in one for one in others)}

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter on all replicas that are up, or on none; others get it when they start.

        Raises:
            RequestRefused: One refuses it.
        """
        done: list[RoutedReplica] = []
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
        """Unload an adapter on every replica. Raises the first RequestRefused, after trying all."""
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

    async def forget_prefixes(self) -> None:
        """Let every replica that is up forget; others come without. Raises RequestRefused."""
        for replica in self._up():
            await replica.link.forget_prefixes()

    def note_end(self, index: int) -> None:
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

    def choose(self, submit: Submit, tried: set[int]) -> Route | None:
        """The replica for a request, apart from those that were tried; None: there is none."""
        loads = self._loads(tried)
        return self._routes.choose(submit.prompt, submit.adapter, loads, time.monotonic())

    def remember(self, replica: int, tokens: Sequence[int], adapter: str) -> None:
        """Note down that a replica has the KV of these tokens, or soon will."""
        self._routes.remember(replica, tokens, adapter, time.monotonic())

    def _loads(self, tried: set[int]) -> list[ReplicaLoad | None]:
        loads: list[ReplicaLoad | None] = []
        for index, replica in enumerate(self.replicas):
            ready = replica.link.ready
            if ready is not None and ready is not replica.last_ready:
                self._routes.restart(index, ready.ledger.num_blocks)
                replica.last_ready = ready
            loads.append(None if index in tried else replica.load())
        return loads

    def _up(self) -> list[RoutedReplica]:
        up = [one for one in self.replicas if one.up]
        if not up:
            raise RequestRefused(_nobody("adapter"))
        return up


class _Routed:
    """A request on its way: sent to one replica after another, until one takes it."""

    def __init__(
        self,
        router: Router,
        submit: Submit,
        deliver: Deliver,
        timed: TimedRequest,
        went_to: Callable[[int], None] | None,
    ) -> None:
        self._router = router
        self._submit = submit
        self._deliver = deliver
        self._timed = timed
        self._went_to = went_to
        self._tokens = list(submit.prompt)
        """The prompt and the first completion, with which a next turn begins."""
        self._running = submit.n
        self._began = False
        self._refused: Refused | None = None
        self._tried: set[int] = set()
        self._at = 0
        """The replica that has it."""
        self._withdraw: Callable[[], None] | None = None

    def send(self) -> bool:
        """Send it to the best replica that was not tried; False: there is none."""
        choice = self._router.choose(self._submit, self._tried)
        if choice is None:
            return False
        self._at = choice.replica
        self._tried.add(self._at)
        if self._went_to is not None:
            self._went_to(self._at)
        self._router.remember(self._at, self._submit.prompt, self._submit.adapter)
        replica = self._router.replicas[self._at]
        replica.begin(self._submit.id, choice.uncached_tokens)
        self._withdraw = replica.link.send(self._submit, self._take)
        return True

    def give_up(self) -> None:
        """Tell the last refusal: no replica takes it."""
        self._timed.end()
        self._deliver(self._refused or _nobody(self._submit.id))

    def withdraw(self) -> None:
        """Withdraw what is unfinished."""
        withdraw = self._leave()
        if withdraw is not None:
            self._timed.end()
            withdraw()

    def _take(self, message: Delta | Refused) -> None:
        if isinstance(message, Refused):
            self._leave()
            if not self._began and message.status in ELSEWHERE:
                self._refused = message
                if self.send():
                    return
            self._timed.end()
            self._deliver(message)
            return
        self._began = True
        self._timed.note(message)
        self._router.replicas[self._at].open[self._submit.id] = 0
        if message.index == 0:
            self._tokens.extend(message.tokens)
        if message.finish_reason is not None:
            self._running -= 1
            if not self._running:
                self._leave()
                self._timed.end()
                # The next turn of a conversation begins with this completion.
                self._router.remember(self._at, self._tokens, self._submit.adapter)
        self._deliver(message)

    def _leave(self) -> Callable[[], None] | None:
        """Let go of the replica; returns what withdraws the request there, if it was there."""
        withdraw, self._withdraw = self._withdraw, None
        if withdraw is not None:
            self._router.replicas[self._at].end(self._submit.id)
        return withdraw


def _nobody(request_id: str) -> Refused:
    text = "no engine is up; they are being started again, try in a moment"
    return Refused(id=request_id, message=text, status=503)
