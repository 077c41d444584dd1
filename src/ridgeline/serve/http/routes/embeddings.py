"""The endpoints of vectors themselves, `/v1/embeddings`, `/pooling` and `/score`.

The score of two texts is the cosine of their vectors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.conversation import prompt_of
from ridgeline.serve.http.embedding import (
    cosine,
    cut,
    in_base64,
    shortened,
    tokens_of,
    vectors_of,
)
from ridgeline.serve.http.protocol.completions import several
from ridgeline.serve.http.protocol.embeddings import (
    ClassifyRequest,
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    EmbeddingUsage,
    PooledVector,
    PoolingRequest,
    Score,
    ScoreRequest,
    VectorReply,
)
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.reply import json_response, new_id, record_of, service_of
from ridgeline.serve.http.service import Service

router = APIRouter()


@router.post("/v1/embeddings")
async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
    """One vector per input: the mean of its last hidden states, normalised."""
    vectors = await _embedded(request, body)
    data = [Embedding(index=index, embedding=one) for index, one in enumerate(vectors)]
    record = record_of(request)
    listed = EmbeddingList(
        id=new_id("embd"),
        created=int(time.time()),
        data=data,
        model=record.model,
        usage=_usage(request),
    )
    return json_response(listed)


@router.post("/pooling")
async def pooling(request: Request, body: PoolingRequest) -> Response:
    """The same vectors in the words of vLLM's `/pooling`."""
    vectors = await _embedded(request, body)
    data = [PooledVector(index=index, data=one) for index, one in enumerate(vectors)]
    return _reply(request, "pool", data)


@router.post("/classify")
async def classify(_request: Request, _body: ClassifyRequest) -> Response:
    """A refusal, for a causal language model has no classifier's head."""
    raise refused(
        "this model writes text and has no classifier's head; ask it with structured_outputs.choice"
    )


@router.post("/v1/moderations")
async def moderations(_request: Request) -> Response:
    """A refusal, for nothing here was trained to tell harmful texts."""
    raise refused(
        "this server has no moderation model, and a language model that was not trained for it"
        " gives no such scores; serve a guard model, and ask it as a chat"
    )


@router.post("/score")
@router.post("/v1/score")
async def score(request: Request, body: ScoreRequest) -> Response:
    """How much texts are like each other: the cosine of their vectors."""
    first, second = body.sides
    prompts = [await tokens_of(request, body, text, "text") for text in (*first, *second)]
    vectors = await vectors_of(request, body, prompts)
    ours, theirs = vectors[: len(first)], vectors[len(first) :]
    pairs = zip(ours * len(theirs) if len(ours) == 1 else ours, theirs, strict=True)
    data = [Score(index=index, score=cosine(a, b)) for index, (a, b) in enumerate(pairs)]
    return _reply(request, "score", data)


async def _embedded(request: Request, body: EmbeddingRequest) -> list[list[float] | str]:
    """The vectors of a request's inputs, in the form that it asks for."""
    if body.messages is not None:
        prompts = [await _conversation(service_of(request), body)]
    else:
        assert body.input is not None
        inputs = several(body.input)
        prompts = [await tokens_of(request, body, one, "input") for one in inputs]
    if body.cut_at is not None:
        prompts = [cut(request, prompt, body.cut_at, None) for prompt in prompts]
    vectors = await vectors_of(request, body, prompts)
    if body.length is not None:
        vectors = [shortened(vector, body.length) for vector in vectors]
    if body.form == "base64":
        return [in_base64(vector) for vector in vectors]
    return [list(vector) for vector in vectors]


async def _conversation(service: Service, body: EmbeddingRequest) -> tuple[int, ...]:
    prompt, images = await prompt_of(
        service.text,
        body.messages or [],
        [],
        opens_turn=bool(body.add_generation_prompt),
        continues=False,
        variables=body.chat_template_kwargs or {},
        special=bool(body.add_special_tokens),
    )
    if images:
        raise refused("vectors are made of text, not of images", "messages")
    return prompt


def _reply(request: Request, kind: str, data: Sequence[object]) -> Response:
    return json_response(
        VectorReply(
            id=new_id(kind),
            created=int(time.time()),
            model=record_of(request).model,
            data=list(data),
            usage=_usage(request),
        )
    )


def _usage(request: Request) -> EmbeddingUsage:
    count = record_of(request).prompt_tokens
    return EmbeddingUsage(prompt_tokens=count, total_tokens=count)
