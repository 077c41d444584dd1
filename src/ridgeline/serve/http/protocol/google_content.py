"""The turns of Google's conversations and their parts, and the same turns as chats have them."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict, deque
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import Text
from ridgeline.serve.http.protocol.tools import FunctionName

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class GoogleFields(Strict):
    """An object whose fields may be written in either way."""

    @model_validator(mode="before")
    @classmethod
    def _in_one_way(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {_HUMP.sub("_", str(name)).lower(): value for name, value in given.items()}


def _check_kind(mime_type: str | None, kinds: tuple[str, ...]) -> None:
    """Refuse what is neither an image nor a text by its own name."""
    if mime_type is not None and not mime_type.lower().startswith(kinds):
        raise refused(f"contents: {mime_type[:64]} is not served here; images and texts are")


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


class Blob(GoogleFields):
    """An image or a text as base64."""

    mime_type: Text | None = None
    data: Text

    @property
    def part(self) -> dict[str, Any]:
        """The part of a chat's message. Raises ApiError."""
        _check_kind(self.mime_type, ("image/", "text/"))
        kind = (self.mime_type or "image/png").lower()
        if kind.startswith("image/"):
            return _image(f"data:{kind};base64,{self.data}")
        try:
            data = self.data.replace("-", "+").replace("_", "/")
            text = base64.b64decode(data, validate=True).decode()
        except ValueError:  # of the base64, or of UTF-8
            raise refused(f"contents: {kind} is not base64 of a text in UTF-8") from None
        return {"type": "text", "text": f"\n{text}\n"}


class FileOfPart(GoogleFields):
    """An image at an address."""

    mime_type: Text | None = None
    file_uri: Text

    @property
    def part(self) -> dict[str, Any]:
        """The part of a chat's message. Raises ApiError."""
        _check_kind(self.mime_type, ("image/",))
        return _image(self.file_uri)


class CallOfPart(GoogleFields):
    """A call that the model made."""

    id: Text | None = None
    name: FunctionName
    args: dict[str, Any] | None = None


def listed(given: Any) -> Any:
    """What may be several; where it is one, Google takes it without the list around it."""
    return given if given is None or isinstance(given, list) else [given]


class SeenPart(GoogleFields):
    """An image or a file's text, among what a called function returned or elsewhere."""

    carried_in = "contents"

    inline_data: Blob | None = None
    file_data: FileOfPart | None = None

    @property
    def file(self) -> dict[str, Any] | None:
        """The same as a part of a chat's message. Raises ApiError."""
        given = self.inline_data or self.file_data
        return None if given is None else given.part


class ResultOfPart(GoogleFields):
    """What a called function returned."""

    carried_in = "contents"

    id: Text | None = None
    name: FunctionName
    response: dict[str, Any] | None = None
    parts: Annotated[list[SeenPart], Field(max_length=64)] | None = None

    @property
    def content(self) -> Any:
        """The content of a chat's message: a text, or parts where images are among it."""
        text = json.dumps(self.response or {}, ensure_ascii=False)
        files = [file for one in self.parts or [] if (file := one.file) is not None]
        return [{"type": "text", "text": text}, *files] if files else text


class GooglePart(SeenPart):
    """A text, an image, a call or what came of one."""

    text: Text | None = None
    thought: bool | None = None
    thought_signature: Text | None = None
    """Signatures are not checked."""
    function_call: CallOfPart | None = None
    function_response: ResultOfPart | None = None


def _as_content(given: Any) -> Any:
    return {"parts": [{"text": given}]} if isinstance(given, str) else given


class GoogleContent(GoogleFields):
    """One turn, or a text."""

    role: Literal["user", "model", "function", "system", "tool"] | None = None
    parts: Annotated[
        list[GooglePart], Field(max_length=4096), BeforeValidator(lambda one: listed(one) or [])
    ] = Field(default_factory=list)

    @property
    def text(self) -> str:
        """Its texts, one behind the other."""
        return "".join(one.text or "" for one in self.parts)


Content = Annotated[GoogleContent, BeforeValidator(_as_content)]


def messages_of(contents: list[GoogleContent]) -> list[dict[str, Any]]:
    """Turns as chats have them; results belong to the calls of their names, in order."""
    found: list[dict[str, Any]] = []
    open_calls: dict[str, deque[str]] = defaultdict(deque)
    for number, content in enumerate(contents):
        if content.role == "model":
            found.append(_said(content, number, open_calls))
            continue
        for part in content.parts:
            if (result := part.function_response) is not None:
                known = open_calls[result.name]
                call_id = result.id or (known.popleft() if known else None)
                message = {"role": "tool", "name": result.name, "content": result.content}
                found.append(message | ({} if call_id is None else {"tool_call_id": call_id}))
        asked = [one for one in map(_asked, content.parts) if one is not None]
        if all(one["type"] == "text" for one in asked) and asked:
            found.append({"role": "user", "content": "".join(one["text"] for one in asked)})
        elif asked:
            found.append({"role": "user", "content": asked})
    return found


def _asked(part: GooglePart) -> dict[str, Any] | None:
    """A part of the user's turn that is a text or an image."""
    if (file := part.file) is not None:
        return file
    return None if part.text is None else {"type": "text", "text": part.text}


def _said(content: GoogleContent, number: int, open_calls: dict[str, deque[str]]) -> dict[str, Any]:
    """What the model said before. Raises ApiError."""
    if any(one.inline_data or one.file_data for one in content.parts):
        raise refused("contents: files that a model made cannot be given back to this one")
    texts = [one for one in content.parts if one.text is not None]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(one.text or "" for one in texts if not one.thought),
    }
    if thoughts := "".join(one.text or "" for one in texts if one.thought):
        message["reasoning_content"] = thoughts
    calls = [one.function_call for one in content.parts if one.function_call is not None]
    for index, call in enumerate(calls):
        call_id = call.id or f"call_{number}_{index}"
        open_calls[call.name].append(call_id)
        arguments = json.dumps(call.args or {}, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        told = {"id": call_id, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(told)
    return message
