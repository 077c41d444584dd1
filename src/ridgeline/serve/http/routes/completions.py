"""The endpoints that continue texts, `/v1/completions` and Mistral's `/v1/fim/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.completion_request import begin_completions
from ridgeline.serve.http.filled_text import FilledTextWriter
from ridgeline.serve.http.protocol.completions import CompletionRequest
from ridgeline.serve.http.protocol.infill import FillRequest
from ridgeline.serve.http.reply import record_of, respond, service_of

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue each prompt, whole or as a stream."""
    begun = await begin_completions(service_of(request), record_of(request), body)
    return await respond(request, begun.submits, begun.writer, stream=body.stream)


@router.post("/v1/fim/completions")
async def fill(request: Request, body: FillRequest) -> Response:
    """Write what stands between two texts, told as a chat's answer, as Mistral does."""
    asked = body.completion
    begun = await begin_completions(service_of(request), record_of(request), asked, usual=None)
    writer = FilledTextWriter(begun.writer)
    return await respond(request, begun.submits, writer, stream=body.stream)
