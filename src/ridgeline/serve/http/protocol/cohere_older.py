"""The request of Cohere's older `/v1/chat`, one message and what was said before it, as `/v2/chat`.

Its clients still send it (`cohere.Client.chat`). Tools were written in another way then, and are
refused by their name, as everything is that `/v2/chat` does not know.
"""

from __future__ import annotations

from typing import Any

from ridgeline.serve.http.protocol.errors import refused

_ROLES = {"USER": "user", "CHATBOT": "assistant", "SYSTEM": "system"}
_QUALITY = {"fast": "FAST", "accurate": "ACCURATE", "off": "OFF"}


def as_newer(given: dict[str, Any]) -> dict[str, Any]:
    """The body of the `/v2/chat` that asks the same.

    >>> said = {"role": "CHATBOT", "message": "b"}
    >>> as_newer({"message": "c", "preamble": "a", "chat_history": [said]})["messages"][1:]
    [{'role': 'assistant', 'content': 'b'}, {'role': 'user', 'content': 'c'}]

    What has another shape than that API's is left for `/v2/chat` to refuse.

    Raises:
        ApiError: 400, there is no message.
    """
    if not isinstance(given.get("message"), str):
        raise refused("message: Input should be a text", "message")
    asked = {name: one for name, one in given.items() if name not in ("message", "chat_history")}
    messages = [_turn(one) for one in _listed(given.get("chat_history"))]
    preamble = asked.pop("preamble", None)
    if preamble is not None:
        messages.insert(0, {"role": "system", "content": preamble})
    asked["messages"] = [*messages, {"role": "user", "content": given["message"]}]
    if isinstance(asked.get("documents"), list):
        asked["documents"] = [{"data": one} for one in asked["documents"]]
    quality = asked.pop("citation_quality", None)
    if quality is not None:
        asked["citation_options"] = {"mode": _QUALITY.get(quality, quality)}
    if asked.get("prompt_truncation") == "OFF":
        del asked["prompt_truncation"]
    return asked


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _turn(given: Any) -> Any:
    match given:
        case {"role": str() as role, "message": said, **others} if role in _ROLES:
            return {"role": _ROLES[role], "content": said, **others}
    return given
