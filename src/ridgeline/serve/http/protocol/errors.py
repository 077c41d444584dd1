"""Errors in OpenAI's shape, `{"error": {message, type, param, code}}`, or in Anthropic's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

RETRY_AFTER_SECONDS = 1

TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}

MESSAGE_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The kinds of errors of `/v1/messages`."""

GOOGLE_STATUSES = {
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""The kinds of errors of Google's API."""

MESSAGE_DETAILS: dict[str, dict[str, Any]] = {
    "thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
}
"""What Anthropic's clients are told of a field besides: these send the conversation again, whole,
and without one that is to be kept."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One line for the user, and what programs look at."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in an error's body, and in a stream's `data:` line."""

    error: ErrorDetail


class MessageErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of an error and one line for the user."""

    type: str
    message: str
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """What clients act upon."""


class MessageErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error of `/v1/messages`."""

    error: MessageErrorDetail
    type: str = "error"


class ApiError(Exception):
    """Ends a request with an error; before the first byte as a status, later as an event."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_seconds = retry_after_seconds

    @property
    def body(self) -> ErrorBody:
        """The error as it is sent."""
        kind = TYPES.get(self.status)
        if kind is None:
            kind = "invalid_request_error" if self.status < 500 else "server_error"
        code = self.code or self.status
        detail = ErrorDetail(message=str(self), type=kind, param=self.param, code=code)
        return ErrorBody(error=detail)

    @property
    def message_body(self) -> MessageErrorBody:
        """The error as `/v1/messages` sends it, in Anthropic's shape."""
        kind = MESSAGE_TYPES.get(self.status)
        if kind is None:
            kind = "invalid_request_error" if self.status < 500 else "api_error"
        details = MESSAGE_DETAILS.get(self.param or "", msgspec.UNSET)
        detail = MessageErrorDetail(type=kind, message=str(self), details=details)
        return MessageErrorBody(error=detail)

    @property
    def google_body(self) -> dict[str, Any]:
        """The error as Google's API sends it."""
        kind = GOOGLE_STATUSES.get(self.status)
        if kind is None:
            kind = "INVALID_ARGUMENT" if self.status < 500 else "INTERNAL"
        return {"error": {"code": self.status, "message": str(self), "status": kind}}

    @property
    def headers(self) -> dict[str, str]:
        """When to come back."""
        if self.retry_after_seconds is None:
            return {}
        return {"Retry-After": str(self.retry_after_seconds)}


def refused(message: str, param: str | None = None) -> ApiError:
    """The most frequent one: 400."""
    return ApiError(400, message, param=param)


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors name fields as another endpoint has them."""
    try:
        yield
    except ApiError as error:
        new = names.get(error.param or "")
        if new is None:
            raise
        message = str(error)
        if message.startswith(error.param or ""):
            message = new + message.removeprefix(error.param or "")
        raise ApiError(
            error.status,
            message,
            param=new,
            code=error.code,
            retry_after_seconds=error.retry_after_seconds,
        ) from None
