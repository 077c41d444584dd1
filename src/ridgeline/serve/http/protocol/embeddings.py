"""The shapes of what vectors answer: `/v1/embeddings`, `/pooling`, `/score`, `/rerank`.

Scores and ranks are cosines of embeddings, as vLLM has them of models that embed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from ridgeline.serve.http.protocol.chat import Message, Variables
from ridgeline.serve.http.protocol.completions import MOST_PROMPTS
from ridgeline.serve.http.protocol.fields import AskedModel, Strict, Text, Tokens

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


class VectorFields(Strict):
    """What requests have in common that vectors answer."""

    hints: ClassVar[frozenset[str]] = frozenset({"priority", "request_id"})
    """Fields that are taken though nothing follows from them."""

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

    input: Inputs | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=4096)
    """A conversation, written by the chat template."""
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Variables | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, lt=2**31)
    """So many first numbers of the vector, normalised again (Matryoshka models)."""
    input_type: Annotated[str, Field(max_length=64)] | None = None
    truncate: Literal["NONE"] | None = None
    """NVIDIA's word for a text that is too long being refused, as it is."""

    @model_validator(mode="after")
    def _one_of_both(self) -> EmbeddingRequest:
        if (self.input is None) == (self.messages is None):
            raise ValueError("give either input or messages")
        chat_only = (self.add_generation_prompt, self.chat_template_kwargs)
        if self.messages is None and any(value is not None for value in chat_only):
            raise ValueError("add_generation_prompt and chat_template_kwargs go with messages")
        return self


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


class RankedText(Strict):
    """A document with its text, as some clients send it."""

    text: Embeddable


Documents = Annotated[
    list[Embeddable | RankedText], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)
]


class RerankRequest(VectorFields):
    """Documents to be put in order by how much they are like the query."""

    query: Embeddable
    documents: Documents
    top_n: int | None = Field(None, ge=0, lt=2**31)
    """So many of the best; 0: all."""
    return_documents: bool | None = None
    """Whether results show the documents; yes if absent, as vLLM does."""
    max_tokens_per_doc: int | None = Field(None, ge=1, lt=2**31)
    """The first tokens of each document that are taken."""
    max_chunks_per_doc: None = None
    rank_fields: None = None

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


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


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One document in its order; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, the most alike first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage
