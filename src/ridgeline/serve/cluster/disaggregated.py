"""Prefill and decode on engines of their own (Zhong et al., "DistServe", 2401.09670).

A prompt in the same engine delays the running decodes by its computation. Apart, prompts go to an
engine that does nothing else; with the first token the keys and values move to the engine that
decodes. Requests with several answers or beams share their prompt's blocks, so the decoding engine
computes them whole.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Literal, Protocol

import msgspec

from ridgeline.serve.cluster.combined import combined_ready, combined_stats
from ridgeline.serve.messages import Delta, Exported, ExportKV, ImportKV, Ready, Stats, Submit
from ridgeline.serve.process.client import EngineLink, RequestRefused

EXCHANGE = "ridgeline.serve.cluster.exchange:engine"
"""What the two engines' processes host: `Supervisor(config, factory=EXCHANGE)`."""


class KvLink(EngineLink, Protocol):
    """An `EngineLink` to an `Exchange`."""

    def submit(self, submit: Submit | ImportKV) -> AsyncIterator[Delta]:
        """Deltas of all answers."""

    async def export_kv(self, message: ExportKV) -> Exported:
        """Where another engine finds the KV of a prefilled request."""

    async def release_kv(self, request_id: str) -> None:
        """Nobody fetches it any more."""


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
        """Nothing is sent yet.

        Args:
            prefill: Computes prompts and the first token.
            decode: Computes the rest.
            over: How KV gets from one to the other.
            listen: tcp: the prefilling machine's address, as the decoding one reaches it.
        """
        self._prefill = prefill
        self._decode = decode
        self._over: Literal["memory", "tcp"] = over
        self._listen = listen

    @property
    def ready(self) -> Ready | None:
        """Of both together; None unless both are up."""
        both = [link.ready for link in (self._prefill, self._decode)]
        up = [ready for ready in both if ready is not None]
        return combined_ready(up) if len(up) == len(both) else None

    @property
    def stats(self) -> Stats | None:
        """Of both together."""
        both = [link.stats for link in (self._prefill, self._decode)]
        known = [stats for stats in both if stats is not None]
        return combined_stats(known) if len(known) == len(both) else None

    @property
    def heartbeat_age_seconds(self) -> float:
        """Of the one that was silent for longer: both are needed."""
        return max(self._prefill.heartbeat_age_seconds, self._decode.heartbeat_age_seconds)

    async def submit(self, submit: Submit) -> AsyncGenerator[Delta, None]:
        """Deltas of all answers; closing the iterator early aborts. Raises RequestRefused."""
        if submit.n > 1 or submit.sampling.beams:
            async with aclosing(self._decode.submit(submit)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    yield delta
            return
        first: Delta | None = None
        request = msgspec.structs.replace(submit, handover=True)
        async with aclosing(self._prefill.submit(request)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                if delta.finish_reason == "handover":
                    first = delta
                    yield _not_the_last(delta)
                else:
                    yield delta
        if first is None:
            return  # it ended with its first token
        began = time.monotonic()
        async with aclosing(self._rest(submit)) as deltas:
            async for delta in deltas:
                yield delta if delta.finish_reason is None else _whole(first, delta, began)

    async def _rest(self, submit: Submit) -> AsyncGenerator[Delta, None]:
        """From the second token on."""
        try:
            exported = await self._prefill.export_kv(
                ExportKV(id=submit.id, over=self._over, listen=self._listen)
            )
            taken = ImportKV(id=submit.id, submit=submit, ticket=exported.ticket)
            released = False
            async with aclosing(self._decode.submit(taken)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    if not released:
                        await self._prefill.release_kv(submit.id)
                        released = True
                    yield delta
        except BaseException:
            await self._prefill.abort(submit.id)  # frees what was not fetched
            raise

    async def abort(self, request_id: str) -> None:
        """Nobody waits for this request any more; unknown ids are no error."""
        await self._prefill.abort(request_id)
        await self._decode.abort(request_id)

    async def embed(
        self, prompts: tuple[tuple[int, ...], ...], adapter: str = ""
    ) -> tuple[tuple[float, ...], ...]:
        """One vector per prompt: prompts are the prefilling engine's. Raises RequestRefused."""
        return await self._prefill.embed(prompts, adapter)

    @property
    def adapters(self) -> dict[str, str]:
        """Name → path of those that both have, or are to have when they have started again."""
        return self._decode.adapters

    async def load_adapter(self, name: str, path: str) -> None:
        """On both, or on none. Raises RequestRefused."""
        await self._prefill.load_adapter(name, path)
        try:
            await self._decode.load_adapter(name, path)
        except RequestRefused:
            await self._prefill.unload_adapter(name)
            raise

    async def unload_adapter(self, name: str) -> None:
        """From both, the decoding one first: it uses it for longer. Raises RequestRefused."""
        await self._decode.unload_adapter(name)
        await self._prefill.unload_adapter(name)


def _not_the_last(delta: Delta) -> Delta:
    """Without what only an answer's last Delta says."""
    return msgspec.structs.replace(
        delta, finish_reason=None, prompt_tokens=0, cached_tokens=0, output_tokens=0, times=None
    )


def _whole(first: Delta, last: Delta, began: float) -> Delta:
    """An answer's last Delta, with what the prefilling engine knows of it.

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
