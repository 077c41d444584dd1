"""Responses that were answered before, asked for again by their id, and forgotten on request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ridgeline.serve.http.background import BackgroundResponses, ResponseEvents
from ridgeline.serve.http.gate import owner_of
from ridgeline.serve.http.kept_responses import KeptResponse, KeptResponses, page_of
from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.http.reply import EventStream, StreamShape, json_response

router = APIRouter(prefix="/v1/responses/{response_id}")
MOST_ITEMS = 100
"""The most items of one page."""


@router.get("")
async def retrieve(
    request: Request,
    response_id: str,
    *,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    """The response as it was told when it was complete, or as far as it has come.

    One that was begun in the background as a stream is told as a stream again, from the event
    behind `starting_after` on.
    """
    found = _found(request, response_id)
    if not stream:
        return Response(found.document, media_type="application/json")
    log = _background(request).log_of(response_id)
    if log is None:
        text = "stream: only a response that was begun with background and stream is streamed again"
        raise refused(text, "stream")
    return followed(log, starting_after + 1)


@router.delete("")
async def delete(request: Request, response_id: str) -> Response:
    """Forget a response; later ones that go on from it stay whole."""
    _found(request, response_id)
    _background(request).forget(response_id)
    _kept(request).forget(response_id, owner_of(request.scope))
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/cancel")
async def cancel(request: Request, response_id: str) -> Response:
    """End the work on a response in the background; one that was ended before stays so."""
    document = _found(request, response_id).response
    if not document["background"]:
        raise refused("only responses in the background can be cancelled")
    if _background(request).end(response_id):
        document["status"] = "cancelled"
        replace(request, document)
    return json_response(document)


@router.get("/input_items")
async def input_items(
    request: Request,
    response_id: str,
    *,
    limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """The items that a response answers, a page of them; the last ones first."""
    items = _found(request, response_id).input
    return json_response(page_of(items, limit=limit, order=order, after=after))


def followed(log: ResponseEvents, first: int = 0) -> Response:
    """The events of a response in the background, from number `first` on, as they come."""
    return EventStream(log.follow(first), lambda: None, lambda _: None, StreamShape(named=True))


def previous(request: Request, response_id: str | None) -> list[dict[str, Any]]:
    """The conversation that a request goes on from. Raises ApiError where it is not kept."""
    if response_id is None:
        return []
    found = _kept(request).find(response_id, owner_of(request.scope))
    if found is None:
        text = f"previous_response_id: {_no_response(response_id)}"
        raise ApiError(400, text, param="previous_response_id", code="previous_response_not_found")
    status = found.response["status"]
    if status in ("queued", "in_progress"):
        text = f"previous_response_id: it is {status}; go on from it when it is complete"
        raise ApiError(400, text, param="previous_response_id")
    return found.conversation


def replace(request: Request, document: dict[str, Any]) -> bool:
    """Keep a response in the place of its earlier state; False where that is not kept any more."""
    found = _kept(request).find(document["id"], owner_of(request.scope))
    return found is not None and keep(request, document, found.input)


def keep(request: Request, document: dict[str, Any], items: list[dict[str, Any]]) -> bool:
    """Keep a response that is complete; False where it is too long."""
    return _kept(request).keep(document["id"], document, items, owner_of(request.scope))


def _found(request: Request, response_id: str) -> KeptResponse:
    found = _kept(request).find(response_id, owner_of(request.scope))
    if found is None:
        raise ApiError(404, _no_response(response_id), param="response_id")
    return found


def _no_response(response_id: str) -> str:
    return (
        f"no response {response_id[:100]!r} is kept here; they are kept in memory, unless `store`"
        " is false, until newer ones need the room or the server ends"
    )


def _background(request: Request) -> BackgroundResponses:
    found: BackgroundResponses = request.app.state.background
    return found


def _kept(request: Request) -> KeptResponses:
    kept: KeptResponses = request.app.state.kept_responses
    return kept
