"""What an answer must be: free text, JSON, JSON of a schema, or text with structures in it.

OpenAI's four types and vLLM's structural tags, as well as what other servers write for the same: a
`schema` beside the type, and a regular expression or a grammar as a type of its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import Text


class JsonSchema(Strict):
    """A schema; it is enforced whether `strict` says so or not.

    What no grammar holds is refused with `strict`, and let go without it (`schema_loosening`).
    """

    name: Annotated[str, Field(min_length=1, max_length=64)] = "answer"
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


class RegexFormat(Strict):
    """Text that matches a regular expression (Together's `pattern`, TGI's `value`)."""

    type: Literal["regex"]
    pattern: Text


class GrammarFormat(Strict):
    """Text that a grammar makes, in EBNF (Fireworks')."""

    type: Literal["grammar"]
    grammar: Text


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


def _as_format(given: Any) -> Any:
    """A format in the words of other servers, in ours."""
    match given:
        case {"type": "json_object" | "json_schema" as kind, "schema": dict() as schema}:
            others = {name: one for name, one in given.items() if name not in ("type", "schema")}
            if kind == "json_object" or "json_schema" not in others:
                return {"type": "json_schema", "json_schema": {"schema": schema, **others}}
        case {"type": "json", "value": dict() as schema}:
            return {"type": "json_schema", "json_schema": {"schema": schema}}
        case {"type": "regex", "value": pattern}:
            return {"type": "regex", "pattern": pattern}
    return given


ResponseFormat = Annotated[
    Annotated[
        TextFormat
        | JsonObjectFormat
        | JsonSchemaFormat
        | RegexFormat
        | GrammarFormat
        | StructuralTagFormat,
        Field(discriminator="type"),
    ],
    BeforeValidator(_as_format),
]
