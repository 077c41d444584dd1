"""`/v1/embeddings`."""

from __future__ import annotations

import base64
import struct

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.protocol.completions import several
from ridgeline.serve.http.protocol.embeddings import Embedding, EmbeddingRequest, Embeddings
from ridgeline.serve.http.protocol.usage import EmbeddingUsage
from ridgeline.serve.http.service import json_response, record_of, service_of

router = APIRouter()


@router.post("/v1/embeddings")
async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
    """One vector per input: the mean of its last hidden states, normalised."""
    service, record = service_of(request), record_of(request)
    record.model, record.user = body.model, body.user
    adapter = service.adapter(body.model)
    prompts = [
        await service.text.prompt(one, special=True, param="input")
        if isinstance(one, str)
        else service.text.check(one, "input")
        for one in several(body.input)
    ]
    for prompt in prompts:
        service.room(prompt, None, "input")
    vectors = await service.ask(request, service.engine.embed(tuple(prompts), adapter))
    record.prompt_tokens = sum(len(prompt) for prompt in prompts)
    as_text = body.encoding_format == "base64"
    return json_response(
        Embeddings(
            data=[
                Embedding(index=index, embedding=_base64(vector) if as_text else list(vector))
                for index, vector in enumerate(vectors)
            ],
            model=body.model,
            usage=EmbeddingUsage(
                prompt_tokens=record.prompt_tokens, total_tokens=record.prompt_tokens
            ),
        )
    )


def _base64(vector: tuple[float, ...]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
