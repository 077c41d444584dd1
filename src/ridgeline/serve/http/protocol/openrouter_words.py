"""The word by which OpenRouter's clients ask for usage, read as OpenAI's option of streams."""

from __future__ import annotations

from typing import Any


def usage_asked(given: Any) -> Any:
    """The body of a chat that says in OpenAI's words that the stream ends with its usage.

    >>> usage_asked({"usage": {"include": True}, "stream": True})
    {'stream': True, 'stream_options': {'include_usage': True}}
    >>> usage_asked({"usage": {"include": True}})  # whole replies have it anyway
    {}
    """
    match given:
        case {"usage": {"include": bool(wanted), **others}} if not others:
            pass
        case _:
            return given
    asked = {name: value for name, value in given.items() if name != "usage"}
    if wanted and asked.get("stream"):
        options = asked.get("stream_options")
        if options is None or isinstance(options, dict):
            asked["stream_options"] = {"include_usage": True, **(options or {})}
    return asked
