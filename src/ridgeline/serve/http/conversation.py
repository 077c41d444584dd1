"""A conversation as a prompt, through the chat template that comes with the tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec

from ridgeline.records.input_file import too_deep
from ridgeline.serve.http.protocol.chat import (
    AssistantMessage,
    InstructionMessage,
    Message,
    TextPart,
    ToolMessage,
)
from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.http.protocol.tools import Tool
from ridgeline.serve.http.templating import in_time, reserved
from ridgeline.serve.http.text import TextTokens


async def prompt_of(
    text: TextTokens,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    opens_turn: bool,
    continues: bool,
    variables: dict[str, Any],
    special: bool = False,
) -> tuple[int, ...]:
    """Token ids of a conversation.

    Raises:
        ApiError: 400, for the template is missing, or refuses this conversation.
    """
    rendered = await render(
        text, messages, tools, opens_turn=opens_turn, continues=continues, variables=variables
    )
    return await text.prompt(rendered, special=special, param="messages")


async def render(
    text: TextTokens,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    opens_turn: bool,
    continues: bool,
    variables: dict[str, Any],
) -> str:
    """The conversation as the template writes it."""
    if not text.tokenizer.chat_template:
        raise refused(
            "this model's tokenizer has no chat template; use /v1/completions, or add a"
            " chat_template to tokenizer_config.json",
            "messages",
        )
    tokenizer: Any = text.tokenizer
    for name in sorted(variables):
        if name in reserved(tokenizer) or name.startswith("_") or not name.isidentifier():
            raise refused(
                f"chat_template_kwargs: {name[:100]!r} is no variable of the template",
                "chat_template_kwargs",
            )
    if continues and opens_turn:
        text_ = "continue_final_message needs add_generation_prompt: false"
        raise refused(text_, "continue_final_message")
    conversation = [_plain(message) for message in messages]
    work = functools.partial(
        text.tokenizer.apply_chat_template,
        conversation,
        tools=[_plain_tool(tool) for tool in tools] or None,
        add_generation_prompt=opens_turn,
        continue_final_message=continues,
        tokenize=False,
        **variables,
    )
    try:
        return await in_time(work)
    except ApiError:
        raise
    except Exception as error:  # templates are programs: they raise what they like
        line = " ".join(str(error).split())[:300]
        message = f"the model's chat template refuses this conversation: {line}"
        raise refused(message, "messages") from None


def _plain(message: Message) -> dict[str, Any]:
    """As templates expect it: text as a string, arguments of calls as objects."""
    role = "system" if isinstance(message, InstructionMessage) else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage) and message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return plain


def _text(content: str | list[TextPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content)


def _arguments(text: str) -> Any:
    if too_deep(text.encode()):
        raise refused("messages: arguments of a tool call are nested too deeply", "messages")
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return text  # it was cut off when it was made; the template shows it as it is


def _plain_tool(tool: Tool) -> dict[str, Any]:
    return tool.model_dump(exclude_none=True)
