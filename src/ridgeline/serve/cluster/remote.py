"""Engines on other hosts, as the front of a cluster sees them: called, compared, called again.

    RemoteEngine(address, "prefill")     one host; its `client` is an `EngineLink` like any other
    RemoteEngines(hosts)                 all of them: what a server starts, watches and stops

A host that cannot be reached is called again, first soon and then every few seconds, for as long as
the front lives: one that was killed is taken back when it answers. One that serves something else
than the first that answered did is not taken, and the log and `/health` say why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

import msgspec

from ridgeline.errors import InputError, in_words
from ridgeline.serve.cluster.combined import RemoteReport
from ridgeline.serve.cluster.disaggregated import Disaggregated
from ridgeline.serve.cluster.handshake import SECONDS, NotProven, prove_caller
from ridgeline.serve.cluster.node import keep_alive
from ridgeline.serve.cluster.node_words import PORT, PURPOSE, EngineHello, EngineIdentity, Role
from ridgeline.serve.messages import Ready
from ridgeline.serve.process.client import EngineClient, RequestRefused
from ridgeline.serve.process.frames import BrokenFrame, next_frame

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.25, 5.0
SILENCE_SECONDS = 15.0
"""A host whose engine sends no heartbeat, which comes twice a second, for so long is cut off."""

log = logging.getLogger("ridgeline.serve")


@dataclass(slots=True)
class ClusterAgreement:
    """What all engines of a cluster have to be: what the first one was, and the front's own files.

    `config` and `tokenizer` are digests of the files beside the front; None: not compared.
    """

    config: str | None = None
    tokenizer: str | None = None
    found: EngineIdentity | None = field(default=None, init=False)

    def objection(self, role: Role, hello: EngineHello) -> str | None:
        """Why a host cannot be taken, in words; None: it can."""
        if hello.role != role:
            return f"it is a {hello.role} engine; name it by --{hello.role}"
        its = hello.identity
        for what, mine, theirs in (
            ("config.json", self.config, its.config),
            ("tokenizer", self.tokenizer, its.tokenizer),
        ):
            if mine is not None and mine != theirs:
                return f"it serves another model: the {what} there is not the one beside this front"
        if self.found is None:
            self.found = its
        return self.found.difference(its)


class RemoteEngine:
    """One host's engine, for as long as the front lives."""

    def __init__(
        self, address: str, role: Role, cluster_key: str, agreement: ClusterAgreement
    ) -> None:
        self.address = address
        self.role: Role = role
        self.client = EngineClient()
        self.why = "not called yet"
        self.objection: str | None = None
        """Why it is not taken, although it answers."""
        self._host, self._port = split_address(address)
        self._key = cluster_key
        self._agreement = agreement
        self._called = asyncio.Event()

    async def until_called(self) -> None:
        """Wait until it is known whether it answers."""
        await self._called.wait()

    async def run(self) -> None:
        """Call it, serve the connection, and call again, until cancelled."""
        delay = FIRST_DELAY_SECONDS
        while True:
            before = self.why
            try:
                if await self._connect():
                    delay = FIRST_DELAY_SECONDS
                    before = ""
            except (NotProven, BrokenFrame, msgspec.DecodeError) as error:
                self.why = in_words(error)
            except TimeoutError:
                self.why = "no answer in time"
            except OSError as error:
                self.why = in_words(error)
            self._called.set()
            if self.why != before:
                self._say(logging.WARNING, "engine is not reached", why=self.why)
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_SECONDS)

    async def _connect(self) -> bool:
        """Serve one connection until its end; whether there was one that could be used."""
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            keep_alive(writer.get_extra_info("socket"))
            await prove_caller(reader, writer, self._key, PURPOSE)
            async with asyncio.timeout(SECONDS):
                body = await next_frame(reader)
            if body is None:
                self.why = "its engine is being started"
                return False
            hello = msgspec.msgpack.decode(body, type=EngineHello)
            self.objection = self._agreement.objection(self.role, hello)
            if self.objection is not None:
                self.why = self.objection
                return False
            await self._serve(hello, reader, writer)
        finally:
            writer.close()
        self.why = "the connection ended"
        return True

    async def _serve(
        self, hello: EngineHello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        wanted, self.client.adapters = self.client.adapters, dict(hello.adapters)
        serving = asyncio.create_task(self.client.serve(reader, writer))
        up = asyncio.create_task(self.client.up.wait())
        try:
            await asyncio.wait({serving, up}, return_when=asyncio.FIRST_COMPLETED)
            if self.client.ready is not None:
                self.why = ""
                self._called.set()
                self._say(logging.INFO, "engine reached")
                for name in wanted.keys() - hello.adapters.keys():
                    await self._load_again(name, wanted[name])
            while not serving.done():
                await asyncio.wait({serving}, timeout=SILENCE_SECONDS / 4)
                if self.client.heartbeat_age_seconds > SILENCE_SECONDS:
                    return
            await serving
        finally:
            up.cancel()
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    async def _load_again(self, name: str, path: str) -> None:
        try:
            await self.client.load_adapter(name, path)
        except RequestRefused as refused:
            self._say(logging.WARNING, "adapter not loaded again", adapter=name, why=str(refused))

    def _say(self, level: int, event: str, **more: str) -> None:
        fields = {"engine": self.address, "role": self.role, **more}
        log.log(level, event, extra={"fields": fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHosts:
    """Which hosts a front is for."""

    prefill: tuple[str, ...]
    """Addresses of engines that compute prompts."""
    decode: tuple[str, ...]
    cluster_key: str
    config: str | None = None
    """Digests of the front's own files, which the engines' have to equal; None: any will do."""
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        """Raise InputError for an address that is none, or that is there twice."""
        where = [split_address(one) for one in (*self.prefill, *self.decode)]
        for address, one in zip((*self.prefill, *self.decode), where, strict=True):
            if where.count(one) > 1:
                raise InputError(f"{address}: each engine is named once, by --prefill or --decode")


class RemoteEngines:
    """All hosts of a cluster, as one that a server starts, watches and stops."""

    def __init__(self, hosts: RemoteHosts) -> None:
        agreement = ClusterAgreement(hosts.config, hosts.tokenizer)
        self._prefill = [
            RemoteEngine(address, "prefill", hosts.cluster_key, agreement)
            for address in hosts.prefill
        ]
        self._decode = [
            RemoteEngine(address, "decode", hosts.cluster_key, agreement)
            for address in hosts.decode
        ]
        self.link = Disaggregated(
            [one.client for one in self._prefill],
            [one.client for one in self._decode],
            over="tcp",
        )
        """What the API talks to."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def _engines(self) -> list[RemoteEngine]:
        return [*self._prefill, *self._decode]

    async def start(self) -> Ready:
        """Call all hosts, and wait until each was called and one of each role is up.

        Raises:
            InputError: One that answers cannot be taken.
        """
        self._tasks = [asyncio.create_task(one.run()) for one in self._engines]
        for one in self._engines:
            await one.until_called()
        for one in self._engines:
            if one.objection is not None:
                raise InputError(f"--{one.role} {one.address}: {one.objection}")
        while (ready := self.link.ready) is None:
            ups = [asyncio.create_task(one.client.up.wait()) for one in self._engines]
            await asyncio.wait(ups, timeout=1.0)
            for up in ups:
                up.cancel()
        return ready

    async def watch(self) -> None:
        """Keep calling, until cancelled; no engine of another host is ever given up."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """End all connections; the engines go on without this front."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def report(self) -> tuple[RemoteReport, ...]:
        """What is said of each host now."""
        replicas = [*self.link.prefill.replicas, *self.link.decode.replicas]
        return tuple(
            RemoteReport(
                address=one.address,
                role=one.role,
                up=replica.up,
                why=one.why,
                open=len(replica.open),
            )
            for one, replica in zip(self._engines, replicas, strict=True)
        )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `http://host:port`, `host:port` or `host`.

    >>> split_address("http://10.0.0.5:8002"), split_address("a"), split_address("[::1]:80")
    (('10.0.0.5', 8002), ('a', 8001), ('::1', 80))

    Raises:
        InputError: It is none of these.
    """
    rest = address.removeprefix("http://").removesuffix("/")
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]"):
        host, port = rest, str(PORT)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or "/" in bare or not (port.isdigit() and port.isascii() and 0 < int(port) < 65536):
        raise InputError(f"{address}: give the address of an engine, as http://host:8001")
    return bare, int(port)
