"""Messages as other APIs and clients write them, read as those of a chat.

vLLM takes a content that is null or empty, texts without a `type` around them, the parts of
`/v1/responses` and of `/v1/messages`, and a call's arguments as an object; so do these. What is no
such thing is left as it came, for the types of `chat` to name what is wrong with it.
"""

from __future__ import annotations

import json
from typing import Any

_TEXT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The types of parts that are text by another name, and the field that has it."""


def as_content(given: Any) -> Any:
    """A content; what says nothing is the empty text.

    >>> as_content(None), as_content([]), as_content("x")
    ('', '', 'x')
    """
    return "" if given is None or given == [] else given


def as_part(given: Any) -> Any:
    """One part of a content.

    >>> as_part("a")
    {'type': 'text', 'text': 'a'}
    >>> as_part({"type": "input_image", "image_url": "data:…"})
    {'type': 'image_url', 'image_url': 'data:…'}
    """
    if isinstance(given, str):
        return {"type": "text", "text": given}
    if not isinstance(given, dict):
        return given
    kind = given.get("type")
    if kind is None:
        kind = next((one for one in ("text", "image_url") if one in given), None)
        return given if kind is None else {**given, "type": kind}
    if kind == "input_image":
        return {**given, "type": "image_url"}
    holds = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if holds is None or holds not in given:
        return given
    others = {name: value for name, value in given.items() if name not in ("type", holds)}
    return {"type": "text", "text": given[holds], **others}


def as_turn(given: Any) -> Any:
    """Parts of an assistant that are thoughts become its thoughts, and a refusal its words."""
    if not isinstance(given, dict):
        return given
    turn = dict(given)
    parts = turn.get("content")
    if isinstance(parts, list):
        thoughts = [one for one in parts if isinstance(one, dict) and one.get("type") == "thinking"]
        texts = [text for one in thoughts if (text := _thought(one.get("thinking"))) is not None]
        if thoughts and len(texts) == len(thoughts):
            turn["content"] = [one for one in parts if one not in thoughts] or None
            if not turn.get("reasoning") and not turn.get("reasoning_content"):
                turn["reasoning"] = "\n".join(texts)
    details = turn.get("reasoning_details")
    if (
        isinstance(details, list)
        and not turn.get("reasoning")
        and not turn.get("reasoning_content")
    ):
        texts = [text for one in details if (text := _detail(one)) is not None]
        turn["reasoning"] = "\n".join(texts) or None
        if len(texts) == len(details):
            del turn["reasoning_details"]
    if not turn.get("content") and isinstance(turn.get("refusal"), str):
        turn["content"] = turn["refusal"]
    return turn


def _thought(given: Any) -> str | None:
    """A thought as text; Mistral's clients give it back in parts.

    >>> _thought([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    'ab'
    """
    match given:
        case str():
            return given
        case [*parts] if all(isinstance(one, dict) for one in parts):
            texts = [one.get("text") for one in parts]
            return "".join(texts) if all(isinstance(one, str) for one in texts) else None
    return None


def _detail(given: Any) -> str | None:
    """The thought in one of `reasoning_details`, in which OpenRouter gives them back."""
    match given:
        case {"type": "reasoning.text", "text": str(text)}:
            return text
        case {"type": "reasoning.summary", "summary": str(text)}:
            return text
    return None


def as_json(given: Any) -> Any:
    """The arguments of a call as JSON, which some clients give back as the object.

    >>> as_json({"days": 2}), as_json("{}")
    ('{"days": 2}', '{}')
    """
    return json.dumps(given) if isinstance(given, dict) else given
