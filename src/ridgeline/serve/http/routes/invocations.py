"""`/invocations`, as SageMaker calls a model: the body says which endpoint is meant."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.protocol.completions import CompletionRequest
from ridgeline.serve.http.protocol.embeddings import EmbeddingRequest
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.routes.chat import chat
from ridgeline.serve.http.routes.completions import completions
from ridgeline.serve.http.routes.embeddings import embeddings

router = APIRouter()
MEANT: dict[str, tuple[type[BaseModel], Any]] = {
    "messages": (ChatRequest, chat),
    "prompt": (CompletionRequest, completions),
    "input": (EmbeddingRequest, embeddings),
}
"""The field by which a request is told, its shape, and its endpoint."""


@router.post("/invocations")
async def invocations(request: Request, body: dict[str, Any]) -> Response:
    """A chat, a completion or an embedding, as the body has messages, prompt or input."""
    found = [name for name in MEANT if name in body]
    if len(found) != 1:
        raise refused("give one of messages, prompt and input: it says what is asked for")
    shape, endpoint = MEANT[found[0]]
    try:
        asked = shape.model_validate(body)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(wrong) from None
    response: Response = await endpoint(request, asked)
    return response
