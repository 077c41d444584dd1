"""Chats with `functions` and `function_call`, OpenAI's words before there were tools, read as such.

The answer comes in the same words, with one call at most. A call had no id then: what a function
returned belongs to the call before it.
"""

from __future__ import annotations

from typing import Any


def asks_for_functions(given: dict[str, Any]) -> bool:
    """Whether a body gives functions in the older way."""
    return bool(given.get("functions"))


def as_tools(given: dict[str, Any]) -> dict[str, Any]:
    """The body with tools in place of functions.

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
