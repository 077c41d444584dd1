"""`/health`, `/ready`, `/metrics`, `/memory`: for operators. None of them asks the engine."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.cluster.combined import FleetReport
from ridgeline.serve.http.reply import json_response, service_of
from ridgeline.serve.http.service import Service
from ridgeline.serve.messages import LinearKernel

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
    fleet: FleetReport | None = None
    """What is said of the fleet, where the server scales itself."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to send requests here."""

    ready: bool
    why: str = ""


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine lives, judged by its heartbeat, however busy it is; else 503."""
    found = _health(service_of(request))
    return json_response(found, status=200 if found.status == "ok" else 503)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 while requests are taken; 503 while the engine starts and while the server drains."""
    service = service_of(request)
    why = "draining" if service.draining else _health(service).status
    found = Readiness(ready=why == "ok", why="" if why == "ok" else why)
    return json_response(found, status=200 if found.ready else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All metrics in Prometheus's format, with vLLM's names."""
    text = service_of(request).meters.text()
    return Response(text, media_type="text/plain; version=1.0.0; charset=utf-8")


@router.get("/memory")
async def memory(request: Request) -> Response:
    """The memory ledger of the engine's start."""
    return json_response(service_of(request).ready.ledger)


def _health(service: Service) -> Health:
    engine = service.engine
    fleet = service.fleet() if service.fleet is not None else None
    age, stats = engine.heartbeat_age_seconds, engine.stats
    if engine.ready is None or stats is None:
        return Health(status="starting", heartbeat_age_seconds=age, fleet=fleet)
    return Health(
        status="ok" if age < HEARTBEAT_LATE_SECONDS else "silent",
        heartbeat_age_seconds=age,
        step_age_seconds=stats.step_age_seconds,
        running=stats.running,
        waiting=stats.waiting,
        kernels=engine.ready.kernels,
        fleet=fleet,
    )
