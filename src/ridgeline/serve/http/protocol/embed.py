"""The shapes of vectors in the words of other servers: Cohere's `/v2/embed`, and `/embed`.

The second is that of Hugging Face's text-embeddings-inference, whose clients send `inputs`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field

from ridgeline.serve.http.protocol.completions import MOST_PROMPTS
from ridgeline.serve.http.protocol.embeddings import Embeddable, Inputs, Truncate, VectorFields

Form = Literal["float", "base64"]


class CohereEmbedRequest(VectorFields):
    """Texts to become vectors, in Cohere's words."""

    hints: ClassVar[frozenset[str]] = VectorFields.hints | {"input_type"}

    texts: Annotated[list[Embeddable], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
    input_type: Annotated[str, Field(max_length=64)] | None = None
    """What the texts are for; the models here make one vector of a text, whatever it is for."""
    embedding_types: list[Form] | None = Field(None, min_length=1, max_length=2)
    output_dimension: int | None = Field(None, ge=1, lt=2**31)
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    """The most tokens of a text; `truncate` says at which end others go."""
    truncate: Truncate | None = None
    """At which end of a long text tokens go, its END if absent; NONE: it is refused."""
    images: None = None
    inputs: None = None

    @property
    def forms(self) -> list[Form]:
        """The forms of vectors that are wanted."""
        return list(dict.fromkeys(self.embedding_types or ["float"]))


class TextsEmbedRequest(VectorFields):
    """Texts or token ids to become vectors, in the words of text-embeddings-inference."""

    inputs: Inputs
    truncate: bool | None = None
    """Whether a text that is too long is cut; it is refused if not."""
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None
    """At which end; right if absent."""
    dimensions: int | None = Field(None, ge=1, lt=2**31)
    prompt_name: None = None

    @property
    def cut_at(self) -> Truncate:
        """At which end a long text is cut, in Cohere's words."""
        if not self.truncate:
            return "NONE"
        return "START" if (self.truncation_direction or "").lower() == "left" else "END"


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors in the forms that were asked for."""

    id: str
    embeddings: dict[str, list[Any]] | list[Any]
    texts: list[str]
    meta: dict[str, Any]
    response_type: str = "embeddings_by_type"
