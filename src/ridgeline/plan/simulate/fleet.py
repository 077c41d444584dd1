"""Requests on their way through a simulated fleet, in the order of time.

Two kinds of events: what comes from outside of the replicas (a request, a replica that has loaded,
a look of the autoscaler, a prompt that was handed over), and the end of a replica's step. A replica
may run ahead of the others as long as nothing from outside can reach it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.load.stamps import CANCELLED, RequestStamps, RunStamps
from ridgeline.batching.load.workload import Planned
from ridgeline.batching.policies import QueueFull, Refusal
from ridgeline.batching.routing import ReplicaLoad, Routes
from ridgeline.batching.scaling.policies import Policy
from ridgeline.batching.scaling.settings import policy_of
from ridgeline.batching.sequence import FinishReason, Sequence
from ridgeline.plan.simulate.deployment import Setup
from ridgeline.plan.simulate.prompts import Prompts
from ridgeline.plan.simulate.replica import Replica
from ridgeline.plan.simulate.slots import Counts, Slot, Slots

Event = Callable[[float], None]


@dataclass(slots=True, kw_only=True)
class Simulation:
    """What came of a run."""

    run: RunStamps
    steps: int
    """Steps of all engines together."""
    replica_seconds: float
    most_replicas: int
    replicas: list[tuple[float, int]]
    """When their number changed, and to what."""
    preemptions: int


@dataclass(slots=True, eq=False)
class _FleetRequest:
    """A request in the fleet."""

    number: int
    planned: Planned
    exchange: RequestStamps
    slot: Slot | None = None


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The simulation of one run, request by request."""

    setup: Setup
    requests: Iterator[Planned]
    concurrency: int | None
    """Places of a closed loop; None: open loop."""
    seconds: float
    """At which a closed loop ends."""
    prefix_tokens: int
    bulk: bool = True
    on_progress: Callable[[int], None] = lambda _: None
    """Told now and then how many requests were sent."""
    result: RunStamps = field(default_factory=RunStamps)
    _outside: list[tuple[float, int, Event]] = field(default_factory=list)
    _ends: list[tuple[float, int, Slot, Replica]] = field(default_factory=list)
    _order: int = 0
    _under_way: dict[Sequence, _FleetRequest] = field(default_factory=dict)
    _backlog: list[_FleetRequest] = field(default_factory=list)
    """Came while no replica took requests."""
    _sent: int = 0
    _turn: int = 0
    _slots: Slots = field(init=False)
    _routes: Routes = field(init=False)
    _prompts: Prompts = field(init=False)
    _counts: Counts = field(init=False)
    _policy: Policy | None = None
    _open: int = 0

    def __post_init__(self) -> None:
        setup, asked = self.setup, self.setup.deployment
        count = asked.replicas if setup.scaling is None else setup.scaling.maximum
        self._slots = Slots([Slot(i) for i in range(count)], self._engine, asked.startup_seconds)
        blocks = [setup.engine_of(index).kv_blocks for index in range(count)]
        self._routes = Routes(blocks, block_size=asked.block_size)
        self._prompts = Prompts(
            block_size=asked.block_size,
            prefix_tokens=self.prefix_tokens,
            named=setup.named or count > 1,
        )
        self._counts = Counts(setup.scaling)
        for slot in self._slots.slots[: asked.replicas]:
            self._slots.start(slot, 0.0)
            self._slots.mark_ready(slot)
        if setup.scaling is not None:
            self._policy = setup.policy() if setup.policy else policy_of(setup.scaling)

    def simulate(self) -> Simulation:
        """Run to the last completion, or until Ctrl-C."""
        if self.concurrency is None:
            self._next_request()
        else:
            for _ in range(self.concurrency):
                self._next_of_place(0.0)
        if self._policy is not None:
            self._at(self._policy.every_seconds, self._look)
        now = 0.0
        try:
            while self._outside or self._ends:
                now = self._next_event()
        except KeyboardInterrupt:
            self._interrupt(now)
        self._slots.finish(now)
        return Simulation(
            run=self.result,
            steps=self._slots.steps,
            replica_seconds=self._slots.replica_seconds,
            most_replicas=self._slots.most,
            replicas=self._slots.changes,
            preemptions=self._slots.preemptions,
        )

    def _next_event(self) -> float:
        outside, ends = self._outside, self._ends
        if outside and (not ends or outside[0][0] <= ends[0][0]):
            now, _, event = heappop(outside)
            event(now)
            return now
        now, _, slot, replica = heappop(ends)
        if replica.ends != now:  # it waited for a batch to fill, and somebody came before
            return now
        free_at = replica.end()
        if slot.replica is replica:
            self._begin(slot, replica, free_at)
            self._slots.end_if_drained(slot, now)
        return now

    def _at(self, at: float, event: Event) -> None:
        self._order += 1
        heappush(self._outside, (at, self._order, event))

    def _begin(self, slot: Slot, replica: Replica, now: float) -> None:
        if replica.ends is not None:
            return
        horizon = self._outside[0][0] if self._outside else math.inf
        if (self.concurrency is not None or self.setup.deployment.prefill_replicas) and self._ends:
            horizon = min(horizon, self._ends[0][0])  # an end elsewhere may send someone here
        ends = replica.begin(now, horizon)
        if ends is not None:
            self._order += 1
            heappush(self._ends, (ends, self._order, slot, replica))

    # Requests.

    def _next_request(self) -> None:
        planned = next(self.requests, None)
        if planned is not None:
            assert planned.at_seconds is not None, "an open loop has times"
            self._send(planned, planned.at_seconds)

    def _next_of_place(self, now: float) -> None:
        if now < self.seconds and (planned := next(self.requests, None)) is not None:
            self._send(planned, now)

    def _send(self, planned: Planned, at: float) -> None:
        number, self._sent = self._sent, self._sent + 1
        exchange = RequestStamps(planned=at, sent=at, prompt_tokens=planned.input_tokens)
        request = _FleetRequest(number, planned, exchange)

        def arrive(now: float) -> None:
            self.result.exchanges.append(exchange)
            self.result.sent_seconds = max(self.result.sent_seconds, at)
            self._open += 1
            self._counts.without[request.number] = now
            self._route(request, now)
            if self.concurrency is None:
                self._next_request()
            if len(self.result.exchanges) % 5000 == 0:
                self.on_progress(len(self.result.exchanges))

        self._at(at + self.setup.time.request_seconds, arrive)

    def _route(self, request: _FleetRequest, now: float) -> None:
        split = self.setup.deployment.prefill_replicas
        allowed = [one for one in self._slots.ready if not split or one.index < split]
        if not allowed:
            self._backlog.append(request)
            return
        sequence = self._prompts.make(request.planned, now, prefill_only=bool(split))
        slot, uncached = self._choose(sequence, allowed, now)
        assert slot.replica is not None
        try:
            slot.replica.add(sequence, request.exchange, now)
        except Refusal as error:
            status = 429 if isinstance(error, QueueFull) else 400
            self._fail(request, f"status {status}: {error}", now)
            return
        request.slot = slot
        slot.pending[request.number] = uncached
        self._under_way[sequence] = request
        if slot.replica.waits:
            slot.replica.look_again()
        self._begin(slot, slot.replica, now)

    def _choose(self, sequence: Sequence, allowed: list[Slot], now: float) -> tuple[Slot, int]:
        """The replica for a request, and how many tokens of its prompt that has to compute."""
        tokens = len(sequence.request.prompt)
        if len(allowed) == 1:
            return allowed[0], tokens
        router = self.setup.deployment.router
        if router == "round-robin":
            self._turn += 1
            return allowed[self._turn % len(allowed)], tokens
        if router == "least-open":
            return min(allowed, key=_open_requests), tokens
        loads: list[ReplicaLoad | None] = [None] * len(self._slots.slots)
        for slot in allowed:
            assert slot.replica is not None
            loads[slot.index] = ReplicaLoad(
                open=len(slot.replica.open),
                pending_tokens=sum(slot.pending.values()),
                cache_usage=slot.replica.cache.usage,
            )
        chain = sequence.hashes[: tokens // self.setup.deployment.block_size]
        choice = self._routes.cheapest(chain, tokens, "", loads, now)
        assert choice is not None, "some replica is ready"
        self._routes.remember_blocks(choice.replica, chain, now)
        return self._slots.slots[choice.replica], choice.uncached_tokens

    def _fail(self, request: _FleetRequest, why: str, now: float) -> None:
        request.exchange.error, request.exchange.ended = why[:200], now
        self._counts.without.pop(request.number, None)
        self._over(now)

    def _over(self, now: float) -> None:
        self._open -= 1
        if self.concurrency is not None:
            self._next_of_place(now)

    # What replicas tell.

    def _engine(self, index: int) -> Replica:
        setup, asked = self.setup, self.setup.deployment
        engine = setup.engine_of(index)
        return Replica(
            time=engine.time,
            limits=setup.limits_of(index),
            cache=BlockCache(
                engine.kv_blocks,
                asked.block_size,
                prefix=asked.prefix_cache and setup.named,
                kept=asked.kept,
            ),
            drafting=asked.drafting(setup.seed),
            on_first_token=self._first_token,
            on_end=self._end,
            on_gap=self._counts.further if setup.scaling is not None else None,
            paced=setup.paced,
            bulk=self.bulk,
        )

    def _first_token(self, sequence: Sequence, now: float) -> None:
        request = self._under_way[sequence]
        if request.slot is not None:
            request.slot.pending.pop(request.number, None)
        self._counts.first(request.number, now)

    def _end(self, sequence: Sequence, now: float) -> None:
        request = self._under_way.pop(sequence)
        exchange = request.exchange
        if sequence.finish_reason is FinishReason.HANDOVER:
            exchange.cached_tokens = sequence.cached_tokens
            moved = len(sequence.tokens) * self.setup.kv_bytes_per_token
            seconds = moved / (self.setup.deployment.link_gigabytes_per_second * 1e9)
            self._at(now + seconds, lambda at: self._hand_over(request, sequence, at))
            return
        exchange.cached_tokens = max(exchange.cached_tokens, sequence.cached_tokens)
        exchange.output_tokens = sequence.num_generated
        exchange.finish_reason = "length"
        exchange.ended = now
        self._over(now)

    def _hand_over(self, request: _FleetRequest, prefilled: Sequence, now: float) -> None:
        """Keys and values have come: the rest is decoded where the fewest are."""
        split = self.setup.deployment.prefill_replicas
        slot = min(self._slots.slots[split:], key=_open_requests)
        assert slot.replica is not None
        whole = self._prompts.rest_of(prefilled)
        request.slot = slot
        self._under_way[whole] = request
        slot.replica.adopt(whole, request.exchange)
        self._begin(slot, slot.replica, now)

    # Scaling.

    def _look(self, now: float) -> None:
        """The autoscaler looks and acts; as long as anything is to come."""
        assert self._policy is not None
        if not (self._open or self._outside):
            return
        observation = self._slots.observation(self._counts, now, len(self._backlog))
        for slot in self._slots.follow(self._policy.desired(observation, now), now):
            self._load(slot, now)
        self._at(now + self._policy.every_seconds, self._look)

    def _load(self, slot: Slot, began: float) -> None:
        def ready(now: float) -> None:
            if slot.state != "starting" or slot.began != began:
                return  # it was not wanted any more
            self._slots.mark_ready(slot)
            self._routes.restart(slot.index, self.setup.kv_blocks)
            waiting, self._backlog = self._backlog, []
            for request in waiting:
                self._route(request, now)

        self._at(began + self._slots.startup_seconds, ready)

    def _interrupt(self, now: float) -> None:
        self.result.interrupted = True
        for exchange in self.result.exchanges:
            if not exchange.ended:
                exchange.error, exchange.ended = CANCELLED, now


def _open_requests(slot: Slot) -> int:
    return len(slot.replica.open) if slot.replica is not None else 0
