"""`tool_choice` that allows some of the tools: they are all that the model is told of.

OpenAI's clients name them in `allowed_tools`, with a mode that is one of the plain choices; chats
put both into an object of their own, `/v1/responses` beside the type.
"""

from __future__ import annotations

from typing import Any


def only_allowed(given: dict[str, Any]) -> dict[str, Any]:
    """The body without the tools that may not be called, and with the mode as its choice.

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
