"""How much a model shall think, in the words of other servers, read as OpenAI's `reasoning_effort`.

OpenRouter's clients send `reasoning` as an object, DeepSeek's, GLM's and Kimi's `thinking`, Groq's
and llama.cpp's `reasoning_format`, DashScope's `enable_thinking` and `thinking_budget` and
Cerebras' `clear_thinking` beside the messages. What has no counterpart (thoughts raw in the text)
is left for the types of `chat` to refuse.
"""

from __future__ import annotations

from typing import Any, Literal

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model shall think, from OpenAI's, Anthropic's and GLM's words."""
_VARIABLES = ("enable_thinking", "clear_thinking")
"""Words beside the messages that are variables of templates, by the same names."""


def in_openais_words(given: dict[str, Any]) -> dict[str, Any]:
    """The body of a chat that says in OpenAI's words and vLLM's how much to think.

    >>> in_openais_words({"thinking": {"type": "disabled"}})
    {'reasoning_effort': 'none'}
    >>> in_openais_words({"reasoning": {"effort": "low", "exclude": True}})
    {'reasoning_effort': 'low', 'include_reasoning': False}
    >>> in_openais_words({"thinking": {"type": "enabled", "budget_tokens": 9}})
    {'thinking_token_budget': 9}
    >>> in_openais_words({"reasoning_format": "hidden", "enable_thinking": False})
    {'include_reasoning': False, 'chat_template_kwargs': {'enable_thinking': False}}
    >>> in_openais_words({"thinking": {"type": "enabled", "clear_thinking": False}})
    {'chat_template_kwargs': {'clear_thinking': False}}
    """
    asked = dict(given)
    match asked.get("thinking"):
        case {"clear_thinking": bool(cleared), **others} if "clear_thinking" not in asked:
            asked |= {"thinking": others, "clear_thinking": cleared}
    match asked.get("thinking"):
        case {"type": "disabled", **others} if not others:
            _say(asked, "thinking", reasoning_effort="none")
        case {"type": "enabled" | "auto" | "adaptive", **others} if not others:
            del asked["thinking"]  # as the model does anyway
        case {"type": "enabled", "budget_tokens": int(most), **others} if not others:
            _say(asked, "thinking", thinking_token_budget=most)
    if isinstance(asked.get("thinking_budget"), int):
        _say(asked, "thinking_budget", thinking_token_budget=asked["thinking_budget"])
    if asked.get("reasoning_effort") == "default":
        del asked["reasoning_effort"]
    match asked.get("reasoning"):
        case {**fields} if set(fields) <= _OBJECT:
            _say(asked, "reasoning", **_of_object(fields))
    match asked.get("reasoning_format"):
        case "parsed" | "hidden" | "auto" | "deepseek" as form:
            shown = {"include_reasoning": False} if form == "hidden" else {}
            _say(asked, "reasoning_format", **shown)
    for name in _VARIABLES:
        if isinstance(asked.get(name), bool):
            variables = dict(asked.get("chat_template_kwargs") or {})
            if variables.setdefault(name, asked[name]) is asked[name]:
                del asked[name]
                asked["chat_template_kwargs"] = variables
    return asked


_OBJECT = frozenset({"effort", "exclude", "enabled", "max_tokens"})


def _of_object(fields: dict[Any, Any]) -> dict[str, Any]:
    """What OpenRouter's object says."""
    said: dict[str, Any] = {}
    if fields.get("enabled") is False:
        said["reasoning_effort"] = "none"
    if fields.get("effort") is not None:
        said["reasoning_effort"] = fields["effort"]
    if fields.get("max_tokens") is not None:
        said["thinking_token_budget"] = fields["max_tokens"]
    if fields.get("exclude"):
        said["include_reasoning"] = False
    return said


def _say(asked: dict[str, Any], word: str, **fields: Any) -> None:
    """Put fields in a word's place, unless the body says otherwise: then the word is refused."""
    if all(asked.get(name) in (None, value) for name, value in fields.items()):
        del asked[word]
        asked.update(fields)
