"""The process of `serve --role`: one supervised engine, the fronts that speak to it, its end.

On SIGTERM or Ctrl-C new requests are refused, so that fronts send them elsewhere, and those that
are here are finished, as far as the time for it goes; a second signal does not wait.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

from ridgeline.errors import InputError
from ridgeline.serve.cluster.disaggregated import KV_ENGINE
from ridgeline.serve.cluster.node import EngineNode
from ridgeline.serve.cluster.node_words import Role, identity_of
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.log import log_as_json
from ridgeline.serve.messages import Ready
from ridgeline.serve.process.listener import listening
from ridgeline.serve.process.supervisor import Supervisor

log = logging.getLogger("ridgeline.serve")


def run_node(
    config: EngineConfig,
    role: Role,
    *,
    host: str,
    port: int,
    cluster_key: str,
    shutdown_timeout_seconds: float,
    on_ready: Callable[[str, Ready], None],
) -> None:
    """Let fronts use an engine until a signal comes.

    Args:
        config: Of the engine.
        role: What fronts may use it for.
        host: The address to listen on.
        port: Its port; 0: any free one.
        cluster_key: What fronts and other engines have to prove.
        shutdown_timeout_seconds: The time for open requests after a signal.
        on_ready: Called once, with the address and what the engine said.

    Raises:
        InputError: The model cannot be served as configured, or the port is taken.
        RidgelineError: The engine does not start, or not again.
    """
    if config.ranks > 1:
        raise InputError(
            f"--role: keys and values are not handed over between engines of {config.cut}; leave"
            " out one of the two"
        )
    log_as_json()
    with listening(host, port) as listener:
        server = _NodeServer(config, role, cluster_key, shutdown_timeout_seconds)
        asyncio.run(server.run(listener, on_ready))


class _NodeServer:
    def __init__(
        self, config: EngineConfig, role: Role, cluster_key: str, shutdown_timeout_seconds: float
    ) -> None:
        self._config = config
        self._role = role
        self._key = cluster_key
        self._shutdown_timeout_seconds = shutdown_timeout_seconds
        self._engine = Supervisor(config, KV_ENGINE)
        self._signalled = asyncio.Event()

    async def run(self, listener: socket.socket, on_ready: Callable[[str, Ready], None]) -> None:
        """Start, let fronts in, drain, end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled.set)
        starting = asyncio.create_task(self._engine.start())
        signalled = asyncio.create_task(self._signalled.wait())
        try:
            await asyncio.wait({starting, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await self._serve(starting.result(), listener, on_ready)
        finally:
            signalled.cancel()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self._engine.stop()

    async def _serve(
        self, ready: Ready, listener: socket.socket, on_ready: Callable[[str, Ready], None]
    ) -> None:
        identity = await asyncio.to_thread(identity_of, self._config, ready)
        node = EngineNode(self._engine.client, self._role, identity, self._key)
        server = await asyncio.start_server(node.serve, sock=listener)
        host, port = listener.getsockname()[:2]
        on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", ready)
        watching = asyncio.create_task(self._engine.watch())
        signalled = asyncio.create_task(self._signalled.wait())
        try:
            await asyncio.wait({watching, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()  # raises: the engine could not be brought back
            await self._drain(node)
        finally:
            signalled.cancel()
            watching.cancel()
            server.close()

    async def _drain(self, node: EngineNode) -> None:
        node.draining = True
        self._signalled.clear()
        log.info("draining", extra={"fields": {"open_requests": node.num_requests}})
        idle = asyncio.create_task(node.until_idle())
        again = asyncio.create_task(self._signalled.wait())
        await asyncio.wait(
            {idle, again},
            timeout=self._shutdown_timeout_seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        idle.cancel()
        again.cancel()
        log.info("drained", extra={"fields": {"cut_off_requests": node.num_requests}})
