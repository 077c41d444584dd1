"""The endpoints that vectors answer, `/v1/embeddings`, `/pooling`, `/score` and `/rerank`.

An input becomes one vector, the mean of its last hidden states, of length one. The score of two
texts is the cosine of their vectors, and documents are ranked by it.
"""

from __future__ import annotations

import base64
import math
import struct
import time
from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.conversation import prompt_of
from ridgeline.serve.http.protocol.completions import several
from ridgeline.serve.http.protocol.embeddings import (
    ClassifyRequest,
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    EmbeddingUsage,
    PooledVector,
    PoolingRequest,
    RankedDocument,
    Ranking,
    RerankRequest,
    Score,
    ScoreRequest,
    VectorFields,
    VectorReply,
)
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.reply import json_response, new_id, record_of, service_of
from ridgeline.serve.http.service import Service

router = APIRouter()
Vector = tuple[float, ...]


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


@router.post("/score")
@router.post("/v1/score")
async def score(request: Request, body: ScoreRequest) -> Response:
    """How much texts are like each other: the cosine of their vectors."""
    first, second = body.sides
    prompts = [await tokens_of(request, body, text, "text") for text in (*first, *second)]
    vectors = await vectors_of(request, body, prompts)
    ours, theirs = vectors[: len(first)], vectors[len(first) :]
    pairs = zip(ours * len(theirs) if len(ours) == 1 else ours, theirs, strict=True)
    data = [Score(index=index, score=_cosine(a, b)) for index, (a, b) in enumerate(pairs)]
    return _reply(request, "score", data)


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Documents in order, the one most like the query first (Jina's and Cohere's words)."""
    most = body.max_tokens_per_doc
    prompts = [await tokens_of(request, body, body.query, "query")]
    prompts += [(await tokens_of(request, body, text, "documents"))[:most] for text in body.texts]
    query, *others = await vectors_of(request, body, prompts)
    results = [
        RankedDocument(
            index=index,
            relevance_score=_cosine(query, other),
            **({} if body.return_documents is False else {"document": {"text": text}}),
        )
        for index, (other, text) in enumerate(zip(others, body.texts, strict=True))
    ]
    results.sort(key=lambda one: -one.relevance_score)
    ranking = Ranking(
        id=new_id("rerank"),
        model=record_of(request).model,
        results=results[: body.top_n or None],
        usage=_usage(request),
    )
    return json_response(ranking)


async def _embedded(request: Request, body: EmbeddingRequest) -> list[list[float] | str]:
    """The vectors of a request's inputs, in the form that it asks for."""
    if body.messages is not None:
        prompts = [await _conversation(service_of(request), body)]
    else:
        assert body.input is not None
        inputs = several(body.input)
        prompts = [await tokens_of(request, body, one, "input") for one in inputs]
    vectors = await vectors_of(request, body, prompts)
    if body.dimensions is not None:
        vectors = [shortened(vector, body.dimensions) for vector in vectors]
    if body.encoding_format == "base64":
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


async def tokens_of(
    request: Request, body: VectorFields, given: str | list[int], param: str
) -> tuple[int, ...]:
    """The tokens of a text, or token ids as they came, checked."""
    text = service_of(request).text
    if isinstance(given, str):
        return await text.prompt(given, special=body.add_special_tokens is not False, param=param)
    return text.check(given, param)


async def vectors_of(
    request: Request, body: VectorFields, prompts: Sequence[tuple[int, ...]]
) -> list[Vector]:
    """One vector for each prompt; what is remembered of the request is filled in."""
    service, record = service_of(request), record_of(request)
    record.model, record.user = service.name_of(body.model), body.user
    record.without_effect = body.without_effect
    adapter = service.adapter(body.model)
    prompts = [service.cut(prompt, body.truncate_prompt_tokens, None) for prompt in prompts]
    for prompt in prompts:
        service.room(prompt, None, "input")
    vectors = await service.ask(request, service.engine.embed(tuple(prompts), adapter))
    record.prompt_tokens = sum(len(prompt) for prompt in prompts)
    return list(vectors)


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


def _cosine(one: Vector, other: Vector) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / (lengths or 1.0)


def shortened(vector: Vector, count: int) -> Vector:
    """The first numbers of a vector, normalised again. Raises ApiError where it has fewer."""
    if count > len(vector):
        text = f"dimensions is {count}; this model's vectors have {len(vector)}"
        raise refused(text, "dimensions")
    kept = vector[:count]
    length = math.hypot(*kept) or 1.0
    return tuple(value / length for value in kept)


def in_base64(vector: Vector) -> str:
    """The float32 of a vector, little endian."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
