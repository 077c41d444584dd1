"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.conversation import prompt_of
from ridgeline.serve.http.protocol.tokens import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
)
from ridgeline.serve.http.service import json_response, record_of, service_of

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Token ids of a text, or of a conversation as the model would see it."""
    service, record = service_of(request), record_of(request)
    if body.model is not None:
        service.adapter(body.model)
    longest = service.ready.max_length
    if body.messages is None:
        special = body.add_special_tokens is not False
        tokens = await service.text.encode(body.prompt or "", special=special)
    else:
        tokens = await prompt_of(
            service.text,
            body.messages,
            body.tools or [],
            opens_turn=body.add_generation_prompt is not False,
            continues=False,
            variables=body.chat_template_kwargs or {},
            special=bool(body.add_special_tokens),
        )
    record.prompt_tokens = len(tokens)
    texts = service.text.pieces(tokens) if body.return_token_strs else None
    return json_response(
        Tokenized(count=len(tokens), max_model_len=longest, tokens=tokens, token_strs=texts)
    )


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """Text of token ids."""
    service = service_of(request)
    if body.model is not None:
        service.adapter(body.model)
    tokens = service.text.check(body.tokens, "tokens")
    return json_response(Detokenized(prompt=await service.text.decode(tokens)))
