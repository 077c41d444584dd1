"""Starts the engine's process, watches its heartbeat, starts it again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Coroutine

import msgspec

from ridgeline.errors import InputError, RidgelineError
from ridgeline.hardware.core_pressure import sleeping_threads
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import Ready
from ridgeline.serve.process.client import EngineClient, RequestRefused
from ridgeline.serve.process.frames import frame

ENGINE = "ridgeline.serve.engine.engine:ServingEngine"
SILENCE_SECONDS = 30.0
"""An engine without a heartbeat, which comes twice a second, for so long is stuck."""
LONGEST_STEP_SECONDS = 600.0
"""A step that takes longer hangs; the longest honest ones compile."""
FUTILE_STARTS = 4
"""The starts in a row, none of which became ready, after which the server gives up."""
FIRST_DELAY_SECONDS = 0.25
LONGEST_DELAY_SECONDS = 30.0
SETTLED_SECONDS = 60.0
"""An engine that lived so long is started again at once."""
END_SECONDS = 6.0
"""A little more than the engine takes to notice that its socket has closed."""
LAST_WORDS = 4096
FEW_PRIMITIVES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}
"""oneDNN, and PyTorch above it, keep a thousand compiled primitives each, one for every shape: with
prompts of all lengths that is a gigabyte, filled over thousands of requests, for shapes that seldom
come again. A model's layers have some five, and making one takes less than a millisecond."""

log = logging.getLogger("ridgeline.serve")


class EngineLost(RidgelineError):
    """The engine cannot be brought back."""


class Supervisor:
    """Keeps one engine process running behind `client`."""

    def __init__(
        self,
        config: EngineConfig,
        factory: str = ENGINE,
        *,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self.client = EngineClient(config.adapters)
        self._config = config
        self._factory = factory
        self._silence_seconds = silence_seconds
        self._has_been_up = False
        self._process: asyncio.subprocess.Process | None = None
        self._link: asyncio.Task[None] | None = None
        self._words = ""
        self._stderr: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the engine."""
        return self._process.pid if self._process else None

    async def start(self) -> Ready:
        """Start the engine with the adapters that it had, and wait until it is up.

        Adapters that an engine once had do not keep it from coming back: one that cannot be loaded
        any more is left out, and the log says why.

        Raises:
            InputError: the configuration cannot be served.
            RidgelineError: the engine failed; its last words are in the message.
        """
        adapters = dict(self.client.adapters)
        try:
            await self._start(adapters)
        except InputError as error:
            if not (adapters and self._has_been_up):
                raise
            log.warning("engine did not start", extra={"fields": {"why": str(error)}})
            await self._start({})
        self._has_been_up = True
        await self._catch_up()
        if self.client.ready is None:
            raise RidgelineError("the engine ended as soon as it was up")
        return self.client.ready

    async def _catch_up(self) -> None:
        """Give the engine what adapters it lacks: they came, or went, while it was starting."""
        there = self.client.ready.adapters if self.client.ready is not None else ()
        for name, path in list(self.client.adapters.items()):
            if name not in there:
                await self._adapter(name, self.client.load_adapter(name, path))
        for name in there:
            if name not in self.client.adapters:
                await self._adapter(name, self.client.unload_adapter(name))

    async def _adapter(self, name: str, change: Coroutine[None, None, None]) -> None:
        try:
            await change
        except RequestRefused as refused:
            if refused.refusal.status < 500:  # else the engine has gone, and the next one has it
                self.client.adapters.pop(name, None)
            fields = {"adapter": name, "why": str(refused)}
            log.warning("adapter not loaded again", extra={"fields": fields})

    async def _start(self, adapters: dict[str, str]) -> None:
        await self._spawn(msgspec.structs.replace(self._config, adapters=adapters))
        assert self._link is not None
        up = asyncio.create_task(self.client.up.wait())
        try:
            await asyncio.wait([self._link, up], return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if self.client.ready is not None:
            return
        code = await self._reap()
        failed = self.client.failed
        if failed is not None:
            kind = InputError if failed.exit_code == InputError.exit_code else RidgelineError
            raise kind(failed.message)
        last = (self._words.strip().splitlines() or ["it said nothing"])[-1]
        raise RidgelineError(f"the engine ended with {_ending(code)} before it was up: {last}")

    async def watch(self) -> None:
        """Start the engine again whenever it ends, until cancelled.

        Raises:
            EngineLost: several starts in a row did not bring it up.
        """
        loop = asyncio.get_running_loop()
        began, delay = loop.time(), FIRST_DELAY_SECONDS
        while True:
            why = await self._until_it_ends()
            if self.client.failed is not None:
                why = f"{why}: {self.client.failed.message}"
            log.error("engine ended", extra={"fields": {"why": why, "pid": self.pid}})
            if loop.time() - began > SETTLED_SECONDS:
                delay = FIRST_DELAY_SECONDS
            delay = await self._bring_back(why, delay)
            began = loop.time()
            log.info("engine started again", extra={"fields": {"pid": self.pid}})

    async def _bring_back(self, why: str, delay: float) -> float:
        """Start it, with longer and longer delays; the next delay."""
        said = ""
        for attempt in range(1, FUTILE_STARTS + 1):
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_SECONDS)
            try:
                await self.start()
            except RidgelineError as error:
                said = str(error)
                log.warning(
                    "engine did not start", extra={"fields": {"why": said, "attempt": attempt}}
                )
            else:
                return delay
        raise EngineLost(f"the engine ended ({why}) and did not start again: {said}")

    async def stop(self) -> None:
        """End the engine by closing its socket, and kill it if that does not help.

        One that still loads its model has nothing to finish and is killed at once.
        """
        if not self.client.ready:
            self.kill()
        if self._link is not None:
            self._link.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._link
        await self._reap()

    def kill(self) -> None:
        """End the engine at once, whatever it does; `stop` or `watch` notice."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _spawn(self, config: EngineConfig) -> None:
        ours, theirs = socket.socketpair()
        self._words = ""
        waiting, told = sleeping_threads(os.environ)
        if told:
            log.info("%s", told)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "ridgeline.serve.process.host",
                    str(theirs.fileno()),
                    self._factory,
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    env=FEW_PRIMITIVES | waiting | os.environ,
                )
            self._stderr = asyncio.create_task(self._pass_on_stderr(self._process))
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:  # cancelled, where the tokenizer is refused meanwhile
            ours.close()
            raise
        writer.write(frame(config))
        self._link = asyncio.create_task(self.client.serve(reader, writer))

    async def _pass_on_stderr(self, process: asyncio.subprocess.Process) -> None:
        """The engine's words are ours; the last of them explain a death."""
        assert process.stderr is not None
        while data := await process.stderr.read(1 << 16):
            text = data.decode(errors="replace")
            with contextlib.suppress(OSError):  # a full disk: the engine must not wait for us
                sys.stderr.write(text)
            self._words = (self._words + text)[-LAST_WORDS:]

    async def _until_it_ends(self) -> str:
        """Wait for the end of the process or its link; a stuck one is killed. Says why."""
        assert self._link is not None
        while not self._link.done():
            await asyncio.wait([self._link], timeout=min(1.0, self._silence_seconds / 4))
            stuck = self._stuck()
            if stuck and self._process is not None:
                self._process.kill()
                await self._reap()
                return stuck
        return _ending(await self._reap())

    def _stuck(self) -> str | None:
        stats = self.client.stats
        silence = self.client.heartbeat_age_seconds
        if silence > self._silence_seconds:
            return f"no heartbeat for {silence:.0f} s"
        if stats is not None and stats.step_age_seconds > LONGEST_STEP_SECONDS:
            return f"one step took {stats.step_age_seconds:.0f} s"
        return None

    async def _reap(self) -> int:
        """Wait for the process's end, forcing it if needed; its return code."""
        process = self._process
        if process is None:
            return 0
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._stderr is not None:  # its children may hold it open
            await asyncio.wait([self._stderr], timeout=1.0)
        assert process.returncode is not None
        return process.returncode


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
