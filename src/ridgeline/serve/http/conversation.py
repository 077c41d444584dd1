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
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ridgeline.records.input_file import too_deep
from ridgeline.serve.http.protocol.chat_messages import (
    AssistantMessage,
    ImagePart,
    InstructionMessage,
    Message,
    OwnMessage,
    SeenTurn,
    TextPart,
    ToolMessage,
)
from ridgeline.serve.http.protocol.errors import ApiError, refused
from ridgeline.serve.http.protocol.tools import CustomTool, Tool
from ridgeline.serve.http.text import TextTokens
from ridgeline.serve.messages import PromptImage
from ridgeline.serve.vision.processor import PreparedImage

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


_SHOWS_PARTS = re.compile(r"""['"]image(_url)?['"]""")
"""What templates ask for that walk through the parts of a message."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the template writes it."""

    text: str
    """With one placeholder for each image."""
    images: tuple[PreparedImage, ...]


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
    tools: Sequence[Tool | CustomTool],
    *,
    opens_turn: bool,
    continues: bool,
    variables: dict[str, Any],
    documents: Sequence[dict[str, Any]] = (),
    special: bool = False,
) -> tuple[tuple[int, ...], tuple[PromptImage, ...]]:
    """Token ids of a conversation, and the images that some of them stand for.

    Raises:
        ApiError: 400, for the template is missing, or refuses this conversation.
    """
    rendered = await render(
        text, messages, tools, opens_turn=opens_turn, continues=continues, variables=variables,
        documents=documents,
    )  # fmt: skip
    special = special or text.template.special
    return await tokens_of(text, rendered, special=special)


async def tokens_of(
    text: TextTokens, rendered: Rendered, *, special: bool
) -> tuple[tuple[int, ...], tuple[PromptImage, ...]]:
    """Token ids of a rendered conversation, and the images that some of them stand for.

    Raises:
        ApiError: 400, it is empty, or has not one placeholder for each image.
    """
    reader, images = text.images, rendered.images
    if reader is None:
        return await text.prompt(rendered.text, special=special, param="messages"), ()
    pieces = rendered.text.split(reader.token)
    if len(pieces) != len(images) + 1:
        raise refused(
            f"the conversation has {len(images)} images, and {len(pieces) - 1} places for them once"
            f" the chat template has written it; the text may not contain {reader.token}",
            "messages",
        )
    written = [one + image.text for one, image in zip(pieces[:-1], images, strict=True)]
    whole = "".join([*written, pieces[-1]])
    prompt = await text.prompt(whole, special=special, param="messages")
    return prompt, _placed(prompt, images, reader.token, reader.token_id)


def _placed(
    prompt: tuple[int, ...], images: tuple[PreparedImage, ...], token: str, token_id: int
) -> tuple[PromptImage, ...]:
    """Which placeholders stand for which image."""
    places = [place for place, found in enumerate(prompt) if found == token_id]
    counts = [image.text.count(token) for image in images]
    if len(places) != sum(counts):
        raise refused("the model's tokenizer does not know its placeholder for images", "messages")
    found, first = [], 0
    for image, count in zip(images, counts, strict=True):
        runs = _runs(places[first : first + count])
        found.append(PromptImage(places=runs, digest=image.digest, arrays=image.arrays))
        first += count
    return tuple(found)


def _runs(places: list[int]) -> tuple[tuple[int, int], ...]:
    """Places in a row as one run [start, stop) each."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return tuple(runs)


async def render(
    text: TextTokens,
    messages: Sequence[Message],
    tools: Sequence[Tool | CustomTool],
    *,
    opens_turn: bool,
    continues: bool,
    variables: dict[str, Any],
    documents: Sequence[dict[str, Any]] = (),
) -> Rendered:
    """The conversation as the template writes it. Raises ApiError, 400."""
    if documents and "documents" not in text.template.text:
        raise refused("this model's chat template shows no documents", "documents")
    if tools and text.template.origin == "plain":
        raise refused(
            "this model has no chat template of its own, and the plain one shows no tools; start"
            " the server with --chat-template FILE",
            "tools",
        )
    tokenizer = await text.whole_tokenizer()
    for name in sorted(variables):
        if name in reserved(tokenizer) or name.startswith("_") or not name.isidentifier():
            raise refused(
                f"chat_template_kwargs: {name[:100]!r} is no variable of the template",
                "chat_template_kwargs",
            )
    if continues and opens_turn:
        text_ = "continue_final_message needs add_generation_prompt: false"
        raise refused(text_, "continue_final_message")
    for one in messages:
        if isinstance(one, OwnMessage) and not text.template.has_role(one.role):
            wrong = f"messages: this model's chat template has no role {one.role!r}"
            raise refused(wrong, "messages")
    pictures = [part for one in messages if isinstance(one, SeenTurn) for part in one.images]
    if pictures and text.images is None:
        raise refused(
            "this model takes text alone, no images; serve a vision-language model for them",
            "messages",
        )
    write = _writer(text)
    conversation = [_plain(message, write) for message in messages]
    work = functools.partial(
        tokenizer.apply_chat_template,
        conversation,
        chat_template=text.template.text,
        tools=[_plain_tool(tool) for tool in tools] or None,
        documents=list(documents) or None,
        add_generation_prompt=opens_turn,
        continue_final_message=continues,
        tokenize=False,
        **variables,
    )
    images = () if text.images is None else await text.images.read(pictures)
    try:
        return Rendered(await in_time(work), images)
    except ApiError:
        raise
    except Exception as error:  # templates are programs: they raise what they like
        line = " ".join(str(error).split())[:300]
        message = f"the model's chat template refuses this conversation: {line}"
        raise refused(message, "messages") from None


def _plain(message: Message, write: Callable[[Any], Any]) -> dict[str, Any]:
    """A message as templates expect it: text as a string, arguments of calls as objects."""
    role = "system" if isinstance(message, InstructionMessage) else message.role
    plain: dict[str, Any] = {"role": role, "content": write(message.content)}
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


def _writer(text: TextTokens) -> Callable[[Any], Any]:
    """How contents are given to the template: as text, or part by part where it shows images."""
    if text.images is not None and _SHOWS_PARTS.search(text.template.text):
        return _parts
    return functools.partial(_text, token="" if text.images is None else text.images.token)


def _text(content: str | list[TextPart] | list[TextPart | ImagePart] | None, token: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if isinstance(part, TextPart) else token for part in content)


def _parts(content: str | list[TextPart | ImagePart] | None) -> list[dict[str, str]]:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content or ""}]
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in content
    ]


def _arguments(text: str) -> Any:
    if too_deep(text.encode()):
        raise refused("messages: arguments of a tool call are nested too deeply", "messages")
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return text  # it was cut off when it was made; the template shows it as it is


def _plain_tool(tool: Tool | CustomTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.function.model_dump(exclude_none=True)}
