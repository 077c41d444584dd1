"""The endpoints of Ollama's API beside its answers: models, vectors, and the version."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.hardware.environment import installed_ridgeline
from ridgeline.serve.http.embedding import cut, shortened, tokens_of, vectors_of
from ridgeline.serve.http.protocol.embeddings import Truncate, VectorFields
from ridgeline.serve.http.protocol.ollama import OllamaEmbedRequest, OllamaModelRequest
from ridgeline.serve.http.reply import json_response, record_of, service_of
from ridgeline.serve.http.service import Service

router = APIRouter(prefix="/api")


@router.get("/tags")
@router.get("/ps")
async def tags(request: Request) -> Response:
    """The models and their adapters, all of which are loaded."""
    services = service_of(request).all
    found = [
        {**_card(one, name, adapter), "context_length": one.ready.max_length, "size_vram": 0}
        for one in services
        for name, adapter in (
            *((name, "") for name in one.settings.names),
            *((name, name) for name in one.adapters),
        )
    ]
    return json_response({"models": found})


@router.post("/show")
async def show(request: Request, body: OllamaModelRequest) -> Response:
    """What a model is, and what it can do."""
    service = service_of(request)
    name = body.model or body.name
    service.adapter(name)
    family = _family(service)
    return json_response(
        {
            "modified_at": _created(service),
            "details": _details(service),
            "template": service.text.template.text,
            "parameters": "",
            "modelfile": "",
            "license": "",
            "model_info": {
                "general.architecture": family,
                f"{family}.context_length": service.ready.max_length,
                f"{family}.vocab_size": service.text.vocab,
            },
            "capabilities": _capabilities(service),
        }
    )


@router.post("/pull")
async def pull(request: Request, body: OllamaModelRequest) -> Response:
    """A model that is here need not be fetched; there is no other one. Raises ApiError."""
    service_of(request).adapter(body.model or body.name)
    return json_response({"status": "success"})


@router.get("/version")
async def version() -> Response:
    """The version of Ridgeline."""
    return json_response({"version": installed_ridgeline()})


@router.post("/embed")
async def embed(request: Request, body: OllamaEmbedRequest) -> Response:
    """One vector per text."""
    began = time.monotonic_ns()
    vectors = await _vectors(request, body)
    record = record_of(request)
    return json_response(
        {
            "model": record.model,
            "embeddings": vectors,
            "total_duration": time.monotonic_ns() - began,
            "load_duration": 0,
            "prompt_eval_count": record.prompt_tokens,
        }
    )


@router.post("/embeddings")
async def embeddings(request: Request, body: OllamaEmbedRequest) -> Response:
    """The vector of one text, by the older endpoint."""
    (vector, *_) = await _vectors(request, body)
    return json_response({"embedding": vector})


async def _vectors(request: Request, body: OllamaEmbedRequest) -> list[list[float]]:
    fields = VectorFields.model_validate({"model": body.model})
    name = "prompt" if body.input is None else "input"
    prompts = [await tokens_of(request, fields, text, name) for text in body.texts]
    cut_at: Truncate = "NONE" if body.truncate is False else "END"
    prompts = [cut(request, one, cut_at, None) for one in prompts]
    vectors = await vectors_of(request, fields, prompts) if prompts else []
    hints = [] if body.keep_alive is None else ["keep_alive"]
    record_of(request).without_effect += hints
    if body.dimensions is not None:
        vectors = [shortened(one, body.dimensions) for one in vectors]
    return [list(one) for one in vectors]


def _card(service: Service, name: str, adapter: str) -> dict[str, Any]:
    """One of a model's names; those that share a digest are taken for one model by clients."""
    which = f"{service.ready.model}\n{service.settings.model_name}\n{adapter}"
    return {
        "name": name,
        "model": name,
        "modified_at": _created(service),
        "size": service.ready.ledger.total_bytes,
        "digest": hashlib.sha256(which.encode()).hexdigest(),
        "details": _details(service),
    }


def _created(service: Service) -> str:
    return datetime.fromtimestamp(service.created, UTC).isoformat().replace("+00:00", "Z")


def _details(service: Service) -> dict[str, Any]:
    family = _family(service)
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": service.ready.dtype,
    }


def _family(service: Service) -> str:
    return service.settings.model_name.rpartition("/")[2]


def _capabilities(service: Service) -> list[str]:
    text = service.text
    able = {
        "completion": True,
        "tools": text.template.origin != "plain",
        "insert": text.infill is not None,
        "vision": service.ready.sees_images,
        "thinking": text.thoughts is not None,
        "embedding": True,
    }
    return [name for name, here in able.items() if here]
