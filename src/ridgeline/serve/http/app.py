"""The API as one FastAPI application."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from ridgeline.serve.http.access_log import CLIENT_GONE, AccessLog
from ridgeline.serve.http.background import BackgroundResponses
from ridgeline.serve.http.browsers import let_browsers_ask
from ridgeline.serve.http.gate import Gate, PlainPaths
from ridgeline.serve.http.kept_responses import KeptResponses
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.reply import ClientGone, error_response, record_of
from ridgeline.serve.http.routes import (
    chat,
    cohere_chat,
    cohere_older,
    completions,
    conversations,
    embed,
    embeddings,
    facts,
    generate,
    google,
    invocations,
    kept_responses,
    llama_cpp,
    messages,
    models,
    older_texts,
    ollama,
    ollama_models,
    operations,
    ranking,
    responses,
)
from ridgeline.serve.http.service import Service
from ridgeline.serve.http.several_models import ModelChoice

ROUTES = (
    *(chat, completions, responses, kept_responses, messages, models, embeddings, embed, ranking),
    *(
        cohere_chat,
        cohere_older,
        older_texts,
        conversations,
        generate,
        google,
        ollama,
        ollama_models,
        llama_cpp,
        facts,
        invocations,
        operations,
    ),
)
_ERROR = {
    "description": "OpenAI's error shape",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                    }
                },
            }
        }
    },
}
_ERRORS: dict[int | str, dict[str, Any]] = dict.fromkeys(
    (400, 401, 404, 413, 422, 429, 503, 504), _ERROR
)


def create_app(service: Service) -> FastAPI:
    """All routes around one service."""
    app = FastAPI(
        title="Ridgeline",
        description="OpenAI-compatible API of one language model.",
        version="1",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        responses=_ERRORS,
    )
    app.state.service = service
    app.state.kept_responses = KeptResponses()
    app.state.kept_conversations = KeptResponses()
    app.state.background = BackgroundResponses()
    for route in ROUTES:
        app.include_router(route.router)
    if service.beside:
        app.add_middleware(ModelChoice, service=service)
    app.add_middleware(Gate, service=service)
    let_browsers_ask(app, service.settings.allowed_origins)
    app.add_middleware(AccessLog, service=service)
    app.add_middleware(PlainPaths, is_route=lambda scope: _is_route(app, scope))
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ValidationError, _untranslatable)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(Exception, _bug)
    return app


def _is_route(app: FastAPI, scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in app.routes)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    record_of(request).error = str(error)
    return error_response(error, request.scope)


async def _invalid(request: Request, error: Exception) -> Response:
    """Name the field that is wrong; of a union's alternatives, the one that came furthest."""
    assert isinstance(error, RequestValidationError)
    # Of a value that fits no alternative, what is wrong beyond its type says more.
    worst = max(error.errors(), key=lambda one: (len(one["loc"]), one["type"] in _TOO_SHORT))
    path = [str(part) for part in worst["loc"][1:] if _is_field(part)]
    if worst["type"] == "extra_forbidden" and not _is_field(worst["loc"][-1]):
        path.append(str(worst["loc"][-1]))  # a name as no field here has: "tensorzero::tags"
    param = path[0] if path else None
    where = ".".join(path)
    match worst["type"]:
        case "none_required":
            text = f"{where} is not supported; leave it out"
        case "extra_forbidden":
            text = (
                f"{where[:200]} is no field of this request; leave it out, or start the server with"
                " --unknown-fields ignore"
            )
        case "union_tag_invalid":
            text = f"{where}: {str(worst['ctx']['tag'])[:100]!r} is not served here"
        case "json_invalid":
            text, param = "the body is no JSON", None
        case "missing" | "model_attributes_type" | "dict_type" if not path:
            text = _why_no_object(request)
        case _:
            text = str(worst["msg"]).removeprefix("Value error, ")
            text = f"{where}: {text}" if where else text
    return await _api_error(request, ApiError(400, text, param=param))


async def _untranslatable(request: Request, error: Exception) -> Response:
    """Name what one API's words allow and cannot be asked in OpenAI's."""
    assert isinstance(error, ValidationError)
    wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
    return await _invalid(request, RequestValidationError(wrong))


def _why_no_object(request: Request) -> str:
    """What a client forgot whose body is not read as a JSON object."""
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return "the body is no JSON object"
    said = f"the body came as {given[:100]!r}" if given else "the body came without Content-Type"
    return f"{said}; send a JSON object with the header Content-Type: application/json"


def _is_field(part: str | int) -> bool:
    """Whether it stands in the request, or is pydantic's name for an alternative of a union."""
    return isinstance(part, int) or (part.isidentifier() and part not in _ALTERNATIVES)


_TOO_SHORT = frozenset({"too_short", "string_too_short"})
_ALTERNATIVES = frozenset({"str", "float", "int", "bool"})


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {404: f"no such endpoint: {request.url.path[:200]}", 405: f"not with {request.method}"}
    message = texts.get(error.status_code, str(error.detail))
    if isinstance(error.__cause__, ValueError):  # the parser's, of what the grammar of JSON allows
        message = f"the body is no JSON for this server: {_first_words(error.__cause__)}"
    response = await _api_error(request, ApiError(error.status_code, message))
    response.headers.update(error.headers or {})
    return response


def _first_words(error: ValueError) -> str:
    """What is wrong, without the advice for whoever wrote the server."""
    return str(error).partition("; use sys.")[0]


async def _gone(request: Request, error: Exception) -> Response:  # noqa: ARG001  Starlette's shape
    return Response(status_code=CLIENT_GONE)


async def _bug(request: Request, error: Exception) -> Response:
    """Starlette raises it again behind this, so that the trace is logged."""
    return error_response(ApiError(500, f"internal error: {type(error).__name__}"), request.scope)
