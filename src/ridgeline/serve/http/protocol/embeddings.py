"""The shapes of what vectors answer: `/v1/embeddings`, `/pooling`, `/score`.

Scores are cosines of embeddings, as vLLM has them of models that embed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from ridgeline.serve.http.protocol.chat import Variables
from ridgeline.serve.http.protocol.chat_messages import Message
from ridgeline.serve.http.protocol.completions import MOST_PROMPTS
from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import AskedModel, Text, Tokens

Embeddable = Annotated[Text, Field(min_length=1)]
Texts = (
    Embeddable
    | Annotated[list[Embeddable], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
)
Inputs = (
    Embeddable
    | Tokens
    | Annotated[list[Embeddable], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
    | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
)


def _bare(given: Any) -> Any:
    """Inputs without the objects that Jina's clients put around texts."""
    if not isinstance(given, list):
        return given
    return [
        one["text"] if isinstance(one, dict) and list(one) == ["text"] else one for one in given
    ]


Truncate = Literal["NONE", "START", "END"]
"""At which end of a text that is too long tokens go, in Cohere's words; NONE: it is refused."""


class VectorFields(Strict):
    """What requests have in common that vectors answer."""

    hints: ClassVar[frozenset[str]] = frozenset({"priority", "request_id"})
    """Fields that are taken though nothing follows from them."""
    idle = frozenset({"metadata"})

    model: AskedModel = ""
    user: str | None = Field(None, max_length=512)
    truncate_prompt_tokens: int | None = Field(None, ge=-1, lt=2**31)
    """The last tokens of each text that are taken; -1: as many as the context holds."""
    truncation_side: Literal["left"] | None = None
    add_special_tokens: bool | None = None
    """Whether texts get the tokenizer's first token; yes if absent."""
    normalize: Literal[True] | None = None
    activation: Literal[True] | None = None
    use_activation: Literal[True] | None = None
    """Vectors have length one, by whichever name that is asked for."""
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    request_id: Annotated[str, Field(max_length=512)] | None = None

    @property
    def without_effect(self) -> list[str]:
        """The hints that were given; the reply names them in a header."""
        return sorted(name for name in self.hints if getattr(self, name) is not None)


class EmbeddingRequest(VectorFields):
    """Texts, token ids or a conversation, each to become one vector."""

    hints: ClassVar[frozenset[str]] = VectorFields.hints | {"input_type"}
    """Queries and passages are the same to a language model."""

    input: Annotated[Inputs, BeforeValidator(_bare)] | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=4096)
    """A conversation, written by the chat template."""
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Variables | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, lt=2**31)
    """So many first numbers of the vector, normalised again (Matryoshka models)."""
    output_dimension: int | None = Field(None, ge=1, lt=2**31)
    """Voyage's and Mistral's name of the same."""
    output_dtype: Literal["float"] | None = None
    embedding_type: Literal["float", "base64"] | None = None
    """Jina's name of `encoding_format`."""
    normalized: Literal[True] | None = None
    late_chunking: Literal[False] | None = None
    input_type: Annotated[str, Field(max_length=64)] | None = None
    truncate: Truncate | bool | None = None
    truncation: bool | None = None
    """Whether a text that is too long is cut, and at which end: NVIDIA's words, Jina's, Voyage's.

    It is refused if both are absent.
    """

    @model_validator(mode="after")
    def _one_of_both(self) -> EmbeddingRequest:
        if (self.input is None) == (self.messages is None):
            raise ValueError("give either input or messages")
        chat_only = (self.add_generation_prompt, self.chat_template_kwargs)
        if self.messages is None and any(value is not None for value in chat_only):
            raise ValueError("add_generation_prompt and chat_template_kwargs go with messages")
        if len({self.dimensions, self.output_dimension} - {None}) > 1:
            raise ValueError("output_dimension is another name of dimensions: they differ")
        if len({self.encoding_format, self.embedding_type} - {None}) > 1:
            raise ValueError("embedding_type is another name of encoding_format: they differ")
        return self

    @property
    def length(self) -> int | None:
        """How many numbers of a vector are wanted; None: all."""
        return self.dimensions or self.output_dimension

    @property
    def form(self) -> Literal["float", "base64"]:
        """The form in which vectors are told."""
        return self.encoding_format or self.embedding_type or "float"

    @property
    def cut_at(self) -> Truncate | None:
        """At which end a long text is cut; None: nothing was said."""
        if isinstance(self.truncate, str):
            return self.truncate
        asked = self.truncate if self.truncate is not None else self.truncation
        return None if asked is None else ("END" if asked else "NONE")


class PoolingRequest(EmbeddingRequest):
    """The same, in vLLM's words."""

    task: Literal["embed"] | None = None
    """Other tasks need other models: one vector of each token, or a classifier's head."""


class ClassifyRequest(EmbeddingRequest):
    """Texts to be told apart by a classifier's head, which no causal language model has."""


class ScoreRequest(VectorFields):
    """Texts to be compared, one with each, or each with its counterpart."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The texts of both sides, by whichever names they came."""
        first, second = (
            next(getattr(self, name) for name in names if getattr(self, name) is not None)
            for names in _SIDES
        )
        return _listed(first), _listed(second)

    @model_validator(mode="after")
    def _two_sides(self) -> ScoreRequest:
        given = [[name for name in names if getattr(self, name) is not None] for names in _SIDES]
        if [len(names) for names in given] != [1, 1]:
            raise ValueError("give text_1 and text_2, or queries and documents")
        first, second = self.sides
        if len(first) not in (1, len(second)):
            raise ValueError(
                f"{given[0][0]} has {len(first)} texts and {given[1][0]} {len(second)}: give one,"
                " or as many"
            )
        return self


_SIDES = (("text_1", "data_1", "queries"), ("text_2", "data_2", "documents", "items"))


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The token counts of embeddings."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one input: numbers, or float32 (little endian) in base64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors in the order of the inputs."""

    id: str
    created: int
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class PooledVector(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one input, as `/pooling` tells it."""

    index: int
    data: list[float] | str
    object: str = "pooling"


class VectorReply(msgspec.Struct, frozen=True, kw_only=True):
    """What `/pooling` and `/score` reply."""

    id: str
    created: int
    model: str
    data: list[Any]
    usage: EmbeddingUsage
    object: str = "list"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How much two texts are like each other, between -1 and 1."""

    index: int
    score: float
    object: str = "score"
