"""The routes of operators: health, readiness, metrics, memory, load, version, ping, docs.

None of them asks the engine but `/reset_prefix_cache`. `/ping` is what SageMaker asks; `/docs`
lists the endpoints, in one page without scripts.
"""

from __future__ import annotations

import html

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.hardware.environment import installed_ridgeline
from ridgeline.serve.cluster.combined import FleetReport, RemoteReport
from ridgeline.serve.http.metrics import metrics_text
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.reply import json_response, service_of
from ridgeline.serve.http.service import Service
from ridgeline.serve.messages import LinearKernel, MemoryLedger

HEARTBEAT_LATE_SECONDS = 10.0
"""The age from which a heartbeat, which comes twice a second, is late."""

router = APIRouter()


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine is."""

    status: str
    """ok, starting, or silent."""
    heartbeat_age_seconds: float
    step_age_seconds: float = 0.0
    """How long the step under way takes already: long prompts take long."""
    running: int = 0
    waiting: int = 0
    kernels: tuple[LinearKernel, ...] = ()
    """Whose kernels multiply the weights, on a CPU."""
    slower: tuple[str, ...] = ()
    """What is computed on a slower path than there is, and why."""
    fleet: FleetReport | None = None
    """What is said of the fleet, where the server scales itself."""
    hosts: tuple[RemoteReport, ...] | None = None
    """What is said of each engine, where they are on other hosts."""
    models: dict[str, str] | None = None
    """The status of each of several models; the rest is then of the worst."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to send requests here."""

    ready: bool
    why: str = ""


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine lives, judged by its heartbeat, however busy it is; else 503."""
    found = _health_of_all(service_of(request))
    return json_response(found, status=200 if found.status == "ok" else 503)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 while requests are taken; 503 while the engine starts and while the server drains."""
    service = service_of(request)
    why = "draining" if service.draining else _health_of_all(service).status
    found = Readiness(ready=why == "ok", why="" if why == "ok" else why)
    return json_response(found, status=200 if found.ready else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All metrics in Prometheus's format, with vLLM's names."""
    text = metrics_text([one.meters for one in service_of(request).all])
    return Response(text, media_type="text/plain; version=1.0.0; charset=utf-8")


@router.get("/memory")
async def memory(request: Request) -> Response:
    """The memory ledger of the engine's start; of several models each, and their sum."""
    service = service_of(request)
    if not service.beside or "model" in request.query_params:
        return json_response(service.ready.ledger)
    ledgers = {one.settings.model_name: one.ready.ledger for one in service.all}
    return json_response(
        SharedMemory(
            models=ledgers,
            total_bytes=sum(one.total_bytes * one.ranks for one in ledgers.values()),
            limit_bytes=sum(one.limit_bytes * one.ranks for one in ledgers.values()),
        )
    )


class SharedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One device's memory among several models."""

    models: dict[str, MemoryLedger]
    total_bytes: int
    limit_bytes: int
    """The sum of the engines' limits: the budget of all together."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Which server this is."""

    version: str


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the server is."""

    server_load: int
    """The number of requests under way."""


@router.post("/reset_prefix_cache")
@router.post("/flush_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Let no request that comes find what the prefix cache holds now; running ones keep theirs."""
    for name, value in request.query_params.items():
        if value.lower() in ("true", "1"):
            raise refused(f"{name} is not supported; running requests keep what they hold", name)
    service = service_of(request)
    await service.ask(request, service.engine.forget_prefixes())
    return Response()


@router.get("/version")
async def version() -> Response:
    """The version of Ridgeline."""
    return json_response(Version(version=installed_ridgeline()))


@router.get("/load")
async def load(request: Request) -> Response:
    """The number of requests under way, this one left out."""
    return json_response(ServerLoad(server_load=service_of(request).num_requests - 1))


@router.get("/ping")
@router.get("/health_generate")
@router.get("/v2/health/live")
@router.get("/v2/health/ready")
@router.post("/ping")
async def ping(request: Request) -> Response:
    """The same as `/health`, without a body."""
    status = _health_of_all(service_of(request)).status
    return Response(status_code=200 if status == "ok" else 503)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The endpoints with a sentence each; the whole schema is at `/openapi.json`."""
    paths = request.app.openapi()["paths"]
    rows = [
        f"<tr><td><code>{method.upper()} {html.escape(path)}</code>"
        f"<td>{html.escape(operation.get('description', ''))}"
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]
    table = "\n".join(rows)
    return Response(_DOCS.format(title="Ridgeline", table=table), media_type="text/html")


_DOCS = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<style>body{{font:16px system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}}
td{{padding:.3rem 1rem .3rem 0;vertical-align:top}}</style>
<h1>{title}</h1><p>OpenAI-compatible API of language models; the schema is
<a href="openapi.json">openapi.json</a>.<table>
{table}
</table></html>"""


def _health_of_all(service: Service) -> Health:
    """How the engine is; of several models, the one that is worst, and the status of each."""
    if not service.beside:
        return _health(service)
    found = {one.settings.model_name: _health(one) for one in service.all}
    worst = max(found.values(), key=lambda one: ("ok", "silent", "starting").index(one.status))
    statuses = {name: one.status for name, one in found.items()}
    return msgspec.structs.replace(worst, models=statuses)


def _health(service: Service) -> Health:
    engine = service.engine
    fleet = service.fleet() if service.fleet is not None else None
    hosts = service.hosts() if service.hosts is not None else None
    age, stats = engine.heartbeat_age_seconds, engine.stats
    if engine.ready is None or stats is None:
        return Health(status="starting", heartbeat_age_seconds=age, fleet=fleet, hosts=hosts)
    return Health(
        status="ok" if age < HEARTBEAT_LATE_SECONDS else "silent",
        heartbeat_age_seconds=age,
        step_age_seconds=stats.step_age_seconds,
        running=stats.running,
        waiting=stats.waiting,
        kernels=engine.ready.kernels,
        slower=engine.ready.slower,
        fleet=fleet,
        hosts=hosts,
    )
