"""What of the Ray Serve deployment can be tested without Ray.

Ray is not installed here: that Ray Serve calls these as its documentation says is not tested.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError, MissingExtra
from ridgeline.serve import ray_serve
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.http.settings import ServerSettings
from ridgeline.serve.ray_serve import (
    Passing,
    RayReplica,
    application,
    policy,
    wanted_replicas,
)

pytestmark = pytest.mark.anyio
CONFIG, SETTINGS = (
    EngineConfig(model="dir"),
    ServerSettings(model_name="m", shutdown_timeout_seconds=7.0),
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


loads = st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), min_size=1, max_size=6)


@given(loads, st.floats(0, 10))
def test_more_load_never_asks_for_fewer_replicas(
    replicas: list[tuple[float, float]], more: float
) -> None:
    def wanted(extra: float) -> float:
        waiting = {i: one[0] + extra for i, one in enumerate(replicas)}
        usage = {i: one[1] for i, one in enumerate(replicas)}
        return wanted_replicas(len(replicas), waiting, usage)

    assert wanted(more) >= wanted(0.0)


def test_idle_replicas_go_and_nothing_changes_while_nothing_is_known() -> None:
    assert wanted_replicas(3, {1: 0.0, 2: 0.0}, {1: 0.1, 2: 0.1}) < 1.0
    assert wanted_replicas(3, {}, {}) == 3.0


def test_the_policy_reads_ray_serves_context() -> None:
    context = SimpleNamespace(
        aggregated_metrics={"waiting": {"r": 6.0}, "cache_usage": {"r": 0.2}},
        current_num_replicas=1,
    )
    assert policy(context) == (3.0, {})
    assert policy(SimpleNamespace(aggregated_metrics=None, current_num_replicas=2)) == (2.0, {})


def test_without_ray_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"ridgeline\[ray\]"):
        application(CONFIG, SETTINGS)
    with pytest.raises(InputError, match="min 3, max 2"):
        application(CONFIG, SETTINGS, min_replicas=3, max_replicas=2)


def test_the_deployment_scales_on_the_engines_and_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Deployment:
        def bind(self, *arguments: Any) -> Any:
            return (seen, arguments)

    serve = ModuleType("ray.serve")
    serve.deployment = lambda **options: seen.update(options) or (lambda _: Deployment())
    serve.ingress = lambda app: lambda cls: (app, cls)
    ray = ModuleType("ray")
    ray.serve = serve
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    options, arguments = application(CONFIG, SETTINGS, max_replicas=8, num_gpus=1.0)
    assert arguments == (CONFIG, SETTINGS)
    assert options["autoscaling_config"]["max_replicas"] == 8
    module, _, name = options["autoscaling_config"]["policy"]["policy_function"].partition(":")
    assert getattr(sys.modules[module], name) is policy
    assert options["graceful_shutdown_timeout_s"] == 7.0
    assert options["ray_actor_options"]["num_gpus"] == 1.0


async def test_requests_reach_the_replicas_own_application(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.append(scope["path"])

    monkeypatch.setattr(ray_serve, "_here", [SimpleNamespace(app=app)])
    sent: list[Any] = []

    async def receive() -> Any:
        return {}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    passing = Passing()
    await passing({"type": "lifespan"}, receive, send)
    await passing({"type": "http", "path": "/v1/models"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert got == ["/v1/models"]


@pytest.mark.slow
@pytest.mark.multiprocess
async def test_a_replica_is_a_whole_server() -> None:
    model = Path(__file__).parents[3] / "examples" / "models" / "library"
    config = EngineConfig(model=str(model), device="cpu", dtype="fp32", kv_bytes=1 << 22, threads=1)
    replica = RayReplica(config, SETTINGS)
    await replica.check_health()  # while it starts
    await replica.reconfigure({"start": True})
    try:
        await replica.check_health()
        transport = httpx.ASGITransport(app=Passing())
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
            body = {"model": "m", "prompt": "import", "max_tokens": 4}
            answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 4
        assert set(replica.record_autoscaling_stats()) == {"waiting", "cache_usage"}
    finally:
        await replica.close()
    assert replica.record_autoscaling_stats() == {}
