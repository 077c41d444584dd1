"""Prefill and decode on engines of their own (Zhong et al., "DistServe", 2401.09670).

A prompt in the same engine delays the running decodes by its computation. Apart, prompts go to
engines that do nothing else; with the first token the keys and values move to an engine that
decodes. Requests with several completions or beams share their prompt's blocks, so a decoding
engine computes them whole.

There may be several of each. A prompt goes to the prefilling engine where it starts soonest
(`router.py`), its KV to the decoding one with room for it that has the fewest requests. Whoever
refuses, or ends, before it has brought anything is replaced by the next one of its kind; a request
whose engine ends later ends with the error, because what was streamed cannot be taken back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from ridgeline.serve.cluster.combined import combined_ready, combined_stats
from ridgeline.serve.cluster.router import ELSEWHERE, Router
from ridgeline.serve.messages import (
    Delta,
    Exported,
    ExportKV,
    ImportKV,
    Ready,
    Refused,
    Stats,
    Submit,
)
from ridgeline.serve.process.client import Deliver, EngineLink, RequestRefused

KV_ENGINE = "ridgeline.serve.cluster.kv_engine:engine"
"""What the engines' processes host: `Supervisor(config, factory=KV_ENGINE)`."""


class KvLink(EngineLink, Protocol):
    """An `EngineLink` to an `KvTransferEngine`."""

    def send(self, submit: Submit | ImportKV, deliver: Deliver) -> Callable[[], None]:
        """Send a request, whose messages `deliver` is given; returns what withdraws it."""

    async def export_kv(self, message: ExportKV) -> Exported:
        """Where another engine finds the KV of a prefilled request."""

    def release_kv(self, request_id: str) -> None:
        """Let go of KV that nobody fetches any more."""


class Disaggregated:
    """An `EngineLink` over engines of two kinds."""

    def __init__(
        self,
        prefill: Sequence[KvLink],
        decode: Sequence[KvLink],
        *,
        over: Literal["memory", "tcp"] = "memory",
        listen: str = "127.0.0.1",
        block_size: int = 16,
    ) -> None:
        """Join engines into one.

        Args:
            prefill: Compute prompts and the first token.
            decode: Compute the rest.
            over: How KV gets from one to the other.
            listen: tcp: the prefilling machine's address, as the decoding one reaches it; an
                engine of another host knows better (`node.py`).
            block_size: Tokens of a KV block.
        """
        self.prefill = Router(prefill, block_size=block_size)
        self.decode = Router(decode, block_size=block_size)
        self.over: Literal["memory", "tcp"] = over
        self.listen = listen
        self._prefill_links = tuple(prefill)
        self._decode_links = tuple(decode)
        self._moved: dict[str, tuple[int, int]] = {}
        """Of requests that were handed over: where they are, and the tokens that came along."""

    @property
    def ready(self) -> Ready | None:
        """What both kinds say together; None unless one of each is up."""
        both = [router.ready for router in (self.prefill, self.decode)]
        up = [ready for ready in both if ready is not None]
        return combined_ready(up) if len(up) == len(both) else None

    @property
    def stats(self) -> Stats | None:
        """The last heartbeats of all together."""
        both = [router.stats for router in (self.prefill, self.decode)]
        known = [stats for stats in both if stats is not None]
        return combined_stats(known) if len(known) == len(both) else None

    @property
    def heartbeat_age_seconds(self) -> float:
        """The age of the older heartbeat, since both kinds are needed."""
        return max(self.prefill.heartbeat_age_seconds, self.decode.heartbeat_age_seconds)

    def send(self, submit: Submit, deliver: Deliver) -> Callable[[], None]:
        """Send a request to one engine after the other; see `EngineLink.send`."""
        if submit.n > 1 or submit.sampling.beams:
            return self.decode.send(submit, deliver)
        return _InTwo(self, submit, deliver).withdraw

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for any more; unknown ids are no error."""
        self.prefill.abort(request_id)
        self.decode.abort(request_id)

    async def embed(
        self, prompts: tuple[tuple[int, ...], ...], adapter: str = ""
    ) -> tuple[tuple[float, ...], ...]:
        """One vector per prompt: prompts are a prefilling engine's. Raises RequestRefused."""
        return await self.prefill.embed(prompts, adapter)

    @property
    def adapters(self) -> dict[str, str]:
        """Paths of the adapters, by name, that all have, or are to have."""
        return {
            name: path
            for name, path in self.decode.adapters.items()
            if name in self.prefill.adapters
        }

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter everywhere, or nowhere. Raises RequestRefused."""
        await self.prefill.load_adapter(name, path)
        try:
            await self.decode.load_adapter(name, path)
        except RequestRefused:
            await self.prefill.unload_adapter(name)
            raise

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter everywhere, first where decoding uses it. Raises RequestRefused."""
        await self.decode.unload_adapter(name)
        await self.prefill.unload_adapter(name)

    async def forget_prefixes(self) -> None:
        """Let all engines forget. Raises RequestRefused."""
        await self.prefill.forget_prefixes()
        await self.decode.forget_prefixes()

    def roomiest(self, tokens: int, tried: set[int]) -> int | None:
        """The decoding engine for KV of so many tokens; None: none takes requests.

        Those with room come first, of these the one with the fewest requests, and where none has
        room the emptiest: it waits there until there is some.
        """
        best: tuple[bool, int, float, int] | None = None
        for index, replica in enumerate(self.decode.replicas):
            load, ready = replica.load(), replica.link.ready
            if index in tried or load is None or ready is None:
                continue
            blocks, size = ready.ledger.num_blocks, ready.ledger.block_size
            held = [-(-others // size) for at, others in self._moved.values() if at == index]
            # The heartbeat does not know yet what was sent since.
            used = max(load.cache_usage * blocks, sum(held))
            full = used - (-tokens // size) > blocks
            of_equals = used / blocks
            choice = (full, 0 if full else load.open, of_equals, index)
            best = choice if best is None else min(best, choice)
        return None if best is None else best[-1]


class _InTwo:
    """A request that one engine prefills and another one goes on with."""

    def __init__(self, engines: Disaggregated, submit: Submit, deliver: Deliver) -> None:
        self._engines = engines
        self._submit = submit
        self._deliver = deliver
        self._first: Delta | None = None
        """What came with the first token, once that is not the last."""
        self._first_at = 0.0
        self._exporting: asyncio.Task[None] | None = None
        self._address = ""
        self._at = 0
        """The prefilling engine that has it, or had."""
        self._tried: set[int] = set()
        """Decoding engines that it was sent to; the last of them has it."""
        self._released = False
        """Whether the prefilling engine has nothing of it any more."""
        request = msgspec.structs.replace(submit, handover=True)
        self._withdraw = engines.prefill.send(request, self._prefilled, self._went_to)

    def withdraw(self) -> None:
        """Withdraw what is unfinished, wherever it is."""
        if self._exporting is not None:
            self._exporting.cancel()
        self._withdraw()
        self._end()

    def _went_to(self, replica: int) -> None:
        self._at = replica

    def _prefilled(self, message: Delta | Refused) -> None:
        if isinstance(message, Refused) or message.finish_reason != "handover":
            self._deliver(message)  # it may have ended with its first token
            return
        self._first, self._first_at = message, time.monotonic()
        self._deliver(_not_the_last(message))
        self._exporting = asyncio.create_task(self._hand_over())

    async def _hand_over(self) -> None:
        engines = self._engines
        asked = ExportKV(id=self._submit.id, over=engines.over, listen=engines.listen)
        try:
            exported = await engines._prefill_links[self._at].export_kv(asked)
        except RequestRefused as refused:
            self._refuse(refused.refusal)
            return
        self._address = exported.address
        if not self._send_on():
            text = "no engine that decodes is up; try again in a moment"
            self._refuse(Refused(id=self._submit.id, message=text, status=503))

    def _send_on(self) -> bool:
        """Send it to the best decoding engine that was not tried; False: there is none."""
        engines, request_id = self._engines, self._submit.id
        tokens = len(self._submit.prompt) + 1
        chosen = engines.roomiest(tokens, self._tried)
        if chosen is None:
            return False
        self._tried.add(chosen)
        engines._moved[request_id] = (chosen, tokens)
        engines.decode.replicas[chosen].begin(request_id, 0)
        taken = ImportKV(id=request_id, submit=self._submit, address=self._address)
        self._withdraw = engines._decode_links[chosen].send(taken, self._decoded)
        return True

    def _decoded(self, message: Delta | Refused) -> None:
        if isinstance(message, Refused):
            self._leave()
            again = not self._released and message.status in ELSEWHERE
            # Without the engine that holds its KV nobody can go on with it.
            if again and self._engines.prefill.replicas[self._at].up and self._send_on():
                return
            self._refuse(message)
            return
        if not self._released:
            self._engines._prefill_links[self._at].release_kv(self._submit.id)
            self._released = True
        if message.finish_reason is not None:
            self._leave()
            assert self._first is not None
            message = _whole(self._first, message, self._first_at)
        self._deliver(message)

    def _refuse(self, refusal: Refused) -> None:
        self._end()
        self._deliver(refusal)

    def _leave(self) -> None:
        """Let go of the decoding engine, where it is at one."""
        where = self._engines._moved.pop(self._submit.id, None)
        if where is not None:
            self._engines.decode.replicas[where[0]].end(self._submit.id)

    def _end(self) -> None:
        """Free what no decoding engine has fetched, and the place at the one that has."""
        self._leave()
        if self._first is not None and not self._released:
            self._released = True
            self._engines._prefill_links[self._at].abort(self._submit.id)


def _not_the_last(delta: Delta) -> Delta:
    """A Delta without what only a completion's last one says."""
    return msgspec.structs.replace(
        delta, finish_reason=None, prompt_tokens=0, cached_tokens=0, output_tokens=0, times=None
    )


def _whole(first: Delta, last: Delta, began: float) -> Delta:
    """A completion's last Delta, with what the prefilling engine knows of it.

    The engines' clocks may differ, so the end is the first token plus the time that passed here.
    """
    times = first.times
    if times is not None and times.first_token is not None:
        finished = times.first_token + time.monotonic() - began
        times = msgspec.structs.replace(times, finished=finished)
    return msgspec.structs.replace(
        last,
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        num_preemptions=first.num_preemptions + last.num_preemptions,
        wasted_tokens=first.wasted_tokens + last.wasted_tokens,
        times=times,
    )
