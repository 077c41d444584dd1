"""Several models behind one front: which of them a request is for, and pipelines of them.

A request says its model in its body (`model`) or, where it has none, in its address (`?model=`);
without either, it is for the first. A pipeline is a name for models that answer one after
another: each stage is a request like any other to its model's engine, which batches it with all
others that are there at the time. What the client sees is the last stage's reply, streamed if it
asked for that; tokens are counted over all stages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.records.served_models import ModelPipeline, PipelineStage
from ridgeline.serve.http.access_log import own_path
from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.http.protocol.google import model_of_path
from ridgeline.serve.http.protocol.ollama import plain_name
from ridgeline.serve.http.reply import CHOSEN, error_response
from ridgeline.serve.http.service import Service

_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"
_CARRIED = ("temperature", "top_p", "seed", "user")
"""What the client says of sampling holds for every stage that does not say otherwise."""


class ModelChoice:
    """ASGI middleware behind the gate: bodies are whole and no longer than allowed."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._pipelines = {one.name: one for one in service.pipelines}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        first = await receive()
        given = _json_object(first.get("body", b""))
        name = model_of_path(own_path(scope)) or given.get("model") or _asked(scope)
        if own_path(scope).startswith("/api/"):
            name = plain_name(name or given.get("name"))
        try:
            pipeline = self._pipelines.get(name) if isinstance(name, str) else None
            if pipeline is not None:
                given = await self._through(pipeline, given, scope, receive)
                first = _body(given)
                name = given["model"]
            scope[CHOSEN] = self._serving(name)
        except ApiError as error:
            scope["ridgeline.record"].error = str(error)
            await error_response(error, scope)(scope, receive, send)
            return
        await self._app(scope, _again(first, receive), send)

    def _serving(self, name: Any) -> Service:
        if not isinstance(name, str) or not name:
            return self._service  # the route says what is wrong with it
        for service in self._service.all:
            if name in service.settings.names or name in service.adapters:
                return service
        listed = [one for service in self._service.all for one in service.settings.names]
        known = ", ".join([*listed, *self._pipelines])
        text = f"no model {name[:100]!r} here; known: {known}"
        raise ApiError(404, text, param="model", code="model_not_found")

    async def _through(
        self, pipeline: ModelPipeline, given: dict[str, Any], scope: Scope, receive: Receive
    ) -> dict[str, Any]:
        """The request for the last stage, once the others have answered. Raises ApiError."""
        path = own_path(scope)
        if path not in (_CHAT, _COMPLETION):
            raise refused(f"{pipeline.name} is a pipeline, which answers {_CHAT} and {_COMPLETION}")
        request = output = _text_of(given, path)
        *others, last = pipeline.stages
        for stage in others:
            body = _stage_body(stage, given, path, stage.text(request, output))
            output = await self._answer(body, path, scope, receive)
        return {**given, **_stage_fields(stage=last), **_asking(given, path, last, request, output)}

    async def _answer(self, body: dict[str, Any], path: str, scope: Scope, receive: Receive) -> str:
        """What one stage's model says. Raises ApiError."""
        parts: list[bytes] = []
        status = 500

        async def keep(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        inner = {**scope, "state": {}, CHOSEN: self._serving(body["model"])}
        await self._app(inner, _again(_body(body), receive), keep)
        reply = _json_object(b"".join(parts))
        if status != 200:
            said = reply.get("error", {}).get("message", "no reply")
            raise ApiError(status, f"stage {body['model']}: {said}")
        choice = reply["choices"][0]
        text: str | None = choice["message"]["content"] if path == _CHAT else choice["text"]
        return text or ""


def _stage_body(
    stage: PipelineStage, given: dict[str, Any], path: str, text: str
) -> dict[str, Any]:
    """A request of its own for a stage that is not the last."""
    carried = {name: given[name] for name in _CARRIED if name in given}
    asked: dict[str, Any] = {"prompt": text}
    if path == _CHAT:
        asked = {"messages": [{"role": "user", "content": text}]}
    return {**carried, **_stage_fields(stage), **asked, "model": stage.model}


def _stage_fields(stage: PipelineStage) -> dict[str, Any]:
    fields = {"max_tokens": stage.max_tokens, "temperature": stage.temperature}
    return {name: value for name, value in fields.items() if value is not None}


def _asking(
    given: dict[str, Any], path: str, last: PipelineStage, request: str, output: str
) -> dict[str, Any]:
    """What the last stage is asked, in place of what the client asked."""
    text = last.text(request, output)
    if path == _COMPLETION:
        return {"prompt": text, "model": last.model}
    *before, message = given["messages"]
    return {"messages": [*before, {**message, "content": text}], "model": last.model}


def _text_of(given: dict[str, Any], path: str) -> str:
    """What the client wrote, as the prompt or as the last message's content."""
    if path == _COMPLETION:
        if not isinstance(given.get("prompt"), str):
            raise refused("prompt: a pipeline takes one text", "prompt")
        return str(given["prompt"])
    messages = given.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or not isinstance(last.get("content"), str):
        raise refused("messages: a pipeline takes a text as the last message", "messages")
    return str(last["content"])


def _asked(scope: Scope) -> str:
    """The model in the address."""
    values: Sequence[str] = parse_qs(scope["query_string"].decode("latin-1")).get("model", [""])
    return values[0]


def _json_object(body: bytes) -> dict[str, Any]:
    """The body where it is an object; what else it is, the route says."""
    try:
        given = json.loads(body) if body else {}
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _body(given: dict[str, Any]) -> Message:
    return {"type": "http.request", "body": json.dumps(given).encode(), "more_body": False}


def _again(first: Message, receive: Receive) -> Receive:
    pending = [first]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again
