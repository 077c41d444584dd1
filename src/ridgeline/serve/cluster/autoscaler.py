"""An autoscaler that keeps as many replicas as a policy wants: processes come and go under load.

Every replica that there may be has a slot: a `Supervisor` whose client stands behind the router
from the beginning and answers only while its process is up. A slot goes

    stopped → starting → ready → draining → ending → stopped

A starting one takes requests when it has loaded. A draining one finishes what it has and is then
ended, so no request is lost; if replicas are wanted again meanwhile, it is the first to stay. A
start that fails is tried again after a delay that doubles, whichever slot it was: it is mostly the
machine that lacks something. A ready replica that dies is started again by its supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.batching.scaling.policies import Observation, Policy
from ridgeline.errors import RidgelineError
from ridgeline.serve.cluster.combined import FleetReport
from ridgeline.serve.cluster.router import Router
from ridgeline.serve.messages import Ready
from ridgeline.serve.process.supervisor import (
    FIRST_DELAY_SECONDS,
    FUTILE_STARTS,
    LONGEST_DELAY_SECONDS,
    EngineLost,
    Supervisor,
)

State = Literal["stopped", "starting", "ready", "draining", "ending"]

log = logging.getLogger("ridgeline.serve")


@dataclass(slots=True, eq=False)
class ReplicaSlot:
    """One replica that may be."""

    index: int
    supervisor: Supervisor
    state: State = "stopped"
    began: float = 0.0
    """When its process was started."""
    task: asyncio.Task[None] | None = None
    """What brings it up or down."""
    watch: asyncio.Task[None] | None = None
    """What starts it again."""


@dataclass(slots=True)
class Autoscaler:
    """Runs a policy against local replicas. Its engines stand behind `router`, slot by slot."""

    supervisors: Sequence[Supervisor]
    router: Router
    policy: Policy
    first: int
    """Replicas to begin with."""
    clock: Callable[[], float] = time.monotonic
    slots: list[ReplicaSlot] = field(init=False)
    _desired: int = field(default=0, init=False)
    _spent_seconds: float = field(default=0.0, init=False)
    """Seconds that processes which have gone existed."""
    _startup_seconds: float | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _last_failure: str = field(default="", init=False)
    _not_before: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.slots = [ReplicaSlot(index, one) for index, one in enumerate(self.supervisors)]
        for replica in self.router.replicas:
            replica.draining = True  # until it has been started
        self._desired = self.first

    async def start(self) -> Ready:
        """Bring up the first replicas.

        Raises:
            InputError: The configuration cannot be served.
            RidgelineError: A replica does not start.
        """
        tasks = [self._begin(slot, self._bring_up) for slot in self.slots[: self.first]]
        await asyncio.gather(*tasks)
        ready = self.slots[0].supervisor.client.ready
        if ready is None:
            raise EngineLost("the first replica ended while others were starting")
        return ready

    async def watch(self) -> None:
        """Follow the policy until cancelled.

        Raises:
            EngineLost: No replica is left, and several starts in a row have failed.
        """
        while True:
            await asyncio.sleep(self.policy.every_seconds)
            self._reap_lost()
            now = self.clock()
            observation = self.observation()
            wanted = self.policy.desired(observation, now)
            if wanted != self._desired:
                fields = {"from": self._desired, "to": wanted, **_seen(observation)}
                log.info("scaling", extra={"fields": fields})
            self._desired = wanted
            self._follow(wanted, now)

    async def stop(self) -> None:
        """End all replicas and the tasks around them."""
        tasks = [task for slot in self.slots for task in (slot.task, slot.watch) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in self.supervisors))

    def report(self) -> FleetReport:
        """What is said of the fleet now."""
        now = self.clock()
        live = sum(now - slot.began for slot in self.slots if slot.state != "stopped")
        return FleetReport(
            desired=self._desired,
            ready=sum(self._takes(slot) for slot in self.slots),
            starting=sum(self._starts(slot) for slot in self.slots),
            draining=sum(slot.state in ("draining", "ending") for slot in self.slots),
            replica_seconds=self._spent_seconds + live,
            startup_seconds=self._startup_seconds,
        )

    def observation(self) -> Observation:
        """What the policy is told."""
        taking = [slot for slot in self.slots if self._takes(slot)]
        replicas = [self.router.replicas[slot.index] for slot in taking]
        stats = [one.link.stats for one in replicas if one.link.stats is not None]
        busy = sum(len(one.open) for one in replicas)
        # What waits is known from heartbeats, half a second old; what is open is known exactly.
        waiting = min(busy, sum(one.waiting for one in stats))
        counts = self.router.attainment
        return Observation(
            waiting=waiting,
            running=busy - waiting,
            kv_usage=sum(one.cache_usage for one in stats) / len(stats) if stats else 0.0,
            ready=len(taking),
            starting=sum(self._starts(slot) for slot in self.slots),
            first_tokens=counts.first_tokens,
            late_first_tokens=counts.late_first_tokens,
            overdue=counts.overdue(),
            next_tokens=counts.next_tokens,
            late_next_tokens=counts.late_next_tokens,
        )

    def _takes(self, slot: ReplicaSlot) -> bool:
        return slot.state == "ready" and self.router.replicas[slot.index].up

    def _starts(self, slot: ReplicaSlot) -> bool:
        """Also a replica that died and is started again by its supervisor."""
        return slot.state == "starting" or (slot.state == "ready" and not self._takes(slot))

    def _follow(self, wanted: int, now: float) -> None:
        """Start or drain as many as it takes."""
        there = [slot for slot in self.slots if slot.state in ("starting", "ready")]
        for _ in range(wanted - len(there)):
            if not self._add(now):
                break
        surplus = sorted(there, key=self._worth)[: max(0, len(there) - wanted)]
        for slot in surplus:
            self._remove(slot)

    def _worth(self, slot: ReplicaSlot) -> tuple[bool, int]:
        """The least goes first: who does not serve yet, then who has the fewest requests open."""
        return self._takes(slot), len(self.router.replicas[slot.index].open)

    def _add(self, now: float) -> bool:
        """Let a draining replica stay, or start a stopped one; False: neither is possible now."""
        for slot in self.slots:
            if slot.state == "draining":
                assert slot.task is not None
                slot.task.cancel()
                slot.state = "ready"
                self.router.resume(slot.index)
                _say("replica stays", slot)
                return True
        if now < self._not_before:
            return False
        for slot in self.slots:
            if slot.state == "stopped":
                self._begin(slot, self._try_to_bring_up)
                return True
        return False

    def _begin(
        self, slot: ReplicaSlot, bring_up: Callable[[ReplicaSlot], Coroutine[None, None, None]]
    ) -> asyncio.Task[None]:
        slot.state, slot.began = "starting", self.clock()
        slot.task = asyncio.create_task(bring_up(slot))
        return slot.task

    def _remove(self, slot: ReplicaSlot) -> None:
        if slot.task is not None:
            slot.task.cancel()
        slot.state = "draining"
        slot.task = asyncio.create_task(self._bring_down(slot))

    async def _try_to_bring_up(self, slot: ReplicaSlot) -> None:
        """Start a replica like `_bring_up`, but wait a failure out."""
        try:
            await self._bring_up(slot)
        except RidgelineError as error:
            await self._end(slot)
            self._note_failure(slot, str(error))

    async def _bring_up(self, slot: ReplicaSlot) -> None:
        _say("replica starts", slot)
        await slot.supervisor.start()
        self.router.resume(slot.index)
        slot.state = "ready"
        slot.watch = asyncio.create_task(slot.supervisor.watch())
        self._startup_seconds = self.clock() - slot.began
        self._failures = 0
        seconds = round(self._startup_seconds, 3)
        _say("replica ready", slot, pid=slot.supervisor.pid, seconds=seconds)

    async def _bring_down(self, slot: ReplicaSlot) -> None:
        began = self.clock()
        _say("replica drains", slot, open_requests=len(self.router.replicas[slot.index].open))
        await self.router.drain(slot.index)
        slot.state = "ending"
        self.router.note_end(slot.index)
        await self._end(slot)
        _say("replica ended", slot, drained_seconds=round(self.clock() - began, 3))

    async def _end(self, slot: ReplicaSlot) -> None:
        """End a replica's process."""
        watch, slot.watch = slot.watch, None
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError, RidgelineError):
                await watch
        self.router.replicas[slot.index].draining = True
        await slot.supervisor.stop()
        self._spent_seconds += self.clock() - slot.began
        slot.state = "stopped"

    def _reap_lost(self) -> None:
        """Slots whose supervisor has given up."""
        for slot in self.slots:
            if slot.state == "ready" and slot.watch is not None and slot.watch.done():
                error = slot.watch.exception()
                slot.watch = None
                slot.state = "draining"
                slot.task = asyncio.create_task(self._bring_down(slot))
                self._note_failure(slot, str(error))
        if self._failures >= FUTILE_STARTS and not any(map(self._takes, self.slots)):
            raise EngineLost(f"no replica is left, and none starts: {self._last_failure}")

    def _note_failure(self, slot: ReplicaSlot, why: str) -> None:
        delay = min(FIRST_DELAY_SECONDS * 2**self._failures, LONGEST_DELAY_SECONDS)
        self._failures += 1
        self._last_failure = why
        self._not_before = self.clock() + delay
        _say("replica failed", slot, logging.WARNING, why=why, next_start_seconds=delay)


def _say(event: str, slot: ReplicaSlot, level: int = logging.INFO, **more: object) -> None:
    fields = {"replica": slot.index, **more}
    log.log(level, event, extra={"fields": fields})


def _seen(observation: Observation) -> dict[str, object]:
    return {
        "waiting": observation.waiting,
        "running": observation.running,
        "kv_usage": round(observation.kv_usage, 3),
        "ready": observation.ready,
        "starting": observation.starting,
        "overdue": observation.overdue,
    }
