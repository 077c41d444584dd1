"""The request of `/v1/responses`, OpenAI's newer way to ask for an answer."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from ridgeline.serve.http.protocol.chat import Variables
from ridgeline.serve.http.protocol.exact import Strict, few
from ridgeline.serve.http.protocol.fields import COMMON_HINTS, MOST_LOGPROBS, SamplingFields, Text
from ridgeline.serve.http.protocol.other_words import Effort, names_allowed, only_allowed
from ridgeline.serve.http.protocol.response_format import JsonObjectFormat, TextFormat
from ridgeline.serve.http.protocol.response_items import (
    InputItem,
    InputItems,
    MessageItem,
    SearchCallItem,
    ToolsItem,
)
from ridgeline.serve.http.protocol.response_tools import (
    FreeTool,
    FunctionGroup,
    FunctionTool,
    GivenTool,
    GivenTools,
    HostedTool,
)
from ridgeline.serve.http.protocol.tools import FunctionName


class FunctionChoice(Strict):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


class FreeToolChoice(Strict):
    """The custom tool that must be called."""

    type: Literal["custom"]
    name: FunctionName


class NamedSchemaFormat(Strict):
    """JSON that matches a schema, whether `strict` says so or not."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=64)]
    schema_: dict[str, Any] = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None


class TextOptions(Strict):
    """How the answer's text looks."""

    format: (
        Annotated[TextFormat | JsonObjectFormat | NamedSchemaFormat, Field(discriminator="type")]
        | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Strict):
    """How much the model thinks first."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Thoughts are told whole."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    """Which turns' thoughts the model is told: all that come go to the template, which decides."""
    mode: Annotated[str, Field(max_length=64)] | None = None
    """How OpenAI's servers let their models think."""


class NamedConversation(Strict):
    """A conversation by its id."""

    id: Annotated[str, Field(max_length=512)]


GivenConversation = Annotated[
    NamedConversation,
    BeforeValidator(lambda given: {"id": given} if isinstance(given, str) else given),
]
LOGPROBS = "message.output_text.logprobs"


class ResponsesRequest(SamplingFields):
    """A text or a conversation to be answered; sampling is asked for as with chats."""

    hints: ClassVar[frozenset[str]] = COMMON_HINTS | frozenset(
        {"service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
         "client_metadata", "max_tool_calls"}
    )  # fmt: skip

    input: InputItems
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1, lt=2**31)
    tools: GivenTools | None = None
    tool_choice: (
        Literal["none", "auto", "required"]
        | Annotated[FunctionChoice | FreeToolChoice, Field(discriminator="type")]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: (
        Annotated[
            list[
                Literal[
                    "message.output_text.logprobs",
                    "reasoning.encrypted_content",
                    "file_search_call.results",
                    "web_search_call.results",
                    "web_search_call.action.sources",
                    "message.input_image.image_url",
                    "computer_call_output.output.image_url",
                    "code_interpreter_call.outputs",
                ]
            ],
            Field(max_length=16),
        ]
        | None
    ) = None
    """The log-probabilities of tokens; thoughts are told as they are, not encrypted, and of tools
    that a server runs there is nothing to tell."""
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    metadata: Annotated[dict[str, Text], few(16)] | None = None
    """Stands in the request's log line, and comes back."""
    safety_identifier: str | None = Field(None, max_length=512)
    truncation: Literal["disabled", "auto"] | None = None
    """Whether a conversation that is too long loses its beginning, as vLLM does, or is refused."""
    client_metadata: Annotated[dict[str, Any], few(64)] | None = None
    store: bool | None = None
    """Whether the response is kept, to be gone on from or asked for again; yes if absent."""
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=1024)] | None = None
    prompt_cache_options: Annotated[dict[str, Any], few(16)] | None = None
    prompt_cache_retention: Annotated[str, Field(max_length=64)] | None = None
    chat_template_kwargs: Variables | None = None
    background: bool | None = None
    """Whether the response comes at once, queued, to be asked for by its id."""
    previous_response_id: Annotated[str, Field(max_length=512)] | None = None
    """The response that this one goes on from."""
    conversation: GivenConversation | None = None
    """The kept conversation that goes on: its items come first, and the new ones are added."""
    prompt: None = None
    max_tool_calls: int | None = None
    """A bound on the calls of tools that a server runs."""
    n: Literal[1] | None = None
    return_token_ids: None = None
    return_tokens_as_token_ids: None = None
    prompt_logprobs: None = None

    _allowed: bool = PrivateAttr(default=False)
    _told: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _tools_that_are_allowed(
        cls, given: Any, read: ModelWrapValidatorHandler[ResponsesRequest]
    ) -> ResponsesRequest:
        if not isinstance(given, dict):
            return read(given)
        body = read(only_allowed(given))
        body._allowed = names_allowed(given)
        body._told = {name: given.get(name) for name in ("tools", "tool_choice")}
        return body

    @model_validator(mode="after")
    def _background_is_kept(self) -> ResponsesRequest:
        if self.background and self.store is False:
            raise ValueError("background does not go with store: false: it is asked for by its id")
        return self

    @model_validator(mode="after")
    def _goes_on_from_one(self) -> ResponsesRequest:
        if self.conversation is not None and self.previous_response_id is not None:
            raise ValueError("previous_response_id does not go with conversation")
        return self

    @model_validator(mode="after")
    def _stream_says_usage_at_its_end(self) -> ResponsesRequest:
        if self.stream_options is not None and self.stream_options.continuous_usage_stats:
            raise ValueError("continuous_usage_stats: this stream says the usage at its end")
        return self

    @property
    def without_effect(self) -> list[str]:
        """The hints that were given, within objects too."""
        found = super().without_effect
        if self.text is not None and self.text.verbosity is not None:
            found.append("text.verbosity")
        if self.reasoning is not None:
            given = self.reasoning.model_dump(exclude_none=True)
            found += [f"reasoning.{name}" for name in given if name != "effort"]
        if set(self.include or []) - {LOGPROBS}:
            found.append("include")
        hosted = (one for one in self.all_tools if isinstance(one, HostedTool))
        found += dict.fromkeys(f"tools.{one.type}" for one in hosted)
        searches = (one for one in self.items if isinstance(one, SearchCallItem))
        found += dict.fromkeys(f"input.{one.type}" for one in searches)
        return found

    @property
    def told_tools(self) -> dict[str, Any]:
        """The tools and the choice among them as they came, which the response tells back."""
        return {
            "tools": self._told.get("tools") or [],
            "tool_choice": self._told.get("tool_choice") or "auto",
        }

    @property
    def items(self) -> list[InputItem]:
        """The input as items."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input

    @property
    def all_tools(self) -> list[GivenTool]:
        """The tools of the request, and those that only items of its input brought."""
        found = list(self.tools or [])
        for item in self.items:
            brought = item.tools if isinstance(item, ToolsItem) else []
            named = {_name_of(tool) for tool in found}
            found += [tool for tool in brought if _name_of(tool) not in named]
        return found

    @property
    def functions(self) -> list[tuple[str, FunctionTool]]:
        """The functions that may be called, each with the name that the model is told."""
        found = []
        for tool in self.all_tools:
            match tool:
                case FunctionTool():
                    found.append((tool.name, tool))
                case FunctionGroup():
                    found += [(f"{tool.name}.{one.name}", one) for one in tool.tools]
        return found

    @property
    def custom(self) -> list[FreeTool]:
        """The custom tools that may be called."""
        return [tool for tool in self.all_tools if isinstance(tool, FreeTool)]

    @property
    def allowed(self) -> list[str] | None:
        """The names of the tools that alone may be called, where that is asked for."""
        if not self._allowed:
            return None
        return [name for name, _ in self.functions] + [tool.name for tool in self.custom]

    def called(self, name: str) -> dict[str, str]:
        """The function that the model called by a name, as items tell it."""
        for tool in self.all_tools:
            if isinstance(tool, FunctionGroup) and name.startswith(f"{tool.name}."):
                return {"name": name.removeprefix(f"{tool.name}."), "namespace": tool.name}
        return {"name": name}


def _name_of(tool: GivenTool) -> str:
    return tool.type if isinstance(tool, HostedTool) else tool.name
