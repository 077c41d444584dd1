"""The request of `/v1/messages`, as clients of Anthropic's API send it."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from ridgeline.serve.http.protocol.chat import Variables
from ridgeline.serve.http.protocol.context_edits import ContextManagement
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.exact import Strict
from ridgeline.serve.http.protocol.fields import StopString, Text
from ridgeline.serve.http.protocol.message_blocks import (
    CacheControl,
    DocumentBlock,
    ForeignBlock,
    SearchResultBlock,
    TextBlocks,
    Turn,
)
from ridgeline.serve.http.protocol.tools import MOST_TOOLS, FunctionName


class InputTool(Strict):
    """A tool of the client's."""

    carried_in = "tools"

    type: Literal["custom"] | None = None
    name: FunctionName
    description: Text | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    """The input matches the schema exactly; needs `tool_choice` any or tool."""
    cache_control: CacheControl = None


class ServerTool(Strict):
    """A tool that Anthropic's servers run themselves: there is none here, nor has the model one."""

    carried_in = "tools"

    type: Annotated[str, Field(pattern=r"^\w{1,64}$")]


class TrainedTool(Strict):
    """A tool that Claude was trained with: it comes without a schema, which others need."""

    carried_in = "tools"

    type: Text

    @field_validator("type")
    @classmethod
    def _has_no_schema(cls, given: str) -> str:
        raise ValueError(
            f"{given[:100]!r} has no input_schema that a model here could be told; give it as a"
            " custom tool with one"
        )


def _kind_of_tool(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    if kind is None or kind == "custom":
        return "custom"
    return "server" if isinstance(kind, str) and _SERVER_TOOL.match(kind) else "trained"


_SERVER_TOOL = re.compile(r"(web_search|web_fetch|code_execution|tool_search_tool_\w+)_\d{8}$")
GivenInputTool = Annotated[
    Annotated[InputTool, Tag("custom")]
    | Annotated[ServerTool, Tag("server")]
    | Annotated[TrainedTool, Tag("trained")],
    Discriminator(_kind_of_tool),
]


class ToolPreference(Strict):
    """Whether tools may, must or may not be used."""

    type: Literal["auto", "any", "none", "tool"]
    name: FunctionName | None = None
    """The tool that must be used, with the type tool."""
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _a_name_with_tool_alone(self) -> ToolPreference:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("a name goes with the type tool, and only with it")
        return self


class ThinkingOptions(Strict):
    """Whether the model thinks first, and how long."""

    type: Literal["disabled", "adaptive", "enabled"]
    budget_tokens: int | None = Field(None, ge=1, lt=2**31)
    """The most tokens of thoughts; where the model does not think, nothing is to be kept."""
    display: Literal["summarized", "omitted"] | None = None


class SchemaFormat(Strict):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputOptions(Strict):
    """How hard the model thinks, and what its answer must match."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: SchemaFormat | None = None
    task_budget: None = None
    """What Claude is told of the tokens that a task has left, by which it answers otherwise; models
    here are told of none."""


class RequestMetadata(Strict):
    """The person who asks, as the client calls them."""

    carried_in = "metadata"

    user_id: str | None = Field(None, max_length=512)
    """Stands in the request's log line."""


def unless_off(given: Any) -> Any:
    """Nothing for -1, by which clients of Claude 2 switched a bound of tokens off."""
    return None if given == -1 else given


class MessagesRequest(Strict):
    """A conversation to be answered, in Anthropic's words."""

    hints: ClassVar[frozenset[str]] = frozenset(
        {"service_tier", "cache_control", "speed", "inference_geo"}
    )
    idle = frozenset({"diagnostics", "fallbacks", "fallback_credit_token", "user_profile_id"})

    model: Annotated[str, Field(min_length=1, max_length=512)]
    messages: list[Turn] = Field(min_length=1, max_length=4096)
    max_tokens: int = Field(ge=1, lt=2**31)
    system: TextBlocks | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: Annotated[float | None, Field(ge=0, le=1), BeforeValidator(unless_off)] = None
    top_k: Annotated[int | None, Field(ge=0, lt=2**31), BeforeValidator(unless_off)] = None
    tools: list[GivenInputTool] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: ToolPreference | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions | None = None
    output_format: SchemaFormat | None = None
    """The older place of `output_config.format`."""
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Annotated[str, Field(max_length=64)] | None = None
    inference_geo: Annotated[str, Field(max_length=64)] | None = None
    """How fast and where Anthropic's servers are to compute."""
    cache_control: CacheControl = None
    chat_template_kwargs: Variables | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Prefixes are shared only among requests of the same salt (vLLM's)."""
    context_management: ContextManagement | None = None
    container: None = None
    thread: None = None
    """A conversation that a server keeps; clients go on without where they are told so."""
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def without_effect(self) -> list[str]:
        """The hints that were given; the reply names them in a header."""
        found = sorted(name for name in self.hints if getattr(self, name) is not None)
        tools = (tool for tool in self.tools or [] if isinstance(tool, ServerTool))
        found += dict.fromkeys(f"tools.{tool.type}" for tool in tools)
        if any(self._asks_to_cite(turn) for turn in self.messages):
            found.append("messages.citations")
        blocks = (one for turn in self.messages for one in turn.content)
        foreign = (one for one in blocks if isinstance(one, ForeignBlock))
        found += dict.fromkeys(f"messages.{one.type}" for one in foreign)
        if self._thinks_not and self.output_config and self.output_config.effort:
            found.append("output_config.effort")
        return found

    @property
    def form(self) -> SchemaFormat | None:
        """What the answer must match, by either name. Raises ApiError where they differ."""
        newer = None if self.output_config is None else self.output_config.format
        if newer is not None and self.output_format not in (None, newer):
            raise refused("output_format is the older name of output_config.format: they differ")
        return newer or self.output_format

    @property
    def _thinks_not(self) -> bool:
        """Whether the model is to answer at once, however hard it would think."""
        return self.thinking is not None and self.thinking.type == "disabled"

    @staticmethod
    def _asks_to_cite(turn: Turn) -> bool:
        blocks = [] if isinstance(turn.content, str) else turn.content
        sources = (one for one in blocks if isinstance(one, DocumentBlock | SearchResultBlock))
        return any(one.citations is not None and one.citations.enabled for one in sources)

    @property
    def own_tools(self) -> list[InputTool]:
        """The tools that the model is told of."""
        return [tool for tool in self.tools or [] if isinstance(tool, InputTool)]


class PromptCountRequest(MessagesRequest):
    """A conversation whose tokens are counted, and which may be as long as it likes."""

    max_tokens: int = Field(1, ge=1, lt=2**31)
