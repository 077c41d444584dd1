"""`/v1/models` with LoRA adapters, which are models too, and `/tokenize` and `/detokenize`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from pydantic import Field, model_validator

from ridgeline.serve.http.protocol.chat import Variables
from ridgeline.serve.http.protocol.chat_messages import Message
from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import Name, PlainName, Text, TokenId
from ridgeline.serve.http.protocol.tools import AnyTool


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model, or an adapter of it."""

    id: str
    created: int
    max_model_len: int
    root: str
    input_modalities: tuple[str, ...]
    """What a prompt may have: text, and image where the model sees."""
    capabilities: dict[str, bool]
    """What may be asked, in the words of Mistral's clients."""
    type: str = "base"
    parent: str | None = None
    owned_by: str = "ridgeline"
    object: str = "model"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All that a request may name as `model`."""

    data: list[ModelCard]
    object: str = "list"


class LoadAdapterRequest(Strict):
    """A directory with a PEFT LoRA adapter, on the server's machine."""

    lora_name: PlainName
    lora_path: PlainName


class UnloadAdapterRequest(Strict):
    """An adapter that no request uses."""

    lora_name: PlainName


_LLAMA_CPPS = frozenset({"content", "add_special", "parse_special"})


class TokenizeRequest(Strict):
    """A text, or a conversation through the chat template."""

    model: Name | None = None
    prompt: Text | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=4096)
    tools: list[AnyTool] | None = Field(None, max_length=128)
    add_special_tokens: bool | None = None
    """Yes for a text, no for a conversation, if absent."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Variables | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    """Whether each token stands beside its text (llama.cpp's)."""

    @model_validator(mode="before")
    @classmethod
    def _in_llama_cpps_words(cls, given: Any) -> Any:
        """llama.cpp's clients call a text `content`; special tokens come if they say so."""
        if not isinstance(given, dict) or "content" not in given:
            return given
        others = {name: value for name, value in given.items() if name not in _LLAMA_CPPS}
        special = given.get("add_special") or False
        return {**others, "prompt": given["content"], "add_special_tokens": special}

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        chat_only = (
            *(self.tools, self.add_generation_prompt, self.chat_template_kwargs),
            self.continue_final_message,
        )
        if self.messages is None and any(value is not None for value in chat_only):
            text = (
                "tools, add_generation_prompt, continue_final_message and chat_template_kwargs go"
                " with messages"
            )
            raise ValueError(text)
        return self


class TokenPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its text."""

    id: int
    piece: str


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The token ids of a text or a conversation."""

    count: int
    max_model_len: int
    tokens: Sequence[int | TokenPiece]
    token_strs: list[str] | None = None


class DetokenizeRequest(Strict):
    """Token ids, to become text."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Special tokens are kept."""

    prompt: str
    content: str
    """The same, as llama.cpp's clients look for it."""
