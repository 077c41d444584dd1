"""Vectors as other servers give them: Cohere's `/v2/embed`, Hugging Face's `/embed`.

They are those of `/v1/embeddings`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.embedding import (
    Vector,
    cut,
    in_base64,
    shortened,
    tokens_of,
    vectors_of,
)
from ridgeline.serve.http.protocol.completions import several
from ridgeline.serve.http.protocol.embed import (
    CohereEmbeddings,
    CohereEmbedRequest,
    TextsEmbedRequest,
)
from ridgeline.serve.http.reply import json_response, new_id, record_of

router = APIRouter()


@router.post("/v1/embed")
@router.post("/v2/embed")
async def cohere_embed(request: Request, body: CohereEmbedRequest) -> Response:
    """One vector per text, in each form that is asked for."""
    prompts = [await tokens_of(request, body, text, "texts") for text in body.texts]
    cut_at = body.truncate or "END"
    prompts = [cut(request, one, cut_at, body.max_tokens) for one in prompts]
    vectors = await _of_length(request, body, prompts, body.output_dimension)
    told: dict[str, list[Any]] = {
        form: [list(one) if form == "float" else in_base64(one) for one in vectors]
        for form in body.forms
    }
    tokens = {"input_tokens": record_of(request).prompt_tokens}
    old = request.url.path.endswith("/v1/embed")
    meta = {
        "api_version": {"version": "1" if old else "2"},
        "billed_units": tokens,
        "tokens": tokens,
    }
    found = CohereEmbeddings(id=new_id("embd"), embeddings=told, texts=body.texts, meta=meta)
    if old and not body.embedding_types:  # the older API has its vectors bare then
        found = msgspec.structs.replace(
            found, embeddings=told["float"], response_type="embeddings_floats"
        )
    return json_response(found)


@router.post("/embed")
async def embed(request: Request, body: TextsEmbedRequest) -> Response:
    """One vector per input, as a bare list."""
    given = several(body.inputs)
    prompts = [await tokens_of(request, body, one, "inputs") for one in given]
    prompts = [cut(request, one, body.cut_at, None) for one in prompts]
    vectors = await _of_length(request, body, prompts, body.dimensions)
    return json_response([list(one) for one in vectors])


async def _of_length(
    request: Request,
    body: CohereEmbedRequest | TextsEmbedRequest,
    prompts: list[tuple[int, ...]],
    dimensions: int | None,
) -> list[Vector]:
    vectors = await vectors_of(request, body, prompts)
    if dimensions is None:
        return vectors
    return [shortened(one, dimensions) for one in vectors]
