"""Conversations that are kept, to which each response adds what was said (`/v1/conversations`).

They stand where kept responses stand, bounded as they are: in memory, each for its API key alone.
"""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from ridgeline.serve.http.gate import owner_of
from ridgeline.serve.http.kept_responses import KeptResponse, KeptResponses, page_of
from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import Text
from ridgeline.serve.http.protocol.response_items import MOST_ITEMS, InputItem
from ridgeline.serve.http.reply import json_response
from ridgeline.serve.http.response_request import listed

router = APIRouter(prefix="/v1/conversations")
Items = list[dict[str, Any]]
MOST_AT_ONCE = 20
"""The most items of one request, as at OpenAI."""
Metadata = Annotated[dict[str, Text], few(16)]


class NewItems(Strict):
    """Items that are added to a conversation."""

    items: Annotated[list[InputItem], Field(min_length=1, max_length=MOST_AT_ONCE, fail_fast=True)]


class NewConversation(Strict):
    """A conversation, empty or with its first items."""

    items: Annotated[list[InputItem], Field(max_length=MOST_AT_ONCE, fail_fast=True)] | None = None
    metadata: Metadata | None = None


class NewMetadata(Strict):
    """What a conversation's metadata become."""

    metadata: Metadata | None


@router.post("")
async def create(request: Request, body: NewConversation) -> Response:
    """Begin a conversation, which is told."""
    found = {
        "id": f"conv_{uuid.uuid4().hex}",
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": body.metadata or {},
    }
    _keep(request, found, listed(body.items or []))
    return json_response(found)


@router.get("/{conversation_id}")
async def retrieve(request: Request, conversation_id: str) -> Response:
    """The conversation, without its items."""
    return json_response(_found(request, conversation_id).response)


@router.post("/{conversation_id}")
async def update(request: Request, conversation_id: str, body: NewMetadata) -> Response:
    """Replace a conversation's metadata."""
    found = _found(request, conversation_id)
    document = {**found.response, "metadata": body.metadata or {}}
    _keep(request, document, found.input)
    return json_response(document)


@router.delete("/{conversation_id}")
async def delete(request: Request, conversation_id: str) -> Response:
    """Forget a conversation; responses within it stay."""
    _found(request, conversation_id)
    _kept(request).forget(conversation_id, owner_of(request.scope))
    told = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
    return json_response(told)


@router.post("/{conversation_id}/items")
async def add_items(request: Request, conversation_id: str, body: NewItems) -> Response:
    """Add items to the end of a conversation."""
    new = listed(body.items)
    _add(request, _found(request, conversation_id), new)
    return json_response(page_of(new, limit=len(new), order="asc", after=None))


@router.get("/{conversation_id}/items")
async def list_items(
    request: Request,
    conversation_id: str,
    *,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """The items of a conversation, a page of them; the last ones first."""
    items = _found(request, conversation_id).input
    return json_response(page_of(items, limit=limit, order=order, after=after))


@router.get("/{conversation_id}/items/{item_id}")
async def retrieve_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """One item of a conversation."""
    items = _found(request, conversation_id).input
    return json_response(items[_place(items, item_id)])


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Take an item out of a conversation, which is told."""
    found = _found(request, conversation_id)
    items = found.input
    del items[_place(items, item_id)]
    _keep(request, found.response, items)
    return json_response(found.response)


def said_before(request: Request, conversation_id: str | None) -> Items:
    """The items of the conversation in which a response is asked for. Raises ApiError."""
    if conversation_id is None:
        return []
    return _found(request, conversation_id, param="conversation").input


def add_said(request: Request, conversation_id: str, new: Items) -> None:
    """Add what was asked and answered; a conversation that is not kept any more stays so."""
    found = _kept(request).find(conversation_id, owner_of(request.scope))
    if found is not None:
        _kept(request).keep(
            conversation_id, found.response, [*found.input, *new], owner_of(request.scope)
        )


def _add(request: Request, found: KeptResponse, new: Items) -> None:
    items = [*found.input, *new]
    if len(items) > MOST_ITEMS:
        raise refused(f"items: {len(items)} with those before; at most {MOST_ITEMS}", "items")
    _keep(request, found.response, items)


def _keep(request: Request, document: dict[str, Any], items: Items) -> None:
    if not _kept(request).keep(document["id"], document, items, owner_of(request.scope)):
        raise refused("items: this conversation is too long to be kept", "items")


def _place(items: Items, item_id: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise ApiError(404, f"no item {item_id[:100]!r} in this conversation", param="item_id")


def _found(request: Request, conversation_id: str, param: str = "conversation_id") -> KeptResponse:
    found = _kept(request).find(conversation_id, owner_of(request.scope))
    if found is None:
        text = (
            f"no conversation {conversation_id[:100]!r} is kept here; they are kept in memory,"
            " until newer ones need the room or the server ends"
        )
        raise ApiError(404, text, param=param)
    return found


def _kept(request: Request) -> KeptResponses:
    kept: KeptResponses = request.app.state.kept_conversations
    return kept
