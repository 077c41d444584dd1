"""Replicas on a Ray cluster: Ray Serve starts, scales and drains them, each with its own engine.

    from ray import serve
    serve.run(application(config, settings, max_replicas=8), route_prefix="/")

Every replica is the whole server: the API of `http/` around one supervised engine. Ray Serve's
proxies spread the requests. How many replicas there are follows from what the engines report:
requests waiting and KV blocks in use, which saturate long before processors or GPUs look busy. A
replica that Ray Serve stops gets no new requests and ends when its last one has, at the latest
after `shutdown_timeout_seconds`.

Written to the documentation of Ray 2.51 to 2.55: `serve.deployment`, `serve.ingress` with an ASGI
application, `record_autoscaling_stats`, an `AutoscalingContext` handed to `policy_function`,
`reconfigure` awaited before a replica takes requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.http.settings import ServerSettings
from ridgeline.serve.process.supervisor import ENGINE, Supervisor

TARGET_WAITING = 2.0
"""Requests waiting per replica at which there are enough replicas."""
TARGET_USAGE = 0.7
"""Share of KV blocks in use at which there are enough replicas."""
SILENCE_SECONDS = 10.0
"""The silence of an engine from which its replica is ill."""
UPSCALE_DELAY_SECONDS = 30.0
DOWNSCALE_DELAY_SECONDS = 600.0
"""A replica takes minutes to load a model, so it is not thrown away quickly."""
_POLICY = "ridgeline.serve.ray_serve:policy"


def wanted_replicas(
    running: int, waiting: Mapping[Any, float], cache_usage: Mapping[Any, float]
) -> float:
    """Replicas in proportion to the larger of two loads, as Kubernetes' autoscaler has it.

    Args:
        running: Replicas that take requests now.
        waiting: Requests in the queue, by replica.
        cache_usage: Share of KV blocks in use, by replica.

    Returns:
        May be fractional: Ray Serve rounds up, and applies bounds and delays.

    >>> wanted_replicas(2, {"a": 8.0, "b": 4.0}, {"a": 0.9, "b": 0.5})
    6.0
    """
    if not waiting or not cache_usage:
        return float(running)  # nothing is known yet
    load = max(_mean(waiting) / TARGET_WAITING, _mean(cache_usage) / TARGET_USAGE)
    return running * load


def policy(context: Any) -> tuple[float, dict[str, Any]]:
    """The policy for Ray Serve's controller: its context in, replicas and no state out."""
    metrics = context.aggregated_metrics or {}
    running = context.current_num_replicas
    waiting, usage = metrics.get("waiting", {}), metrics.get("cache_usage", {})
    return wanted_replicas(running, waiting, usage), {}


class RayReplica:
    """A server that Ray Serve makes, asks for its state, and ends."""

    def __init__(
        self, config: EngineConfig, settings: ServerSettings, factory: str = ENGINE
    ) -> None:
        self._config = config
        self._settings = settings
        self._supervisor = Supervisor(config, factory)
        self._watching: asyncio.Task[None] | None = None
        _here.append(self)
        self.app: Any = None

    async def reconfigure(self, _: Any) -> None:
        """Start the engine; Ray Serve sends no requests before this is done."""
        if self._watching is not None:
            return
        from ridgeline.serve.http.app import create_app
        from ridgeline.serve.http.metrics import Meters
        from ridgeline.serve.http.service import Service, text_of
        from ridgeline.serve.http.text import load_tokenizer

        config = self._config
        tokenizer = await asyncio.to_thread(load_tokenizer, config)
        ready = await self._supervisor.start()
        link = self._supervisor.client
        text = await text_of(config, self._settings, tokenizer, ready)
        service = Service(link, text, self._settings, Meters(link, self._settings.model_name))
        self.app = create_app(service)
        self._watching = asyncio.create_task(self._supervisor.watch())

    async def check_health(self) -> None:
        """Raise where the engine is silent or cannot be brought back: Ray starts another."""
        if self._watching is None:
            return  # it is being started
        if self._watching.done():
            self._watching.result()
        silence = self._supervisor.client.heartbeat_age_seconds
        if silence > SILENCE_SECONDS:
            raise RuntimeError(f"the engine has been silent for {silence:.0f} s")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What `policy` sees of this replica."""
        stats = self._supervisor.client.stats
        if stats is None:
            return {}
        return {"waiting": float(stats.waiting), "cache_usage": stats.cache_usage}

    async def close(self) -> None:
        """End the engine; Ray ends the process, and with its socket the engine ends too."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._watching
            self._watching = None
        await self._supervisor.stop()


_here: list[RayReplica] = []
"""The replica of this process: Ray gives each a process of its own."""


class Passing:
    """The ASGI application that Ray Serve is given: it passes on to the replica's own.

    That one cannot be pickled, and exists only when the engine is up.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, as ASGI has it."""
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        await _here[-1].app(scope, receive, send)


def application(
    config: EngineConfig,
    settings: ServerSettings,
    *,
    min_replicas: int = 1,
    max_replicas: int = 4,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
) -> Any:
    """The application that `serve.run` takes.

    Args:
        config: Of each engine.
        settings: Of each API; Ray Serve decides on host and port.
        min_replicas: Kept up however quiet it is.
        max_replicas: At most.
        num_cpus: Reserved for each replica.
        num_gpus: Reserved for each replica.

    Raises:
        MissingExtra: Ray Serve is not installed.
        InputError: The numbers of replicas contradict each other.
    """
    if not 1 <= min_replicas <= max_replicas:
        raise InputError(
            f"replicas: 1 ≤ min ≤ max is needed, not min {min_replicas}, max {max_replicas}"
        )
    try:
        from ray import serve
    except ImportError:
        raise MissingExtra("ray[serve]", "ray") from None
    deployment = serve.deployment(
        name="ridgeline",
        # The engine queues by itself, and refuses beyond its own bound.
        max_ongoing_requests=config.max_sequences + config.max_waiting,
        autoscaling_config={
            "min_replicas": min_replicas,
            "max_replicas": max_replicas,
            "metrics_interval_s": 5.0,
            "upscale_delay_s": UPSCALE_DELAY_SECONDS,
            "downscale_delay_s": DOWNSCALE_DELAY_SECONDS,
            "policy": {"policy_function": _POLICY},
        },
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        graceful_shutdown_wait_loop_s=1.0,
        graceful_shutdown_timeout_s=settings.shutdown_timeout_seconds,
        health_check_period_s=5.0,
        user_config={"start": True},  # without one, Ray Serve does not call `reconfigure`
    )
    return deployment(serve.ingress(Passing())(RayReplica)).bind(config, settings)


def _mean(by_replica: Mapping[Any, float]) -> float:
    return sum(by_replica.values()) / len(by_replica)
