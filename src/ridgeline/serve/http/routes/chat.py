"""The endpoint that completes conversations, `/v1/chat/completions`.

Endpoints of other APIs make a `ChatRequest` of theirs and begin it here, too (`begin_chat`).
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from ridgeline.serve.http.access_log import RequestRecord
from ridgeline.serve.http.clean_text import CleanText
from ridgeline.serve.http.conversation import Rendered, render, tokens_of
from ridgeline.serve.http.growing_chat import BegunChat, ChatWriter, GrowingChat
from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.protocol.chat_messages import AssistantMessage, SeenTurn
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.exact import told
from ridgeline.serve.http.protocol.fields import json_text, schema_grammar
from ridgeline.serve.http.protocol.response_format import (
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    StructuralTagFormat,
)
from ridgeline.serve.http.reasoning import ThoughtMarks, ThoughtReader
from ridgeline.serve.http.reply import json_response, new_id, record_of, respond, service_of
from ridgeline.serve.http.service import Service
from ridgeline.serve.http.text import TextTokens, TokenReport
from ridgeline.serve.http.tool_request import (
    check_tools,
    custom_names,
    forced,
    reader_of,
    strict_calls,
    unheld_formats,
)
from ridgeline.serve.messages import Grammar, PromptImage, Submit, ThoughtBudget
from ridgeline.serve.sampling.schema_loosening import loosened, without_annotations

EFFORT, SWITCH = "reasoning_effort", "enable_thinking"
"""The variables of templates that tell how much to think, and whether at all."""
BUDGET = "thinking_token_budget"


router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(request: Request, body: ChatRequest) -> Response:
    """Complete a conversation, whole or as a stream."""
    begun = await begin_chat(service_of(request), record_of(request), body)
    return await respond(request, [begun.submit], ChatWriter(begun), stream=body.stream)


@router.post("/v1/chat/completions/input_tokens")
async def input_tokens(request: Request, body: ChatRequest) -> Response:
    """How many tokens the model would be given."""
    record = record_of(request)
    record.without_effect = body.without_effect
    prompt = await chat_prompt(service_of(request), body)
    record.prompt_tokens = len(prompt)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt)})


def chat_of(fields: dict[str, Any]) -> ChatRequest:
    """The request of a chat that another endpoint makes. Raises RequestValidationError."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(wrong) from None


async def begin_chat(service: Service, record: RequestRecord, body: ChatRequest) -> BegunChat:
    """What the engine is asked, and what will take its deltas. Raises ApiError."""
    record.without_effect = [*record.without_effect, *body.without_effect]
    if _unseen_thoughts(body, service.text.template.text):
        record.without_effect.append("messages.reasoning_content")
    if body.tools:
        check_tools(body, service.text.tool_family)
        if unheld_formats(body):
            record.without_effect.append("tools.format")
    if _unheeded_effort(body, service.text):
        record.without_effect.append(EFFORT)
    if _unheeded_detail(body):
        record.without_effect.append("messages.image_url.detail")
    record.metadata = body.metadata
    record.user = body.user or body.safety_identifier
    body = service.with_defaults(body, record)
    adapter = service.adapter(body.model)
    rendered = await _render(service, body)
    grammar = _grammar(body, record)
    marks = service.text.thoughts if grammar is None else None  # it holds from the first token
    if grammar is None and body.tools:
        grammar = strict_calls(body, service.text.tool_family)
    drop = () if marks is None else marks.drop
    special = frozenset[str]() if marks is None else service.text.special_in_thoughts
    if _reads_marks(body):
        special |= service.text.special_in_calls
    thoughts = _budget(service.text, body, rendered, marks)
    if thoughts is None and body.thinking_token_budget is not None:
        record.without_effect.append(BUDGET)
    submit = await _submit(
        service, body, rendered, grammar, adapter, keeps=bool(special), thoughts=thoughts
    )
    report = TokenReport.of(body, [submit])
    choices = [
        GrowingChat(
            index=index,
            thoughts=None if marks is None else ThoughtReader.behind(rendered.text, marks),
            shows_thoughts=body.include_reasoning is not False,
            reader=reader_of(body, service.text.tool_family, special, drop) if body.tools else None,
            clean=CleanText(special.union(drop)) if special or drop else None,
            one_call=body.parallel_tool_calls is False,
            num_top=(body.top_logprobs or 0) if body.logprobs else None,
            timer=service.meters.timer(record),
            report=report,
            custom=custom_names(body) if body.tools else frozenset(),
            with_functions=body.with_functions,
        )
        for index in range(submit.n)
    ]
    return BegunChat(body, submit, choices, report)


async def chat_prompt(service: Service, body: ChatRequest) -> tuple[int, ...]:
    """The tokens of a conversation as the engine would get it. Raises ApiError."""
    if body.tools:
        check_tools(body, service.text.tool_family)
    service.adapter(body.model)
    prompt, _ = await _tokens(service, await _render(service, body), body)
    return prompt


async def _tokens(
    service: Service, rendered: Rendered, body: ChatRequest
) -> tuple[tuple[int, ...], tuple[PromptImage, ...]]:
    special = body.add_special_tokens
    if special is None:
        special = service.text.template.special
    return await tokens_of(service.text, rendered, special=special)


async def _render(service: Service, body: ChatRequest) -> Rendered:
    continues = bool(body.continue_final_message)
    opens = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    return await render(
        service.text,
        body.messages,
        body.shown_tools,
        opens_turn=opens,
        continues=continues,
        variables=template_variables(
            body, service.text.template.text, thinks=service.text.thoughts is not None
        ),
        documents=body.documents or (),
    )


def template_variables(body: ChatRequest, template: str, *, thinks: bool) -> dict[str, Any]:
    """The template's variables, how much to think among them. Raises ApiError.

    Args:
        body: The request.
        template: The template's text.
        thinks: Whether the model marks thoughts. One that has no degrees of them thinks as it
            always does, and one that does not think does so to no degree: neither is told.
    """
    variables, effort = dict(body.chat_template_kwargs or {}), body.reasoning_effort
    if effort is None:
        return variables
    name: str
    value: str | bool
    if EFFORT in template:
        name, value = EFFORT, effort
    elif SWITCH in template and effort == "none":
        name, value = SWITCH, False
    elif effort == "none" and thinks:
        raise refused("reasoning_effort: this model always thinks first", EFFORT)
    else:
        return variables
    if name in variables:
        raise refused(f"reasoning_effort and chat_template_kwargs.{name} say the same", EFFORT)
    return {**variables, name: value}


def _unseen_thoughts(body: ChatRequest, template: str) -> bool:
    """Whether thoughts were given back that the template does not look at."""
    given = (one.thoughts for one in body.messages if isinstance(one, AssistantMessage))
    return "reasoning" not in template and any(given)


def _unheeded_effort(body: ChatRequest, text: TextTokens) -> bool:
    """Whether it says how much to think to a model that has no degrees of it."""
    effort, template = body.reasoning_effort, text.template.text
    if effort is None or EFFORT in template:
        return False
    return effort != "none"


def _unheeded_detail(body: ChatRequest) -> bool:
    """Whether an image says how closely to look, which no processor can be told."""
    messages = (one for one in body.messages if isinstance(one, SeenTurn))
    return any(image.asks_for_detail for one in messages for image in one.images)


def _budget(
    text: TextTokens, body: ChatRequest, rendered: Rendered, marks: ThoughtMarks | None
) -> ThoughtBudget | None:
    """How long the answer may think; None where it has no thoughts, or no bound of them.

    Raises:
        ApiError: 400, the marks of thoughts are no single tokens, so that none can be put in.
    """
    most = body.thinking_token_budget
    if most is None or marks is None:
        return None
    if text.thought_ids is None:
        raise refused(
            f"{BUDGET}: a budget of thoughts cannot be kept here, where {marks.open} and"
            f" {marks.close} are no tokens",
            BUDGET,
        )
    begin, end = text.thought_ids
    inside = ThoughtReader.behind(rendered.text, marks).inside
    return ThoughtBudget(most=most, open=begin, close=end, inside=inside)


def _reads_marks(body: ChatRequest) -> bool:
    """Whether calls are looked for between a family's marks."""
    return bool(body.tools) and body.tool_choice in (None, "auto")


async def _submit(
    service: Service,
    body: ChatRequest,
    rendered: Rendered,
    grammar: Grammar | None,
    adapter: str,
    *,
    keeps: bool,
    thoughts: ThoughtBudget | None,
) -> Submit:
    prompt, images = await _tokens(service, rendered, body)
    wanted = body.max_completion_tokens or body.max_tokens
    kept = service.cut(prompt, body.truncate_prompt_tokens, wanted)
    if images and len(kept) < len(prompt):
        raise refused(
            "truncate_prompt_tokens: a prompt with images is not cut", "truncate_prompt_tokens"
        )
    prompt = kept
    return Submit(
        id=new_id("chatcmpl"),
        prompt=prompt,
        sampling=body.sampling(
            max_tokens=service.room(prompt, wanted, "messages"),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            grammar=grammar,
            vocab=service.text.vocab,
            stops=service.text.template.stops,
            keeps_special=keeps,
            forbidden=await service.text.forbidden(body.bad_words or []),
            thoughts=thoughts,
        ),
        n=body.n or 1,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        adapter=adapter,
        images=images,
    )


def _grammar(body: ChatRequest, record: RequestRecord) -> Grammar | None:
    """The grammar of the fields that can ask for one; two of them would contradict each other."""
    call = forced(body, record.without_effect) if body.tools else None
    if call is not None and body.response_format is not None:
        record.without_effect.append("response_format")  # of what is said, and all is a call
    wanted = {
        "tool_choice": call,
        "response_format": None if call else _format(body, record.without_effect),
        "structured_outputs": body.grammar(),
    }
    given = {name: grammar for name, grammar in wanted.items() if grammar is not None}
    if len(given) > 1:
        first, second = list(given)[:2]
        raise refused(f"{first} and {second} cannot go together: each constrains the answer", first)
    return next(iter(given.values()), None)


def _format(body: ChatRequest, without_effect: list[str]) -> Grammar | None:
    """The grammar of `response_format`; what of a schema is let go goes into `without_effect`."""
    match body.response_format:
        case JsonObjectFormat():
            return Grammar(kind="json_object")
        case JsonSchemaFormat(json_schema=wanted):
            schema = wanted.schema_ or {}
            schema, let_go = (without_annotations if wanted.strict else loosened)(schema)
            without_effect += told("response_format", let_go)
            return schema_grammar(schema, "response_format")
        case RegexFormat(pattern=pattern):
            return Grammar(kind="regex", text=pattern)
        case GrammarFormat(grammar=text):
            return Grammar(kind="ebnf", text=text)
        case StructuralTagFormat() as tag:
            text = json_text(_structural_tag(tag), "response_format")
            return Grammar(kind="structural_tag", text=text)
    return None


def _structural_tag(wanted: StructuralTagFormat) -> dict[str, Any]:
    """A structural tag in xgrammar's words."""
    if wanted.format is not None:
        return {"type": "structural_tag", "format": wanted.format}
    tags = [
        {
            "begin": one.begin,
            "content": {"type": "json_schema", "json_schema": one.schema_},
            "end": one.end,
        }
        for one in wanted.structures or []
    ]
    form = {"type": "triggered_tags", "triggers": wanted.triggers, "tags": tags}
    return {"type": "structural_tag", "format": form}
