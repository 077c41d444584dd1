"""What the server and its model are, in the words of other servers' clients.

They ask before they send anything else: SGLang's for the model and the server, those of
text-generation-inference, text-embeddings-inference and Azure for `/info`.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.hardware.environment import installed_ridgeline
from ridgeline.serve.http.reply import json_response, service_of

router = APIRouter()


@router.get("/info")
async def info(request: Request) -> Response:
    """The model, its name and its limits, as Hugging Face's servers and Azure tell them."""
    service = service_of(request)
    longest = service.ready.max_length
    return json_response(
        {
            "model_id": service.settings.model_name,
            "model_name": service.settings.model_name,
            "model_type": "chat-completion",
            "model_provider_name": "ridgeline",
            "model_sha": None,
            "model_dtype": service.ready.dtype,
            "model_pipeline_tag": "text-generation",
            "max_input_length": longest - 1,
            "max_input_tokens": longest - 1,
            "max_total_tokens": longest,
            "max_client_batch_size": 1024,
            "version": installed_ridgeline(),
        }
    )


@router.get("/get_model_info")
@router.get("/model_info")
async def model_info(request: Request) -> Response:
    """The model's folder and what it can do, as SGLang tells it."""
    ready = service_of(request).ready
    return json_response(
        {
            "model_path": ready.model,
            "tokenizer_path": ready.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": ready.sees_images,
            "has_audio_understanding": False,
        }
    )


@router.get("/get_server_info")
@router.get("/server_info")
async def server_info(request: Request) -> Response:
    """The server's model and version, as SGLang tells them."""
    service = service_of(request)
    return json_response(
        {
            "model_path": service.ready.model,
            "served_model_name": service.settings.model_name,
            "context_length": service.ready.max_length,
            "version": installed_ridgeline(),
            "internal_states": [{}],
        }
    )
