"""Vectors as other servers give them: Cohere's `/v2/embed`, Hugging Face's `/embed`.

They are those of `/v1/embeddings`.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.protocol.completions import several
from ridgeline.serve.http.protocol.embed import (
    CohereEmbeddings,
    CohereEmbedRequest,
    TextsEmbedRequest,
    Truncate,
)
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.reply import json_response, new_id, record_of, service_of
from ridgeline.serve.http.routes.embeddings import (
    Vector,
    in_base64,
    shortened,
    tokens_of,
    vectors_of,
)

router = APIRouter()


@router.post("/v2/embed")
async def cohere_embed(request: Request, body: CohereEmbedRequest) -> Response:
    """One vector per text, in each form that is asked for."""
    prompts = [await tokens_of(request, body, text, "texts") for text in body.texts]
    cut_at = body.truncate or "END"
    prompts = [_cut(request, one, cut_at, body.max_tokens) for one in prompts]
    vectors = await _of_length(request, body, prompts, body.output_dimension)
    told: dict[str, list[Any]] = {
        form: [list(one) if form == "float" else in_base64(one) for one in vectors]
        for form in body.forms
    }
    tokens = {"input_tokens": record_of(request).prompt_tokens}
    meta = {"api_version": {"version": "2"}, "billed_units": tokens, "tokens": tokens}
    found = CohereEmbeddings(id=new_id("embd"), embeddings=told, texts=body.texts, meta=meta)
    return json_response(found)


@router.post("/embed")
async def embed(request: Request, body: TextsEmbedRequest) -> Response:
    """One vector per input, as a bare list."""
    given = several(body.inputs)
    prompts = [await tokens_of(request, body, one, "inputs") for one in given]
    prompts = [_cut(request, one, body.cut_at, None) for one in prompts]
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


def _cut(
    request: Request, prompt: tuple[int, ...], cut_at: Truncate, most: int | None
) -> tuple[int, ...]:
    """What is left of a text's tokens. Raises ApiError where it must not be cut."""
    longest = service_of(request).ready.max_length - 1
    if most is not None:
        longest = min(longest, most)
    if len(prompt) <= longest:
        return prompt
    if cut_at == "NONE":
        text = f"a text has {len(prompt)} tokens, of which {longest} are taken; ask to truncate it"
        raise refused(text, "truncate")
    return prompt[:longest] if cut_at == "END" else prompt[-longest:]
