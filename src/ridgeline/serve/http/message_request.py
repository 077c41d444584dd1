"""A request of `/v1/messages` as the request of a chat: the same conversation, other words."""

from __future__ import annotations

from typing import Any

from ridgeline.serve.http.protocol.fields import json_text
from ridgeline.serve.http.protocol.message_blocks import (
    AssistantTurn,
    ImageBlock,
    InlineImage,
    SaidBlock,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
    joined,
)
from ridgeline.serve.http.protocol.messages import InputTool, MessagesRequest

NAMES = {
    "response_format": "output_config",
    "reasoning_effort": "output_config",
    "thinking_token_budget": "thinking.budget_tokens",
    "stop": "stop_sequences",
}
"""Fields of a chat by their name here, for errors."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_fields(body: MessagesRequest, template: str) -> dict[str, Any]:
    """The fields of the chat that asks the same."""
    choice, output = body.tool_choice, body.output_config
    given = {
        "model": body.model,
        "messages": _messages(body),
        "max_completion_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences or None,
        "stream": body.stream,
        "tools": [_tool(tool) for tool in body.own_tools] or None,
        "tool_choice": None if choice is None else _CHOICES.get(choice.type, _named(choice.name)),
        "response_format": _format(body.form),
        "reasoning_effort": None if output is None else output.effort,
        "user": None if body.metadata is None else body.metadata.user_id,
        "chat_template_kwargs": body.chat_template_kwargs,
        "cache_salt": body.cache_salt,
    }
    if choice is not None and choice.disable_parallel_tool_use is not None:
        given["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if body.messages[-1].role == "assistant":
        given["continue_final_message"] = True
    if body.thinking is not None:
        _think(given, body, template)
    return {name: value for name, value in given.items() if value is not None}


def _think(given: dict[str, Any], body: MessagesRequest, template: str) -> None:
    assert body.thinking is not None
    if body.thinking.display == "omitted":
        given["include_reasoning"] = False
    if "think" not in template:
        return  # it does not, whatever is asked
    if body.thinking.type == "enabled" and body.thinking.budget_tokens is not None:
        given["thinking_token_budget"] = body.thinking.budget_tokens
    if body.thinking.type != "disabled":
        return  # as the model does anyway
    given["reasoning_effort"] = "none"


def _messages(body: MessagesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": joined(body.system)})
    for turn in body.messages:
        if isinstance(turn, UserTurn):
            messages += _of_user(turn)
        elif isinstance(turn, SystemTurn):
            messages.append({"role": "system", "content": joined(turn.content)})
        else:
            messages.append(_of_assistant(turn))
    return messages


def _of_user(turn: UserTurn) -> list[dict[str, Any]]:
    """What tools returned is a message of its own; texts and images in a row are one."""
    if isinstance(turn.content, str):
        return [{"role": "user", "content": turn.content}]
    found: list[dict[str, Any]] = []
    for block in turn.content:
        if isinstance(block, ToolResultBlock):
            found.append(_returned(block))
            continue
        if not found or found[-1]["role"] != "user":
            found.append({"role": "user", "content": []})
        found[-1]["content"].append(_part(block))
    return found


def _returned(block: ToolResultBlock) -> dict[str, Any]:
    """What a tool returned: a text, or parts where images are among it."""
    content: Any
    blocks = block.content or ""
    texts = [one for one in blocks if isinstance(one, SaidBlock)]
    if isinstance(blocks, str) or len(texts) == len(blocks):
        content = joined(blocks if isinstance(blocks, str) else texts)
        if block.is_error:
            content = f"Error: {content}"
    else:
        content = [{"type": "text", "text": "Error:"}] if block.is_error else []
        content += [_part(one) for one in blocks if not isinstance(one, str)]
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _part(block: SaidBlock | ImageBlock) -> dict[str, Any]:
    if not isinstance(block, ImageBlock):
        return {"type": "text", "text": block.text}
    source = block.source
    if isinstance(source, InlineImage):
        url = f"data:{source.media_type};base64,{source.data}"
    else:
        url = source.url
    return {"type": "image_url", "image_url": {"url": url}}


def _of_assistant(turn: AssistantTurn) -> dict[str, Any]:
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    texts = [block.text for block in turn.content if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in turn.content if isinstance(block, ToolUseBlock)]
    given = {
        "content": "\n".join(texts) if texts or not calls else None,
        "reasoning": "\n".join(thoughts) or None,
        "tool_calls": calls or None,
    }
    return {"role": "assistant", **{name: v for name, v in given.items() if v is not None}}


def _call(block: ToolUseBlock) -> dict[str, Any]:
    called = {"name": block.name, "arguments": json_text(block.input, "messages")}
    return {"id": block.id, "type": "function", "function": called}


def _tool(tool: InputTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    more = {"description": tool.description, "strict": tool.strict}
    function |= {name: value for name, value in more.items() if value is not None}
    return {"type": "function", "function": function}


def _named(name: str | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _format(wanted: Any) -> dict[str, Any] | None:
    if wanted is None:
        return None
    return {"type": "json_schema", "json_schema": {"schema": wanted.schema_, "strict": True}}
