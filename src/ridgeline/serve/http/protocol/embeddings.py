"""`/v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import Field

from ridgeline.serve.http.protocol.completions import MOST_PROMPTS
from ridgeline.serve.http.protocol.strict import Name, Strict, Text, Tokens
from ridgeline.serve.http.protocol.usage import EmbeddingUsage

Embeddable = Annotated[Text, Field(min_length=1)]


class EmbeddingRequest(Strict):
    """Texts or token ids, each to become one vector."""

    model: Name
    input: (
        Embeddable
        | Tokens
        | Annotated[list[Embeddable], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = Field(None, max_length=512)
    dimensions: None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or float32 (little endian) in base64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of the inputs."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"
