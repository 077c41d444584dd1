"""The shapes of documents in order: `/rerank` in several servers' words, and `/v1/ranking`.

Jina, Cohere, Voyage, Together and vLLM send a `query` with `documents` and read `results` or
`data`; text-embeddings-inference's clients send `texts` and read a bare list; NVIDIA's send
`passages` and read `rankings`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from ridgeline.serve.http.protocol.completions import MOST_PROMPTS
from ridgeline.serve.http.protocol.embeddings import (
    Embeddable,
    EmbeddingUsage,
    Truncate,
    VectorFields,
)
from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import json_text
from ridgeline.serve.http.protocol.other_words import say

Document = dict[str, Any]
Documents = Annotated[
    list[Embeddable | Document], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)
]


class RerankRequest(VectorFields):
    """Documents to be put in order by how much they are like the query."""

    hints: ClassVar[frozenset[str]] = VectorFields.hints | {"raw_scores"}

    query: Embeddable
    documents: Documents | None = None
    texts: Annotated[
        list[Embeddable] | None, Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)
    ] = None
    """The documents, as text-embeddings-inference's clients name them; the reply is a bare list."""
    top_n: int | None = Field(None, ge=0, lt=2**31)
    """So many of the best; 0: all."""
    top_k: int | None = Field(None, ge=0, lt=2**31)
    """Voyage's name of the same."""
    return_documents: bool | None = None
    """Whether results show the documents; yes if absent, as vLLM does."""
    return_text: bool | None = None
    """The same for `texts`; no if absent."""
    raw_scores: bool | None = None
    """A cosine is no logit that could be squashed."""
    max_tokens_per_doc: int | None = Field(None, ge=1, lt=2**31)
    """The first tokens of each document that are taken."""
    truncation: bool | None = None
    truncate: bool | None = None
    """Whether texts that are too long are cut, by Voyage's name and the other's."""
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None
    """At which end; right if absent."""
    max_chunks_per_doc: None = None
    rank_fields: list[Annotated[str, Field(max_length=512)]] | None = Field(None, max_length=64)
    """The fields of documents that are read; all if absent."""

    @model_validator(mode="before")
    @classmethod
    def _by_llama_stacks_names(cls, given: Any) -> Any:
        """Llama Stack's `items` and `max_num_results`."""
        if not isinstance(given, dict):
            return given
        asked = dict(given)
        for word, name in (("items", "documents"), ("max_num_results", "top_n")):
            if asked.get(word) is not None:
                say(asked, word, **{name: asked[word]})
        return asked

    @model_validator(mode="after")
    def _one_list(self) -> RerankRequest:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("give either documents or texts")
        if len({self.top_n, self.top_k} - {None}) > 1:
            raise ValueError("top_k is another name of top_n: they differ")
        wanted = self.rank_fields
        for one in self.documents or ():
            if isinstance(one, dict) and not (set(one) & set(wanted) if wanted else one):
                raise ValueError("a document has none of the fields that are read")
        return self

    @property
    def most(self) -> int | None:
        """How many of the best are wanted; None: all."""
        return self.top_n or self.top_k or None

    @property
    def cut_at(self) -> Truncate:
        """At which end a long text is cut, in Cohere's words."""
        if not (self.truncation or self.truncate):
            return "NONE"
        return "START" if (self.truncation_direction or "").lower() == "left" else "END"

    @property
    def read(self) -> list[str]:
        """The text of each document that is compared with the query."""
        given = self.documents if self.documents is not None else (self.texts or [])
        return [one if isinstance(one, str) else _text_of(one, self.rank_fields) for one in given]

    @property
    def shown(self) -> list[Document]:
        """The documents as replies show them."""
        return [one if isinstance(one, dict) else {"text": one} for one in self.documents or ()]


def _text_of(document: Document, wanted: list[str] | None) -> str:
    r"""The text of a document with fields: that of `text`, or a line for each.

    >>> _text_of({"text": "a"}, None), _text_of({"title": "b", "n": 1}, None)
    ('a', 'title: b\nn: 1')
    """
    found = {name: one for name, one in document.items() if wanted is None or name in wanted}
    if list(found) == ["text"] and isinstance(found["text"], str):
        return found["text"]
    lines = (
        f"{name}: {one if isinstance(one, str) else json_text(one, 'documents')}"
        for name, one in found.items()
    )
    return "\n".join(lines)


class PassageText(Strict):
    """A text in an object of its own."""

    text: Embeddable


class RankingRequest(VectorFields):
    """Passages to be put in order, in NVIDIA's words."""

    query: PassageText | Embeddable
    passages: Annotated[
        list[PassageText], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)
    ]
    truncate: Truncate | None = None
    """At which end of a long text tokens go; NONE, or absent: it is refused."""

    @property
    def texts(self) -> list[str]:
        """The query, then the passages."""
        query = self.query if isinstance(self.query, str) else self.query.text
        return [query, *(one.text for one in self.passages)]


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One document in its order; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class RankingUsage(EmbeddingUsage, frozen=True, kw_only=True):
    """The token counts of a ranking, which writes none."""

    completion_tokens: int = 0


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, the most alike first."""

    id: str
    model: str
    results: list[RankedDocument]
    data: list[RankedDocument]
    """The same in Voyage's word, without documents."""
    meta: dict[str, Any]
    """What Cohere's clients read of versions and costs."""
    usage: RankingUsage


class RankedPassage(msgspec.Struct, frozen=True, kw_only=True):
    """One passage in its order, as NVIDIA's clients read it."""

    index: int
    logit: float


class PassageRanking(msgspec.Struct, frozen=True, kw_only=True):
    """The passages, the most alike first."""

    rankings: list[RankedPassage]
    usage: EmbeddingUsage
