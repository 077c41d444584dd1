"""Prefill and decode on engines of their own (Zhong et al., "DistServe", 2401.09670).

A prompt in the same engine delays the running decodes by its computation. Apart, prompts go to an
engine that does nothing else; with the first token the keys and values move to the engine that
decodes. Requests with several completions or beams share their prompt's blocks, so the decoding
engine computes them whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from ridgeline.serve.cluster.combined import combined_ready, combined_stats
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
"""What the two engines' processes host: `Supervisor(config, factory=KV_ENGINE)`."""


class KvLink(EngineLink, Protocol):
    """An `EngineLink` to an `KvTransferEngine`."""

    def send(self, submit: Submit | ImportKV, deliver: Deliver) -> Callable[[], None]:
        """Send a request, whose messages `deliver` is given; returns what withdraws it."""

    async def export_kv(self, message: ExportKV) -> Exported:
        """Where another engine finds the KV of a prefilled request."""

    def release_kv(self, request_id: str) -> None:
        """Let go of KV that nobody fetches any more."""


class Disaggregated:
    """An `EngineLink` over two engines."""

    def __init__(
        self,
        prefill: KvLink,
        decode: KvLink,
        *,
        over: Literal["memory", "tcp"] = "memory",
        listen: str = "127.0.0.1",
    ) -> None:
        """Join two engines into one.

        Args:
            prefill: Computes prompts and the first token.
            decode: Computes the rest.
            over: How KV gets from one to the other.
            listen: tcp: the prefilling machine's address, as the decoding one reaches it.
        """
        self.prefill = prefill
        self.decode = decode
        self.over: Literal["memory", "tcp"] = over
        self.listen = listen

    @property
    def ready(self) -> Ready | None:
        """What both say together; None unless both are up."""
        both = [link.ready for link in (self.prefill, self.decode)]
        up = [ready for ready in both if ready is not None]
        return combined_ready(up) if len(up) == len(both) else None

    @property
    def stats(self) -> Stats | None:
        """The last heartbeats of both together."""
        both = [link.stats for link in (self.prefill, self.decode)]
        known = [stats for stats in both if stats is not None]
        return combined_stats(known) if len(known) == len(both) else None

    @property
    def heartbeat_age_seconds(self) -> float:
        """The age of the older heartbeat, since both engines are needed."""
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
        """One vector per prompt: prompts are the prefilling engine's. Raises RequestRefused."""
        return await self.prefill.embed(prompts, adapter)

    @property
    def adapters(self) -> dict[str, str]:
        """Paths of the adapters, by name, that both have, or are to have."""
        return self.decode.adapters

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter on both, or on none. Raises RequestRefused."""
        await self.prefill.load_adapter(name, path)
        try:
            await self.decode.load_adapter(name, path)
        except RequestRefused:
            await self.prefill.unload_adapter(name)
            raise

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter from both, first where decoding uses it. Raises RequestRefused."""
        await self.decode.unload_adapter(name)
        await self.prefill.unload_adapter(name)

    async def forget_prefixes(self) -> None:
        """Let both engines forget. Raises RequestRefused."""
        await self.prefill.forget_prefixes()
        await self.decode.forget_prefixes()


class _InTwo:
    """A request that one engine prefills and the other one goes on with."""

    def __init__(self, engines: Disaggregated, submit: Submit, deliver: Deliver) -> None:
        self._engines = engines
        self._submit = submit
        self._deliver = deliver
        self._first: Delta | None = None
        """What came with the first token, once that is not the last."""
        self._first_at = 0.0
        self._exporting: asyncio.Task[None] | None = None
        self._released = False
        """Whether the prefilling engine has nothing of it any more."""
        request = msgspec.structs.replace(submit, handover=True)
        self._withdraw = engines.prefill.send(request, self._prefilled)

    def withdraw(self) -> None:
        """Withdraw what is unfinished, wherever it is."""
        if self._exporting is not None:
            self._exporting.cancel()
        self._withdraw()
        self._release()

    def _prefilled(self, message: Delta | Refused) -> None:
        if isinstance(message, Refused) or message.finish_reason != "handover":
            self._deliver(message)  # it may have ended with its first token
            return
        self._first, self._first_at = message, time.monotonic()
        self._deliver(_not_the_last(message))
        self._exporting = asyncio.create_task(self._hand_over())

    async def _hand_over(self) -> None:
        engines, request_id = self._engines, self._submit.id
        asked = ExportKV(id=request_id, over=engines.over, listen=engines.listen)
        try:
            exported = await engines.prefill.export_kv(asked)
        except RequestRefused as refused:
            self._release()
            self._deliver(refused.refusal)
            return
        taken = ImportKV(id=request_id, submit=self._submit, address=exported.address)
        self._withdraw = engines.decode.send(taken, self._decoded)

    def _decoded(self, message: Delta | Refused) -> None:
        if isinstance(message, Refused):
            self._release()
        else:
            if not self._released:
                self._engines.prefill.release_kv(self._submit.id)
                self._released = True
            if message.finish_reason is not None:
                assert self._first is not None
                message = _whole(self._first, message, self._first_at)
        self._deliver(message)

    def _release(self) -> None:
        """Free what the decoding engine has not fetched."""
        if self._first is not None and not self._released:
            self._released = True
            self._engines.prefill.abort(self._submit.id)


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
