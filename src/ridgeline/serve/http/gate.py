"""What is done before any route: paths as the routes have them, who may ask, and how much.

A base address that ends with a slash gives `//v1/models` or `/v1/models/`, and probes ask with
HEAD, which is answered as GET is, without the body (RFC 9110, 9.3.2; the connection leaves it out).
Each cloud has a prefix of its own before the paths of an API (`/openai/deployments/NAME`, `/beta`,
`/api/v1`, `/anthropic/v1`, `/serving-endpoints/NAME`, `/v1/projects/…/publishers/google`, nothing),
and where a client adds a `/v1` to a base address that has one, there are two: a path that is no
route, but ends as one does, is taken for that one. Google's clients, known by the header of their
key, ask for `/v1/models` where they mean `/v1beta/models`, which is told in other words.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import zlib
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.records.input_file import DEEPEST, too_deep
from ridgeline.serve.http.access_log import own_path
from ridgeline.serve.http.connection import ARRIVAL_SECONDS
from ridgeline.serve.http.protocol.errors import RETRY_AFTER_SECONDS, ApiError, refused
from ridgeline.serve.http.protocol.exact import LetGo, letting_go
from ridgeline.serve.http.reply import ClientGone, error_response
from ridgeline.serve.http.service import Service, shutting_down

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>u[dD][89a-fA-F]..)|.)", re.DOTALL
)
"""A backslash with what belongs to it; halves of characters that stand together are one."""
OPEN_PATHS = frozenset({
    *("/health", "/ready", "/metrics", "/ping"),
    *("/health_generate", "/v2/health/live", "/v2/health/ready"),
})  # fmt: skip
"""Paths that need no key, since probes and scrapers have none."""
KEY_HEADERS = (b"x-api-key", b"api-key", b"x-goog-api-key")
"""Where clients of Anthropic's, of Azure's and of Google's API send their key."""
OWNER = "ridgeline.owner"
"""Where a request's scope says what tells its API key apart; not there where none is asked for."""
BODIES_AT_ONCE = 32
"""So many of the longest may be arriving together: a thousand would fill the memory."""
SHORT_BODY_BYTES = 2**16
"""Taken whatever else is arriving."""


def check_body(body: bytes) -> None:
    """Refuse what no request can be.

    Raises:
        ApiError: 400: the body is nested too deeply, no UTF-8, or has half a character in it.
    """
    if b"\0" in body:  # as in UTF-16, which Python's parser would take
        raise refused("the body is no JSON: it has NUL bytes; send it as UTF-8")
    try:
        body.decode()
    except UnicodeDecodeError:
        raise refused("the body is no JSON: it is not UTF-8") from None
    if too_deep(body):
        raise refused(f"the body is nested too deeply: more than {DEEPEST} levels")
    if rb"\u" in body and any(one["half"] for one in _ESCAPE.finditer(body)):
        param = _where(body)
        place = f"{param}: " if param else "the body: "
        raise refused(
            f"{place}half a character (one surrogate of two, \\ud800 to \\udfff) is no text", param
        )


def _where(body: bytes) -> str | None:
    """The first field with half a character in it."""
    try:
        given = json.loads(body)
    except ValueError:
        return None
    for name, value in given.items() if isinstance(given, dict) else ():
        try:
            name.encode()
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return name if name.isidentifier() else None
    return None


class Gate:
    """ASGI middleware; the body is read here, whole, so that its size is known."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._digests = [_digest(key.encode()) for key in service.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            first = await self._body(scope, receive)
            check_body(first["body"])
        except ClientGone:
            return
        except ApiError as error:
            scope["ridgeline.record"].error = str(error)
            await error_response(error, scope)(scope, receive, send)
            return
        scope = _as_json(scope)
        pending: list[Message] = [first]

        async def again() -> Message:
            return pending.pop() if pending else await receive()

        found: LetGo = scope["ridgeline.record"].let_go
        found.everything = self._service.settings.unknown_fields == "ignore"
        with letting_go(found):
            await self._app(scope, again, send)

    def _check(self, scope: Scope) -> None:
        if own_path(scope) in OPEN_PATHS:
            return
        given = _given_key(scope)
        if self._digests and not self._knows(given):
            text = "no such API key; send one as `Authorization: Bearer KEY`"
            raise ApiError(401, text, code="invalid_api_key")
        if self._digests:
            scope[OWNER] = _digest(given.partition(b" ")[2].strip())
        if self._service.draining and scope["method"] == "POST":
            raise shutting_down()

    def _knows(self, authorization: bytes) -> bool:
        """Whether a key is known, in the same time for every key: all digests are compared."""
        kind, _, key = authorization.partition(b" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return kind.lower() == b"bearer" and any(matches)

    async def _body(self, scope: Scope, receive: Receive) -> Message:
        longest = self._service.settings.max_body_bytes
        announced = _header(scope, b"content-length")
        if announced.isdigit() and int(announced) > longest:
            raise _too_long(longest)
        service, parts, size = self._service, [], 0
        try:
            async with service.arriving():
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    service.arriving_bytes += len(parts[-1])
                    if size > longest:
                        raise _too_long(longest)
                    full = service.arriving_bytes > BODIES_AT_ONCE * longest
                    if full and size > SHORT_BODY_BYTES:
                        text = "too many long requests arrive at once; try again"
                        raise ApiError(503, text, retry_after_seconds=RETRY_AFTER_SECONDS)
                    if not message.get("more_body", False):
                        coding = _header(scope, b"content-encoding")
                        body = plain_body(b"".join(parts), coding, longest)
                        return {"type": "http.request", "body": body, "more_body": False}
        except TimeoutError:
            if service.draining:
                raise shutting_down() from None
            text = f"the body did not arrive within {ARRIVAL_SECONDS:g} s"
            raise ApiError(408, text) from None
        finally:
            service.arriving_bytes -= size


def owner_of(scope: Scope) -> bytes:
    """What tells the API key of a request apart; empty where the server asks for none."""
    owner: bytes = scope.get(OWNER, b"")
    return owner


def _given_key(scope: Scope) -> bytes:
    """The key as `Authorization` has it, by whichever header it came."""
    given = _header(scope, b"authorization")
    for name in KEY_HEADERS:
        if not given and (key := _header(scope, name)):
            given = b"Bearer " + key
    return given


def _as_json(scope: Scope) -> Scope:
    """The same request, its body called JSON where Ollama's server takes it for that.

    Its clients, and the curl of its pages, call theirs anything or nothing. A page of a browser,
    which says its origin, could do so without being allowed to.
    """
    if not own_path(scope).startswith("/api/") or _header(scope, b"origin"):
        return scope
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def _too_long(longest: int) -> ApiError:
    return ApiError(413, f"the body is longer than {longest} bytes (--max-body-bytes)")


def _header(scope: Scope, name: bytes) -> bytes:
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_EITHER = zlib.MAX_WBITS | 32
"""Take the head of gzip and of zlib (HTTP's deflate) alike."""


def plain_body(body: bytes, coding: bytes, longest: int) -> bytes:
    """The body without its coding (RFC 9110, 8.4), as long as it may be when it has none.

    Args:
        body: As it came.
        coding: The header `Content-Encoding`; empty: there was none.
        longest: The most bytes that come of it.

    Raises:
        ApiError: 415: the coding is not known; 400: the body is not of it; 413: it is too long.
    """
    name = coding.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        text = f"Content-Encoding {name[:40]!r} is not read here; send gzip, deflate or none"
        raise ApiError(415, text)
    machine = zlib.decompressobj(_EITHER)
    try:
        found = machine.decompress(body, longest + 1)
    except zlib.error as error:
        raise refused(f"the body is no {name}: {error}") from None
    if len(found) > longest:
        raise ApiError(413, f"the body is longer than {longest} bytes (--max-body-bytes)")
    if not machine.eof or machine.unused_data:
        raise refused(f"the body is no {name}: it does not end where that does")
    return found


_SLASHES = re.compile("/{2,}")
_ENDS = re.compile(
    "(?P<openai>/(?:(?:chat/|fim/)?completions|responses|embeddings|rerank|models"
    "|messages|messages/count_tokens|complete|chat/completions/input_tokens|responses/input_tokens))$"
    "|(?P<openai_item>/(?:models|responses)/[^/:]+)$"
    "|(?P<google>/models/[^/:]+:[a-zA-Z]+)$"
    "|(?P<plain>/invocations)$"
)
"""How the paths of each API end, which their clients put behind a prefix."""
_BEFORE = {"openai": "/v1", "openai_item": "/v1", "google": "/v1beta", "plain": ""}
"""What stands before them here."""

_MODELS, _GOOGLES = "/v1/models", b"x-goog-api-key"


class PlainPaths:
    """Middleware that leaves one slash where several are, none at the end, and GET for HEAD.

    What clouds put before a path becomes what stands there in this API.
    """

    def __init__(self, app: ASGIApp, is_route: Callable[[Scope], bool]) -> None:
        self._app = app
        self._is_route = is_route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as ASGI has it."""
        if scope["type"] == "http":
            path = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
            path = self._as_routed(scope, path)
            if path.startswith(_MODELS) and any(name == _GOOGLES for name, _ in scope["headers"]):
                path = path.replace("/v1/", "/v1beta/", 1)
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            scope = {**scope, "path": path, "method": method}
        await self._app(scope, receive, send)

    def _as_routed(self, scope: Scope, path: str) -> str:
        found = _ENDS.search(path)
        if found is None or found.lastgroup is None:
            return path
        routed = _BEFORE[found.lastgroup] + found[0]
        if routed == path or self._is_route({**scope, "path": path}):
            return path
        return routed
