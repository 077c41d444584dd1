"""The process of the server: supervised engines, the API, and an orderly end.

On SIGTERM (or Ctrl-C) it drains: `/ready` says no and new requests get a 503 while open ones are
finished; what is still open after `shutdown_timeout_seconds` is ended with a clean error, then the
engines end. A second signal does not wait: engines are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.batching.scaling.settings import Scaling, policy_of
from ridgeline.errors import InputError, RidgelineError, in_words
from ridgeline.records.served_models import ModelPipeline
from ridgeline.serve.cluster.autoscaler import Autoscaler
from ridgeline.serve.cluster.disaggregated import KV_ENGINE, Disaggregated
from ridgeline.serve.cluster.router import Router
from ridgeline.serve.cluster.slo_attainment import SloAttainment
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.log import begin_step_log, log_as_json
from ridgeline.serve.http.connection_room import ConnectionRoom
from ridgeline.serve.http.settings import ServerSettings
from ridgeline.serve.messages import Ready
from ridgeline.serve.process.client import EngineLink
from ridgeline.serve.process.listener import listening
from ridgeline.serve.process.supervisor import ENGINE, Supervisor

if TYPE_CHECKING:
    from ridgeline.serve.cluster.remote import RemoteEngines, RemoteHosts
    from ridgeline.serve.http.service import Service
    from ridgeline.serve.http.text import Tokenizer

LAST_REPLY_SECONDS = 1.0
"""The time for the last errors to reach their clients."""

log = logging.getLogger("ridgeline.serve")


def run_server(
    config: EngineConfig,
    settings: ServerSettings,
    *,
    on_ready: Callable[[str, list[Ready]], None],
    replicas: int = 1,
    scaling: Scaling | None = None,
    disaggregated: bool = False,
    hosts: RemoteHosts | None = None,
    factory: str = ENGINE,
    beside: Sequence[ModelBeside] = (),
    pipelines: tuple[ModelPipeline, ...] = (),
) -> None:
    """Serve until a signal comes.

    Args:
        config: Of each engine.
        settings: Of the API.
        on_ready: Called once, with the address and what each model's engines said.
        replicas: Engine processes behind one router.
        scaling: How their number follows the load; None: it stays at `replicas`.
        disaggregated: Two engines instead: one computes prompts, the other the rest.
        hosts: Engines of other hosts instead, none here; `config` says whose tokenizer it is.
        factory: `module:name` of what builds the engine.
        beside: Further models, an engine each, behind the same front.
        pipelines: Names for models that answer one after another.

    Raises:
        InputError: what was asked for cannot be served, or the port is taken.
        RidgelineError: an engine does not start, or not again.
    """
    if disaggregated and config.ranks > 1:
        raise InputError(
            f"--disaggregated: keys and values are not handed over between engines of"
            f" {config.cut}; leave out one of the two"
        )
    if disaggregated and (replicas > 1 or scaling is not None):
        raise InputError("--disaggregated is one pair of engines; leave --replicas out")
    log_as_json()
    with listening(settings.host, settings.port) as listener:
        if config.step_log is not None:
            begin_step_log(config.step_log)
        most = scaling.maximum if scaling is not None else replicas
        factories = [KV_ENGINE] * 2 if disaggregated else [factory] * most
        server = _Server(
            config,
            settings,
            on_ready,
            [] if hosts is not None else factories,
            scaling=scaling,
            disaggregated=disaggregated,
            hosts=hosts,
        )
        server.add([(one, Supervisor(one.config, factory)) for one in beside], pipelines)
        asyncio.run(server.run(listener))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBeside:
    """A further model behind the same front."""

    config: EngineConfig
    settings: ServerSettings
    """Its own names, template and defaults; what is the front's is read from the first model's."""


class _Server:
    def __init__(
        self,
        config: EngineConfig,
        settings: ServerSettings,
        on_ready: Callable[[str, list[Ready]], None],
        factories: Sequence[str],
        *,
        scaling: Scaling | None,
        disaggregated: bool,
        hosts: RemoteHosts | None,
    ) -> None:
        self._config = config
        self._settings = settings
        self._on_ready = on_ready
        self._disaggregated = disaggregated
        self._supervisors = [Supervisor(config, factory) for factory in factories]
        self._remote = None if hosts is None else _engines_of(hosts)
        self._room = ConnectionRoom(len(factories))
        self._beside: list[tuple[ModelBeside, Supervisor]] = []
        self._pipelines: tuple[ModelPipeline, ...] = ()
        self._scaling = scaling
        self._autoscaler: Autoscaler | None = None
        self._signalled = asyncio.Event()

    def add(
        self,
        beside: Sequence[tuple[ModelBeside, Supervisor]],
        pipelines: tuple[ModelPipeline, ...],
    ) -> None:
        """Serve these as well; before `run`."""
        self._beside.extend(beside)
        self._pipelines = pipelines
        self._room = ConnectionRoom(len(self._supervisors) + len(beside))

    @property
    def _engines(self) -> Sequence[Autoscaler | RemoteEngines | Supervisor]:
        """Who starts, watches and stops the engines."""
        others = [supervisor for _, supervisor in self._beside]
        if self._remote is not None:
            return [self._remote, *others]
        if self._autoscaler is None:
            return [*self._supervisors, *others]
        return [self._autoscaler, *others]

    async def run(self, listener: socket.socket) -> None:
        """Start, serve, drain, end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled.set)
        try:
            service = await self._until_signalled(self._start())
            if service is not None:
                await self._serve(service, listener)
            else:
                self._signalled.clear()
                log.info("stopped before it was ready")
        finally:
            await self._stop()

    async def _stop(self) -> None:
        """End the engines; each finishes its step, unless another signal comes."""
        stopping = asyncio.create_task(self._stop_engines())
        hurried = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            for one in (*self._supervisors, *(supervisor for _, supervisor in self._beside)):
                one.kill()
        hurried.cancel()
        await stopping

    async def _stop_engines(self) -> None:
        await asyncio.gather(*(one.stop() for one in self._engines))

    async def _until_signalled(self, work: Coroutine[None, None, Service]) -> Service | None:
        """The work's result; None where a signal came first."""
        task = asyncio.create_task(work)
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if task.done():
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, RidgelineError):
            await task
        return None

    async def _start(self) -> Service:
        """Engines and tokenizer at once; the first error ends it."""
        config = self._config
        configs = [config, *(model.config for model, _ in self._beside)]
        link, fleet = self._link(), None
        if self._scaling is not None:
            assert isinstance(link, Router)
            policy = policy_of(self._scaling)
            self._autoscaler = Autoscaler(self._supervisors, link, policy, self._scaling.minimum)
            fleet = self._autoscaler.report
        async with _first_error(), asyncio.TaskGroup() as group:
            # Engines first: they import torch while the front is imported here.
            started = [group.create_task(one.start()) for one in self._engines]
            tokenizers = group.create_task(asyncio.to_thread(_front_and_tokenizers, configs))
        first = len(started) - len(self._beside) - 1
        all_ready = [task.result() for task in started[first:]]
        found = [
            (link, self._settings),
            *((engine.client, model.settings) for model, engine in self._beside),
        ]
        from ridgeline.serve.http.front import service_of_engine

        services = []
        for (client, settings), tokenizer, ready, of in zip(
            found, tokenizers.result(), all_ready, configs, strict=True
        ):
            of_it = fleet if client is link else None
            made = await service_of_engine(client, of, settings, tokenizer, ready, of_it)
            services.append(made)
        services[0].beside, services[0].pipelines = tuple(services[1:]), self._pipelines
        services[0].hosts = None if self._remote is None else self._remote.report
        return services[0]

    def _link(self) -> EngineLink:
        """What the API talks to."""
        if self._remote is not None:
            return self._remote.link
        clients = [one.client for one in self._supervisors]
        if self._disaggregated:
            return Disaggregated(clients[:1], clients[1:], block_size=self._config.block_size)
        if self._scaling is not None:
            limits = SloAttainment(
                ttft_seconds=self._scaling.ttft_seconds, itl_seconds=self._scaling.itl_seconds
            )
            return Router(clients, block_size=self._config.block_size, attainment=limits)
        if len(clients) == 1:
            return clients[0]
        return Router(clients, block_size=self._config.block_size)

    async def _serve(self, service: Service, listener: socket.socket) -> None:
        from ridgeline.serve.http.front import Front

        log.info(service.text.template.in_words)
        log.info("reasoning parser: %s", service.text.reasoning_parser)
        log.info("tool call parser: %s", service.text.tool_call_parser)
        api = Front(service, self._room, self._settings)
        watching = [asyncio.create_task(one.watch()) for one in self._engines]
        serving = asyncio.create_task(api.serve([listener]))
        up = asyncio.create_task(api.up.wait())
        await asyncio.wait({up, serving}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        told = [one.engine.ready for one in service.all if one.engine.ready is not None]
        if service.engine.ready is not None:
            try:
                self._on_ready(self._address(listener), told)
            except OSError as error:  # a full disk; those who ask are served all the same
                log.warning("not said to be ready", extra={"fields": {"why": in_words(error)}})
        signalled = asyncio.create_task(self._signalled.wait())
        try:
            ended, _ = await asyncio.wait(
                {signalled, *watching}, return_when=asyncio.FIRST_COMPLETED
            )
            if signalled in ended:
                await self._drain(service)
        finally:
            for task in (signalled, *watching):
                task.cancel()
            api.cut_off()
            api.should_exit = True
            await serving
            for one in service.all:
                one.text.close()
        for task in ended - {signalled}:
            task.result()  # raises: an engine could not be brought back

    def _address(self, listener: socket.socket) -> str:
        scheme = "http" if self._settings.tls is None else "https"
        host, port = listener.getsockname()[:2]
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def _drain(self, service: Service) -> None:
        service.drain()
        self._signalled.clear()
        log.info("draining", extra={"fields": {"open_requests": service.num_requests}})
        idle = asyncio.create_task(service.idle.wait())
        again = asyncio.create_task(self._signalled.wait())
        await asyncio.wait(
            {idle, again},
            timeout=self._settings.shutdown_timeout_seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        cut_off = service.num_requests
        service.end_all()
        await asyncio.wait({idle}, timeout=LAST_REPLY_SECONDS)
        idle.cancel()
        again.cancel()
        log.info("drained", extra={"fields": {"cut_off_requests": cut_off}})


def _engines_of(hosts: RemoteHosts) -> RemoteEngines:
    """The engines of other hosts; what calls them is imported where there are some."""
    from ridgeline.serve.cluster.remote import RemoteEngines

    return RemoteEngines(hosts)


def _front_and_tokenizers(configs: Sequence[EngineConfig]) -> list[Tokenizer]:
    """The tokenizers of some engines; on the way all that answers HTTP is imported.

    One after another: two threads that import transformers get half a module.
    """
    gc.disable()  # what is imported stays: looking through it again and again finds nothing
    try:
        from ridgeline.serve.http import front  # noqa: F401  while engines import torch
        from ridgeline.serve.http.text import load_tokenizer

        return [load_tokenizer(one) for one in configs]
    finally:
        gc.freeze()
        gc.enable()


@contextlib.asynccontextmanager
async def _first_error() -> AsyncIterator[None]:
    """Raise the first error of a group of tasks as it is."""
    try:
        yield
    except* Exception as group:
        raise group.exceptions[0] from None
