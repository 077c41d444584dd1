"""A request of `/v1/responses` as the request of a chat: the same conversation, other words."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from pydantic import TypeAdapter

from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.fields import SamplingFields
from ridgeline.serve.http.protocol.response_items import (
    MOST_ITEMS,
    CallItem,
    CallOutputItem,
    CustomCallItem,
    CustomOutputItem,
    InputImage,
    InputItem,
    MessageItem,
    ThoughtItem,
)
from ridgeline.serve.http.protocol.response_tools import FreeTool, FunctionTool, InputGrammar
from ridgeline.serve.http.protocol.responses import (
    LOGPROBS,
    FreeToolChoice,
    FunctionChoice,
    NamedSchemaFormat,
    ResponsesRequest,
    TextOptions,
)

NAMES = {"messages": "input", "response_format": "text", "reasoning_effort": "reasoning.effort"}
"""Fields of a chat by their name here, for errors."""


def chat_fields(body: ResponsesRequest) -> dict[str, Any]:
    """The fields of the chat that asks the same."""
    shared = set(SamplingFields.model_fields) - {"stream_options"}
    asked = body.model_dump(include=shared, exclude_none=True, by_alias=True)
    logprobs = body.top_logprobs is not None or LOGPROBS in (body.include or [])
    tools = [_tool(name, tool) for name, tool in body.functions]
    given = {
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": logprobs or None,
        "top_logprobs": body.top_logprobs,
        "tools": [*tools, *map(_custom_tool, body.custom)] or None,
        "tool_choice": _choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _format(body.text),
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "metadata": body.metadata,
        "safety_identifier": body.safety_identifier,
        "chat_template_kwargs": body.chat_template_kwargs,
        "truncate_prompt_tokens": -1 if body.truncation == "auto" else None,
    }
    if body.truncate_prompt_tokens is not None:
        del given["truncate_prompt_tokens"]
    return {**asked, **{name: value for name, value in given.items() if value is not None}}


def continued(body: ResponsesRequest, before: list[dict[str, Any]]) -> ResponsesRequest:
    """The request with the items of the conversation that it goes on from. Raises ApiError."""
    if not before:
        return body
    items = [*_items().validate_python(before), *body.items]
    if len(items) > MOST_ITEMS:
        raise refused(f"input: {len(items)} items with those before; at most {MOST_ITEMS}", "input")
    return body.model_copy(update={"input": items})


@functools.cache
def _items() -> TypeAdapter[list[InputItem]]:
    return TypeAdapter(list[InputItem])


def listed(items: list[InputItem]) -> list[dict[str, Any]]:
    """Items as they are told of a response, each with an id, and texts as parts."""
    found = []
    for item in items:
        plain = item.model_dump(exclude_none=True, by_alias=True)
        kind = plain["type"]
        plain.setdefault("id", f"{_PREFIXES.get(kind, kind)}_{uuid.uuid4().hex}")
        if "status" in type(item).model_fields:
            plain.setdefault("status", "completed")
        if isinstance(item, MessageItem) and isinstance(item.content, str):
            text = "output_text" if item.role == "assistant" else "input_text"
            plain["content"] = [{"type": text, "text": item.content}]
        found.append(plain)
    return found


_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
}  # fmt: skip
"""What ids of items begin with, by their type."""


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    for item in body.items:
        _add(item, messages)
    return messages


def _add(item: InputItem, messages: list[dict[str, Any]]) -> None:
    """Add an item; thoughts, text and calls in a row are one turn of the model."""
    match item:
        case MessageItem(role="assistant"):
            _turn(messages, new_behind=("content", "tool_calls"))["content"] = _text(item.content)
        case MessageItem():
            messages.append({"role": item.role, "content": _content(item.content)})
        case CallOutputItem() | CustomOutputItem():
            output = _content(item.output)
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        case ThoughtItem():
            thought = "\n".join(part.text for part in item.content or item.summary or [])
            if thought:
                turn = _turn(messages, new_behind=("reasoning", "content", "tool_calls"))
                turn["reasoning"] = thought
        case CustomCallItem():
            custom = {"name": item.name, "input": item.input}
            call = {"id": item.call_id, "type": "custom", "custom": custom}
            _turn(messages, new_behind=()).setdefault("tool_calls", []).append(call)
        case CallItem():
            name = f"{item.namespace}.{item.name}" if item.namespace else item.name
            called = {"name": name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": called}
            _turn(messages, new_behind=()).setdefault("tool_calls", []).append(call)


def _turn(messages: list[dict[str, Any]], *, new_behind: tuple[str, ...]) -> dict[str, Any]:
    """The model's turn that an item belongs to: the last one, unless it has what comes behind."""
    last = messages[-1] if messages else {"role": ""}
    if last["role"] != "assistant" or any(name in last for name in new_behind):
        last = {"role": "assistant"}
        messages.append(last)
    return last


def _content(content: Any) -> Any:
    """The content of a message: text, or parts where images are among it."""
    if isinstance(content, str) or not any(isinstance(part, InputImage) for part in content):
        return _text(content)
    return [_part(part) for part in content]


def _part(part: Any) -> dict[str, Any]:
    if not isinstance(part, InputImage):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.image_url, "detail": part.detail}}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _tool(name: str, tool: FunctionTool) -> dict[str, Any]:
    fields = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": {**fields, "name": name}}


def _custom_tool(tool: FreeTool) -> dict[str, Any]:
    custom = tool.model_dump(exclude={"type", "format"}, exclude_none=True)
    if isinstance(tool.format, InputGrammar):
        grammar = {"syntax": tool.format.syntax, "definition": tool.format.definition}
        custom["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": custom}


def _choice(body: ResponsesRequest) -> Any:
    choice, allowed = body.tool_choice, body.allowed
    if isinstance(choice, FunctionChoice | FreeToolChoice):
        return {"type": choice.type, choice.type: {"name": choice.name}}
    if allowed is not None:
        named = [{"type": "function", "function": {"name": one}} for one in allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": named}}
    return choice


def _format(text: TextOptions | None) -> dict[str, Any] | None:
    if text is None or text.format is None:
        return None
    found = text.format.model_dump(exclude_none=True, by_alias=True)
    if not isinstance(text.format, NamedSchemaFormat):
        return found
    return {"type": found.pop("type"), "json_schema": found}
