"""Chats in the words of other servers and of older clients, read as OpenAI's.

Words beside the messages: Mistral's (`random_seed`, `any` where OpenAI has `required`), those of
OpenRouter (`usage`, `reasoning` as an object), `thinking` of DeepSeek, GLM and Kimi, and
`reasoning_format` of Groq and llama.cpp, `enable_thinking` and `thinking_budget` of DashScope,
`clear_thinking` of Cerebras, and `functions`, OpenAI's own before there were tools. In messages:
what vLLM takes of contents that are null, of parts of `/v1/responses` and `/v1/messages`, of texts
without a `type` around them.

What has no counterpart is left as it came, for the types of `chat` to name what is wrong with it.
"""

from __future__ import annotations

import json
from typing import Any, Literal


def as_openais(given: Any) -> Any:
    """The body of a chat that says everything in OpenAI's words."""
    asked = usage_asked(as_chat(given))
    if not isinstance(asked, dict):
        return asked
    return only_allowed(in_openais_words(as_tools(asked)))


def as_chat(given: Any) -> Any:
    """The body of a chat in the words of Mistral, whose client marks answers with `prefix`.

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


def as_tools(given: dict[str, Any]) -> dict[str, Any]:
    """The body with tools in place of functions; a result belongs to the call before it.

    >>> as_tools({"functions": [{"name": "f"}], "function_call": {"name": "f"}})["tool_choice"]
    {'type': 'function', 'function': {'name': 'f'}}
    >>> call = {"role": "assistant", "content": None, "function_call": {"name": "f"}}
    >>> told = as_tools({"messages": [call, {"role": "function", "name": "f", "content": "1"}]})
    >>> told["messages"][1]
    {'role': 'tool', 'tool_call_id': 'function_0', 'name': 'f', 'content': '1'}

    Where tools are given as well, functions are left for `chat` to refuse.
    """
    asked = dict(given)
    functions, choice = asked.get("functions"), asked.get("function_call")
    if isinstance(functions, list) and functions and not asked.get("tools"):
        del asked["functions"]
        asked["tools"] = [{"type": "function", "function": one} for one in functions]
        asked.setdefault("parallel_tool_calls", False)
        if choice in ("auto", "none"):
            asked["tool_choice"] = asked.pop("function_call")
        elif isinstance(choice, dict):
            asked["tool_choice"] = {"type": "function", "function": asked.pop("function_call")}
    elif asked.get("tools") and not functions and choice in ("auto", "none"):
        asked.setdefault("tool_choice", asked.pop("function_call"))
    messages = asked.get("messages")
    if isinstance(messages, list):
        asked["messages"] = [_turn(one, messages[:place]) for place, one in enumerate(messages)]
    return asked


def _turn(given: Any, before: list[Any]) -> Any:
    """A message with a call, or with what a function returned, as with tools."""
    match given:
        case {"role": "assistant", "function_call": dict() as called}:
            turn = {name: value for name, value in given.items() if name != "function_call"}
            call = {"id": _id(_num_calls(before)), "type": "function", "function": called}
            return {**turn, "tool_calls": [call]}
        case {"role": "function"}:
            call_id = _id(max(0, _num_calls(before) - 1))
            others = {name: value for name, value in given.items() if name != "role"}
            return {"role": "tool", "tool_call_id": call_id, **others}
    return given


def _num_calls(messages: list[Any]) -> int:
    """How many of the messages call a function in the older way."""
    return sum(isinstance(one, dict) and bool(one.get("function_call")) for one in messages)


def _id(number: int) -> str:
    return f"function_{number}"


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
            say(asked, "thinking", reasoning_effort="none")
        case {"type": "enabled" | "auto" | "adaptive", **others} if not others:
            del asked["thinking"]  # as the model does anyway
        case {"type": "enabled", "budget_tokens": int(most), **others} if not others:
            say(asked, "thinking", thinking_token_budget=most)
    if isinstance(asked.get("thinking_budget"), int):
        say(asked, "thinking_budget", thinking_token_budget=asked["thinking_budget"])
    if asked.get("reasoning_effort") == "default":
        del asked["reasoning_effort"]
    match asked.get("reasoning"):
        case {**fields} if set(fields) <= _OBJECT:
            say(asked, "reasoning", **_of_object(fields))
    match asked.get("reasoning_format"):
        case "parsed" | "hidden" | "auto" | "deepseek" as form:
            shown = {"include_reasoning": False} if form == "hidden" else {}
            say(asked, "reasoning_format", **shown)
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


def say(asked: dict[str, Any], word: str, **fields: Any) -> None:
    """Put fields in a word's place, unless the body says otherwise: then the word is refused."""
    if all(asked.get(name) in (None, value) for name, value in fields.items()):
        del asked[word]
        asked.update(fields)


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


def only_allowed(given: dict[str, Any]) -> dict[str, Any]:
    """The body without the tools that `tool_choice` does not allow, and with its mode as choice.

    >>> f, g = ({"type": "function", "name": one} for one in "fg")
    >>> asked = {"type": "allowed_tools", "mode": "required", "tools": [g]}
    >>> only_allowed({"tools": [f, g], "tool_choice": asked})
    {'tools': [{'type': 'function', 'name': 'g'}], 'tool_choice': 'required'}

    A name that no tool has stays, for the choice to be refused; tools without one are those that a
    server runs, of which the model is told nothing anyway.
    """
    match given.get("tool_choice"):
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*named]}}:
            pass
        case {"type": "allowed_tools", "mode": mode, "tools": [*named]}:
            pass
        case _:
            return given
    tools = given.get("tools")
    if mode not in ("auto", "required") or not isinstance(tools, list):
        return given
    if not all(isinstance(one, dict) for one in named):
        return given
    allowed = [name for one in named if (name := _name_of(one)) is not None]
    kept = [one for one in tools if _name_of(one) in allowed]
    if {_name_of(one) for one in kept} != set(allowed):
        return given
    return {**given, "tools": kept, "tool_choice": mode}


def names_allowed(given: dict[str, Any]) -> bool:
    """Whether a body names the tools that may be called."""
    choice = given.get("tool_choice")
    return isinstance(choice, dict) and choice.get("type") == "allowed_tools"


def _name_of(tool: Any) -> Any:
    """A function's name, in either API's way of writing it."""
    match tool:
        case {"function": {"name": str() as name}} | {"custom": {"name": str() as name}}:
            return name
        case {"name": str() as name}:
            return name
    return None
