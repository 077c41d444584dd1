"""Who may ask the studio: someone who asks this very server, and knows its token if it has one.

A page of another site can make a browser ask 127.0.0.1, but neither under our name (`Host`, which
stops DNS rebinding) nor without saying whence (`Origin`, `Sec-Fetch-Site`).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "ridgeline-studio"
LONGEST_ADDRESS = 8192
LOCAL = ("127.0.0.1", "localhost", "[::1]")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; connect-src 'self'; frame-src 'self'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'self'"
)
"""What a page may load: nothing that this server does not hand out itself."""


@dataclass(frozen=True, slots=True)
class Door:
    """The address that is listened on, and the token that it asks for."""

    host: str
    token: str | None = None


def is_local(host: str) -> bool:
    """Whether nobody but this machine reaches an address.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0"), is_local("::1")
    (True, True, False, True)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class StudioGuard:
    """Refuses what should not be answered; adds to each answer what a page of ours may load."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = self._refusal(request) or self._entry(request)
        if answer is not None:
            await answer(scope, receive, send)
            return

        async def send_guarded(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*_kept(message), *_headers(message)]}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if len(request.scope.get("query_string", b"")) + len(request.url.path) > LONGEST_ADDRESS:
            return _refused(
                "the address is too long to be meant; open the studio's first page", 414
            )
        if not self._is_ours(host):
            return _refused("this studio does not answer to that Host; use the address it printed")
        origin = request.headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return _refused("this studio does not answer pages of another Origin")
        site = request.headers.get("sec-fetch-site", "none")
        navigates = request.headers.get("sec-fetch-mode") == "navigate"
        if site == "cross-site" and not (navigates and request.method == "GET"):
            return _refused("this studio does not answer pages of another site")
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name in LOCAL or name.strip("[]") == self._door.host:
            return True
        return self._door.token is not None and _is_address(name.strip("[]"))

    def _entry(self, request: Request) -> Response | None:
        """Without a token nobody enters; with it in the address it becomes a cookie."""
        token = self._door.token
        if token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            pairs = parse_qsl(request.url.query, keep_blank_values=True)
            rest = urlencode([pair for pair in pairs if pair[0] != "token"])
            # A path that begins with two slashes would name another server.
            path = "/" + request.url.path.lstrip("/")
            answer = RedirectResponse(path + ("?" + rest if rest else ""), 303)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        if hmac.compare_digest(_cookie(request.headers).encode(), token.encode()):
            return None
        return _refused("this studio asks for its token: add ?token=… to the address", 401)


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refused(text: str, status: int = 403) -> Response:
    return PlainTextResponse(f"ridgeline studio: {text}\n", status)


def _kept(message: dict[str, object]) -> list[tuple[bytes, bytes]]:
    return list(message.get("headers", []))  # type: ignore[call-overload, no-any-return]


def _headers(message: dict[str, object]) -> list[tuple[bytes, bytes]]:
    given = {name.lower() for name, _ in _kept(message)}
    ours = {
        b"content-security-policy": POLICY.encode(),
        b"x-content-type-options": b"nosniff",
        # not `no-referrer`: browsers then post our own forms with the Origin `null`
        b"referrer-policy": b"same-origin",
        b"cache-control": b"no-store",
    }
    return [(name, value) for name, value in ours.items() if name not in given]
