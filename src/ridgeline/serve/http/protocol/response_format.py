"""What an answer must be: free text, JSON, JSON of a schema, or text with structures in it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ridgeline.serve.http.protocol.fields import Strict, Text


class JsonSchema(Strict):
    """A named schema; it is always enforced, whether `strict` says so or not."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormat(Strict):
    """The format of free text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """The format of any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class TaggedStructure(Strict):
    """Text that begins so is followed by JSON that matches, and by its end."""

    begin: Annotated[str, Field(min_length=1, max_length=1024)]
    schema_: dict[str, Any] = Field(alias="schema")
    end: Annotated[str, Field(max_length=1024)]


class StructuralTagFormat(Strict):
    """Free text with structures in it (vLLM's); either the older fields or `format`."""

    type: Literal["structural_tag"]
    structures: Annotated[list[TaggedStructure], Field(min_length=1, max_length=128)] | None = None
    triggers: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=1024)]],
            Field(min_length=1, max_length=128),
        ]
        | None
    ) = None
    format: dict[str, Any] | None = None
    """A structural tag in xgrammar's own words."""

    @model_validator(mode="after")
    def _one_way(self) -> StructuralTagFormat:
        old = (self.structures is not None, self.triggers is not None)
        if any(old) != all(old) or any(old) == (self.format is not None):
            raise ValueError("a structural tag has structures and triggers, or a format")
        return self


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat,
    Field(discriminator="type"),
]
