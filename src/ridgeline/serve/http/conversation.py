"""A conversation as a prompt, through the chat template that comes with the tokenizer.

A template is a program that came with the model, given words by strangers. It runs on a thread of
its own, which is stopped when its time is over, and what it has written is measured. The sandbox it
runs in is transformers'; names that the sandbox or the conversation give it (`reserved`) are not a
client's to set.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ridgeline.records.input_file import too_deep
from ridgeline.serve.http.protocol.chat import (
    AssistantMessage,
    InstructionMessage,
    Message,
    TextPart,
    Tool,
    ToolMessage,
)
from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.http.text import TextTokens

LONGEST_SECONDS = 10.0
"""A long conversation takes some milliseconds."""
LONGEST_CHARACTERS = 1 << 26
"""The most that a template may write."""
_GIVEN = frozenset(
    {
        "self", "cls", "conversations", "messages", "raise_exception", "strftime_now",
        "loop", "caller", "super", "varargs", "kwargs",
    }
)  # fmt: skip
"""Names given by transformers or by jinja's own statements, beside their tables of names."""


class _TimeOver(Exception):
    """Raised in a template's thread from outside."""


@functools.lru_cache(maxsize=4)
def reserved(tokenizer: Any) -> frozenset[str]:
    """Names that mean something already: what a template is given, and what renders it."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    rendering = inspect.signature(tokenizer.apply_chat_template).parameters
    special = getattr(tokenizer, "special_tokens_map", {})
    return _GIVEN.union(rendering, special, ImmutableSandboxedEnvironment().globals)


async def in_time(render: Callable[[], str], seconds: float = LONGEST_SECONDS) -> str:
    """What a template writes.

    Raises:
        ApiError: 400, for it takes too long or writes too much.
        Exception: Whatever the template raises.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def tell(text: str | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(text or "")

    def work() -> None:
        text, error = None, None
        try:
            text = render()
        except Exception as raised:  # templates are programs: they raise what they like
            error = raised
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(tell, text, error)

    thread = threading.Thread(target=work, name="chat-template", daemon=True)
    thread.start()
    try:
        text = await asyncio.wait_for(done, seconds)
    except TimeoutError:
        raise refused(
            f"the model's chat template takes longer than {seconds:g} s with this", "messages"
        ) from None
    finally:
        if done.cancelled():  # by the clock, or because the client has gone
            _stop(thread)
    if len(text) > LONGEST_CHARACTERS:
        raise refused(
            f"the model's chat template makes {len(text)} characters of this; at most"
            f" {LONGEST_CHARACTERS} are taken",
            "messages",
        )
    return text


def _stop(thread: threading.Thread) -> None:
    """Raise in a thread; it ends there at its next Python instruction."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(_TimeOver)
    )


async def prompt_of(
    text: TextTokens,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    opens_turn: bool,
    continues: bool,
    variables: dict[str, Any],
    documents: Sequence[dict[str, Any]] = (),
    special: bool = False,
) -> tuple[int, ...]:
    """Token ids of a conversation.

    Raises:
        ApiError: 400, for the template is missing, or refuses this conversation.
    """
    rendered = await render(
        text, messages, tools, opens_turn=opens_turn, continues=continues, variables=variables,
        documents=documents,
    )  # fmt: skip
    special = special or text.template.special
    return await text.prompt(rendered, special=special, param="messages")


async def render(
    text: TextTokens,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    opens_turn: bool,
    continues: bool,
    variables: dict[str, Any],
    documents: Sequence[dict[str, Any]] = (),
) -> str:
    """The conversation as the template writes it."""
    if documents and "documents" not in text.template.text:
        raise refused("this model's chat template shows no documents", "documents")
    if tools and text.template.origin == "plain":
        raise refused(
            "this model has no chat template of its own, and the plain one shows no tools; start"
            " the server with --chat-template FILE",
            "tools",
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
        chat_template=text.template.text,
        tools=[_plain_tool(tool) for tool in tools] or None,
        documents=list(documents) or None,
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
    """A message as templates expect it: text as a string, arguments of calls as objects."""
    role = "system" if isinstance(message, InstructionMessage) else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage) and message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage) and message.thoughts:
        plain["reasoning_content"] = plain["reasoning"] = message.thoughts
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
