"""The requests of Ollama's API, `/api/chat` and its like: chats and completions in other words.

Replies stream unless `stream` is false, options stand in an object of their own, a format is "json"
or a schema, images are base64 without a type, and calls have objects for arguments.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import (
    LARGEST_INT,
    MOST_LOGPROBS,
    AskedModel,
    StopString,
    Text,
)
from ridgeline.serve.http.protocol.llama_cpp import LlamaNumbers
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, NamedChoice, Tool
from ridgeline.serve.sampling.sampler_order import OLLAMA

USUAL_TAG = ":latest"
"""What Ollama's clients put behind a model's name that has no tag."""
NAMES = {
    "max_completion_tokens": "num_predict",
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "response_format": "format",
    "reasoning_effort": "think",
}
"""Fields of a chat by their name here, for errors."""


def plain_name(given: Any) -> Any:
    """A model's name without the usual tag.

    >>> plain_name("library:latest"), plain_name(None)
    ('library', '')
    """
    return given.removesuffix(USUAL_TAG) if isinstance(given, str) else given or ""


def _as_choice(given: Any) -> Any:
    """A named tool as chats name it, which some clients write as `/v1/responses` has it."""
    match given:
        case {"type": "function", "name": name, **others} if not others:
            return {"type": "function", "function": {"name": name}}
    return given


_BESIDE = {
    "max_output_tokens": "num_predict",
    "max_tokens": "num_predict",
    **{name: name for name in ("temperature", "top_p", "top_k", "seed", "stop")},
}
"""What clients for several servers write beside the options, and which of these it is."""
_WITHIN = ("think", "format", "keep_alive")
"""Fields of a request that some clients write among the options."""


def _fields_within(given: dict[str, Any]) -> dict[str, Any]:
    """The request with its fields beside its options.

    >>> _fields_within({"options": {"think": True, "seed": 1}})
    {'options': {'seed': 1}, 'think': True}
    """
    options = given.get("options")
    if not isinstance(options, dict) or options.keys().isdisjoint(_WITHIN):
        return given
    moved = {name: one for name, one in options.items() if name in _WITHIN}
    kept = {name: one for name, one in options.items() if name not in _WITHIN}
    return {
        **given,
        "options": kept,
        **{n: one for n, one in moved.items() if given.get(n) is None},
    }


OllamaModel = Annotated[AskedModel, BeforeValidator(plain_name)]
KeepAlive = float | Annotated[str, Field(max_length=64)] | None
Given = Annotated[dict[str, Any], few(64)]


class OllamaOptions(LlamaNumbers):
    """How tokens are drawn; what else there is of a machine and its memory alters none of them."""

    hints: ClassVar[frozenset[str]] = frozenset({
        "numa", "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all",
        "vocab_only", "use_mmap", "use_mlock", "embedding_only", "num_thread", "num_keep",
    })  # fmt: skip

    num_predict: int | None = Field(None, ge=-2, lt=2**31)
    """The most new tokens; below 1: as many as the context leaves."""
    seed: int | None = Field(None, ge=-LARGEST_INT, le=LARGEST_INT)
    stop: list[StopString] | StopString | None = Field(None, max_length=256)
    typical_p: Annotated[float, Field(ge=1, le=1)] | None = None
    tfs_z: Annotated[float, Field(ge=1, le=1)] | None = None
    mirostat: Annotated[int, Field(ge=0, le=0)] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: bool | None = None
    numa: bool | None = None
    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    embedding_only: bool | None = None
    num_thread: int | None = None
    num_keep: int | None = None

    @property
    def without_effect(self) -> list[str]:
        """What was given and has no effect."""
        hints = self.hints | {"repeat_last_n", "mirostat_tau", "mirostat_eta", "penalize_newline"}
        given = (name for name in hints if getattr(self, name) is not None)
        return sorted(f"options.{name}" for name in given)

    @property
    def most_tokens(self) -> int | None:
        """The most new tokens; None: as many as fit."""
        return self.num_predict if self.num_predict and self.num_predict > 0 else None

    def sampling_fields(self) -> dict[str, Any]:
        """The same as fields of a chat or a completion."""
        same = {"seed", "stop", "temperature", "top_k", "top_p", "min_p", "presence_penalty",
                "frequency_penalty"}  # fmt: skip
        found = {**self.model_dump(include=same, exclude_none=True), "samplers": OLLAMA}
        if self.repeat_penalty is not None and self.repeat_last_n != 0:
            found["repetition_penalty"] = self.repeat_penalty
        return found


class OllamaFields(Strict):
    """What chats and texts to be continued have in common."""

    model: OllamaModel = ""
    stream: bool | None = None
    """Whether the reply comes line by line; yes if absent."""
    options: OllamaOptions | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    """What the answer must be: any JSON object, or JSON of a schema."""
    keep_alive: KeepAlive = None
    """How long a model stays loaded; the one here stays."""
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)

    @model_validator(mode="before")
    @classmethod
    def _options_beside(cls, given: Any) -> Any:
        """Some clients write options beside `options`, or fields within, which Ollama overlooks."""
        if not isinstance(given, dict):
            return given
        given = _fields_within(given)
        beside = {name: given[name] for name in _BESIDE if given.get(name) is not None}
        if not beside:
            return given
        kept = {name: one for name, one in given.items() if name not in _BESIDE}
        options = given.get("options")
        within = options if isinstance(options, dict) else {}
        return {**kept, "options": {**{_BESIDE[n]: one for n, one in beside.items()}, **within}}

    @property
    def asked(self) -> OllamaOptions:
        """The options, given or not."""
        return self.options or OllamaOptions.model_validate({})

    @property
    def streams(self) -> bool:
        """Whether the reply comes line by line."""
        return self.stream is not False

    @property
    def unloads(self) -> bool:
        """Whether a request without a prompt asks that the model be unloaded."""
        return self.keep_alive in (0, "0")

    @property
    def without_effect(self) -> list[str]:
        """What was given and has no effect."""
        kept = [] if self.keep_alive is None else ["keep_alive"]
        return [*kept, *self.asked.without_effect]

    def chat_of(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields of the chat that asks the same of some messages."""
        more = {
            "max_completion_tokens": self.asked.most_tokens,
            "response_format": self._format(),
            "reasoning_effort": self._effort(),
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs if self.logprobs else None,
        }
        return {
            "model": self.model,
            "messages": messages,
            **self.asked.sampling_fields(),
            **{name: value for name, value in more.items() if value is not None},
        }

    def _format(self) -> dict[str, Any] | None:
        if not self.format:
            return None
        if isinstance(self.format, dict):
            return {"type": "json_schema", "json_schema": {"schema": self.format}}
        return {"type": "json_object"}

    def _effort(self) -> str | None:
        if isinstance(self.think, bool):
            return None if self.think else "none"
        return self.think


class OllamaChatRequest(OllamaFields):
    """A conversation to be answered; without messages, the model is only asked to be there."""

    messages: list[Given] = Field(default_factory=list, max_length=4096)
    tools: list[Tool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedChoice | None, BeforeValidator(_as_choice)
    ] = None
    """What Ollama's server does not know, in the words of OpenAI's."""

    def chat_fields(self) -> dict[str, Any]:
        """The fields of the chat that asks the same."""
        found = self.chat_of(_messages(self.messages))
        if self.tools:
            found["tools"] = [one.model_dump(exclude_none=True) for one in self.tools]
        if isinstance(self.tool_choice, str):
            found["tool_choice"] = self.tool_choice
        elif self.tool_choice is not None:
            found["tool_choice"] = self.tool_choice.model_dump()
        return found


class OllamaGenerateRequest(OllamaFields):
    """A user's words to be answered, or a text to be continued as it stands (`raw`, `suffix`)."""

    prompt: Text | None = None
    system: Text | None = None
    images: list[Text] | None = Field(None, max_length=32)
    raw: bool | None = None
    suffix: Text | None = None
    template: Annotated[None, BeforeValidator(lambda given: given or None)] = None
    context: Annotated[list[int], Field(max_length=0)] | None = None

    @property
    def as_it_stands(self) -> bool:
        """Whether the prompt goes to the model without a chat template."""
        return bool(self.raw or self.suffix)

    def chat_fields(self) -> dict[str, Any]:
        """The fields of the chat that asks the same."""
        said = [{"role": "system", "content": self.system}] if self.system else []
        user = {"role": "user", "content": self.prompt or "", "images": self.images}
        return self.chat_of(_messages([*said, user]))

    def completion_fields(self) -> dict[str, Any]:
        """The fields of the completion that asks the same."""
        chat = self.chat_of([])
        more: dict[str, Any] = {"prompt": self.prompt or "", "suffix": self.suffix or None}
        if isinstance(self.format, dict):
            more["guided_json"] = self.format
        elif self.format:
            more["structured_outputs"] = {"json_object": True}
        if self.logprobs:
            more["logprobs"] = self.top_logprobs or 0
        left_out = {"messages", "max_completion_tokens", "response_format", "reasoning_effort",
                    "logprobs", "top_logprobs"}  # fmt: skip
        kept = {name: value for name, value in chat.items() if name not in left_out}
        if self.asked.most_tokens is not None:
            more["max_tokens"] = self.asked.most_tokens
        return {**kept, **{name: value for name, value in more.items() if value is not None}}


class OllamaEmbedRequest(Strict):
    """Texts to become vectors."""

    model: OllamaModel = ""
    input: Text | list[Text] | None = None
    prompt: Text | None = None
    """The older name of one text, of `/api/embeddings`."""
    truncate: bool | None = None
    """Whether a text that is too long is cut; yes if absent."""
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None
    dimensions: int | None = Field(None, ge=1, lt=2**31)

    @property
    def texts(self) -> list[str]:
        """The texts, however they came."""
        given = self.input if self.input is not None else self.prompt
        return given if isinstance(given, list) else [given or ""]


class OllamaModelRequest(Strict):
    """A model that is asked about."""

    model: OllamaModel = ""
    name: OllamaModel = ""
    """The older name of the same."""
    verbose: bool | None = None
    stream: bool | None = None
    insecure: bool | None = None


def _messages(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chats have them; results belong to the calls before them, one after the other."""
    found, open_calls = [], deque[str]()
    for number, one in enumerate(given):
        message = {name: value for name, value in one.items() if value not in (None, [])}
        if "thinking" in message:
            message["reasoning_content"] = message.pop("thinking")
        if "tool_name" in message:
            message["name"] = message.pop("tool_name")
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [
                {"id": f"call_{number}_{index}", **call} if isinstance(call, dict) else call
                for index, call in enumerate(calls)
            ]
            open_calls.extend(f"call_{number}_{index}" for index in range(len(calls)))
        if message.get("role") == "tool":
            message.setdefault("content", "")
            if open_calls:
                message.setdefault("tool_call_id", open_calls.popleft())
        if isinstance(images := message.pop("images", None), list):
            text = {"type": "text", "text": message.get("content") or ""}
            message["content"] = [*map(_image, images), text]
        found.append(message)
    return found


def _image(given: Any) -> Any:
    address = f"data:image/png;base64,{given}"  # what it is, its own first bytes say
    return {"type": "image_url", "image_url": {"url": address}}
