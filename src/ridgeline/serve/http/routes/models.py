"""`/v1/models`, adapters coming and going, `/tokenize`, `/detokenize`, `/tokenizer_info`."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.serve.http.conversation import prompt_of
from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.http.protocol.models import (
    Detokenized,
    DetokenizeRequest,
    LoadAdapterRequest,
    ModelCard,
    ModelList,
    Tokenized,
    TokenizeRequest,
    TokenPiece,
    UnloadAdapterRequest,
)
from ridgeline.serve.http.reply import json_response, record_of, service_of
from ridgeline.serve.http.service import Service

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The models and their adapters, and pipelines of models."""
    service = service_of(request)
    cards = [card for one in service.all for card in _cards(one)]
    return json_response(ModelList(data=[*cards, *_pipeline_cards(service)]))


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """The model, or one of its adapters."""
    service = service_of(request)
    cards = [*(card for one in service.all for card in _cards(one)), *_pipeline_cards(service)]
    found = next((card for card in cards if card.id == name), None)
    if found is None:
        service.adapter(name)
    return json_response(found)


@router.post("/v1/load_lora_adapter")
async def load_adapter(request: Request, body: LoadAdapterRequest) -> Response:
    """Load a LoRA adapter from a directory of the server's machine."""
    service = service_of(request)
    if body.lora_name in service.settings.names:
        raise refused(f"{body.lora_name} is the model itself", "lora_name")
    command = service.engine.load_adapter(body.lora_name, body.lora_path)
    await service.ask(request, command)
    return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
async def unload_adapter(request: Request, body: UnloadAdapterRequest) -> Response:
    """Unload a LoRA adapter that no request uses."""
    service = service_of(request)
    if body.lora_name not in service.adapters:
        raise ApiError(404, f"no adapter {body.lora_name[:100]!r} here", param="lora_name")
    await service.ask(request, service.engine.unload_adapter(body.lora_name))
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _cards(service: Service) -> list[ModelCard]:
    ready, name = service.ready, service.settings.model_name
    modalities = ("text", "image") if ready.sees_images else ("text",)
    able = _capabilities(service)
    own = [
        ModelCard(
            id=one,
            created=service.created,
            max_model_len=ready.max_length,
            root=ready.model,
            input_modalities=modalities,
            capabilities=able,
        )
        for one in service.settings.names
    ]
    adapters = [
        ModelCard(
            id=adapter,
            created=service.created,
            max_model_len=ready.max_length,
            root=adapter,
            parent=name,
            input_modalities=modalities,
            capabilities=able,
        )
        for adapter in service.adapters
    ]
    return [*own, *adapters]


def _capabilities(service: Service) -> dict[str, bool]:
    return {
        "completion_chat": True,
        "completion_fim": service.text.infill is not None,
        "function_calling": service.text.template.origin != "plain",
        "fine_tuning": False,
        "vision": service.ready.sees_images,
    }


def _pipeline_cards(service: Service) -> list[ModelCard]:
    """Pipelines as models whose longest request is that of the last stage."""
    named = {one.settings.model_name: one for one in service.all}
    return [
        ModelCard(
            id=one.name,
            created=service.created,
            max_model_len=named[one.stages[-1].model].ready.max_length,
            root=" → ".join(stage.model for stage in one.stages),
            input_modalities=("text",),
            capabilities=_capabilities(named[one.stages[-1].model]),
        )
        for one in service.pipelines
    ]


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
        tokens, _ = await prompt_of(
            service.text,
            body.messages,
            body.tools or [],
            opens_turn=_opens_turn(body),
            continues=bool(body.continue_final_message),
            variables=body.chat_template_kwargs or {},
            special=bool(body.add_special_tokens),
        )
    record.prompt_tokens = len(tokens)
    told: Sequence[int | TokenPiece] = tokens
    if body.with_pieces:
        pieces = zip(tokens, service.text.pieces(tokens), strict=True)
        told = [TokenPiece(id=token, piece=text) for token, text in pieces]
    texts = service.text.pieces(tokens) if body.return_token_strs else None
    return json_response(
        Tokenized(count=len(tokens), max_model_len=longest, tokens=told, token_strs=texts)
    )


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """Text of token ids."""
    service = service_of(request)
    if body.model is not None:
        service.adapter(body.model)
    tokens = service.text.check(body.tokens, "tokens")
    text = await service.text.decode(tokens)
    return json_response(Detokenized(prompt=text, content=text))


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """The tokenizer's class, special tokens and chat template, as clients that tokenise ask."""
    service = service_of(request)
    tokenizer, text = service.text.tokenizer, service.text
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return json_response(
        {
            "tokenizer_class": getattr(tokenizer, "class_name", type(tokenizer).__name__),
            "chat_template": text.template.text,
            "vocab_size": text.vocab,
            "model_max_length": service.ready.max_length,
            **special,
        }
    )


def _opens_turn(body: TokenizeRequest) -> bool:
    if body.add_generation_prompt is None:
        return not body.continue_final_message
    return body.add_generation_prompt
