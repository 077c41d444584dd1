"""A chat in the words of Mistral's API, read as OpenAI's.

Its client writes `prefix` beside every answer that it gives back, `random_seed` for the seed, and
`any` where OpenAI has `required`. What has no counterpart (`safe_prompt`, which puts a text of
theirs before the conversation) is left for the types of `chat` to refuse where it asks for
something.
"""

from __future__ import annotations

from typing import Any


def as_chat(given: Any) -> Any:
    """The body of a chat, in OpenAI's words.

    >>> as_chat({"tool_choice": "any", "random_seed": 7, "safe_prompt": False})
    {'tool_choice': 'required', 'seed': 7}
    >>> as_chat({"messages": [{"role": "assistant", "content": "So", "prefix": True}]})
    {'messages': [{'role': 'assistant', 'content': 'So'}], 'continue_final_message': True}
    """
    if not isinstance(given, dict):
        return given
    asked = dict(given)
    if asked.get("tool_choice") == "any":
        asked["tool_choice"] = "required"
    if "random_seed" in asked and asked.get("seed") in (None, asked["random_seed"]):
        asked["seed"] = asked.pop("random_seed")
    if asked.get("safe_prompt") is False:
        del asked["safe_prompt"]
    turns = asked.get("messages")
    if isinstance(turns, list) and any(_says_prefix(one) for one in turns):
        asked["messages"] = [
            _without_prefix(one) if _says_prefix(one) and _is_read(one, one is turns[-1]) else one
            for one in turns
        ]
        if _says_prefix(turns[-1]) and turns[-1]["prefix"] is True:
            asked.setdefault("continue_final_message", True)
    return asked


def _says_prefix(turn: Any) -> bool:
    """Whether it is an answer that is given back with the word beside it."""
    return isinstance(turn, dict) and turn.get("role") == "assistant" and "prefix" in turn


def _is_read(turn: dict[str, Any], is_last: bool) -> bool:
    """Whether what it asks for is done: nothing, or that the last one is gone on with."""
    return turn["prefix"] is False or (turn["prefix"] is True and is_last)


def _without_prefix(turn: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in turn.items() if name != "prefix"}
