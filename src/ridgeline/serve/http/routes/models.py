"""`/v1/models`, and adapters coming and going."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.http.protocol.models import (
    LoadAdapterRequest,
    ModelCard,
    ModelList,
    UnloadAdapterRequest,
)
from ridgeline.serve.http.service import Service, json_response, service_of

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The model and its adapters."""
    return json_response(ModelList(data=_cards(service_of(request))))


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """One of them."""
    service = service_of(request)
    service.adapter(name)
    return json_response(next(card for card in _cards(service) if card.id == name))


@router.post("/v1/load_lora_adapter")
async def load_adapter(request: Request, body: LoadAdapterRequest) -> Response:
    """Load a LoRA adapter from a directory of the server's machine."""
    service = service_of(request)
    if body.lora_name == service.settings.model_name:
        raise refused(f"{body.lora_name} is the model itself", "lora_name")
    command = service.engine.load_adapter(body.lora_name, body.lora_path)
    await service.ask(request, command)
    return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_adapter(request: Request, body: UnloadAdapterRequest) -> Response:
    """Unload a LoRA adapter that no request uses."""
    service = service_of(request)
    if body.lora_name not in service.adapters:
        raise ApiError(404, f"no adapter {body.lora_name[:100]!r} here", param="lora_name")
    await service.ask(request, service.engine.unload_adapter(body.lora_name))
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _cards(service: Service) -> list[ModelCard]:
    ready, name = service.ready, service.settings.model_name
    base = ModelCard(
        id=name, created=service.created, max_model_len=ready.max_length, root=ready.model
    )
    adapters = [
        ModelCard(
            id=adapter,
            created=service.created,
            max_model_len=ready.max_length,
            root=adapter,
            parent=name,
        )
        for adapter in service.adapters
    ]
    return [base, *adapters]
