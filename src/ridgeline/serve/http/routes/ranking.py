"""The endpoints that put documents in order, `/rerank` and `/v1/ranking`: by the cosine of vectors.

One order in the words of several servers; see `protocol.ranking`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.embedding import cosine, cut, tokens_of, vectors_of
from ridgeline.serve.http.protocol.embeddings import EmbeddingUsage, Truncate
from ridgeline.serve.http.protocol.ranking import (
    PassageRanking,
    RankedDocument,
    RankedPassage,
    Ranking,
    RankingRequest,
    RankingUsage,
    RerankRequest,
)
from ridgeline.serve.http.reply import json_response, new_id, record_of

router = APIRouter()


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Documents in order, the one most like the query first."""
    texts = [body.query, *body.read]
    order = await _ranked(request, body, texts, body.cut_at, body.max_tokens_per_doc)
    if body.documents is None:
        best = order[: body.most]
        return json_response([_ranked_text(body, index, score) for index, score in best])
    bare = [RankedDocument(index=one, relevance_score=score) for one, score in order[: body.most]]
    shown = body.shown
    count = record_of(request).prompt_tokens
    ranking = Ranking(
        id=new_id("rerank"),
        model=record_of(request).model,
        results=bare
        if body.return_documents is False
        else [
            RankedDocument(
                index=one.index,
                relevance_score=one.relevance_score,
                document=shown[one.index],
            )
            for one in bare
        ],
        data=bare,
        meta={
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": count},
        },
        usage=RankingUsage(prompt_tokens=count, total_tokens=count),
    )
    return json_response(ranking)


@router.post("/v1/ranking")
async def ranking(request: Request, body: RankingRequest) -> Response:
    """The same order in the words of NVIDIA's API."""
    order = await _ranked(request, body, body.texts, body.truncate or "NONE", None)
    count = record_of(request).prompt_tokens
    found = PassageRanking(
        rankings=[RankedPassage(index=index, logit=score) for index, score in order],
        usage=EmbeddingUsage(prompt_tokens=count, total_tokens=count),
    )
    return json_response(found)


async def _ranked(
    request: Request,
    body: RerankRequest | RankingRequest,
    texts: Sequence[str],
    cut_at: Truncate,
    most: int | None,
) -> list[tuple[int, float]]:
    """The places of all texts behind the first, with their likeness to it, the greatest first."""
    param = "passages" if isinstance(body, RankingRequest) else "documents"
    query = await tokens_of(request, body, texts[0], "query")
    prompts = [await tokens_of(request, body, text, param) for text in texts[1:]]
    prompts = [query, *(prompt[:most] for prompt in prompts)]
    if cut_at != "NONE":
        prompts = [cut(request, prompt, cut_at, None) for prompt in prompts]
    first, *others = await vectors_of(request, body, prompts)
    scores = [(index, cosine(first, other)) for index, other in enumerate(others)]
    return sorted(scores, key=lambda one: -one[1])


def _ranked_text(body: RerankRequest, index: int, score: float) -> dict[str, Any]:
    """One text in its order, as text-embeddings-inference's clients read it."""
    text = {"text": (body.texts or [])[index]} if body.return_text else {}
    return {"index": index, "score": score, **text}
