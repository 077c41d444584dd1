"""More rows of the table client x call x status: agent frameworks and what stands between clients.

    ridgeline serve examples/models/library --port 8000 --chat-template FILE
    OTHER/bin/python bench/serve_frameworks.py http://127.0.0.1:8000

They pin each other's versions, so that they want an environment apart from Ridgeline's. Rows are
made as in `serve_clients.py`. A model as small as the library's answers nonsense: only what the
server enforces is looked at.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Literal

from pydantic import BaseModel
from serve_clients import MESSAGES, TOOL, call, main

os.environ.setdefault("OPENAI_API_KEY", "EMPTY")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
TOOL_BACK: Any = {"role": "tool", "name": "weather", "content": "sunny"}


class Answer(BaseModel):
    """A schema that ends soon."""

    kind: Literal["a", "b"]
    flag: bool


def litellm(url: str, model: str, **more: Any) -> Any:
    import litellm as client

    given = {"model": f"hosted_vllm/{model}", "api_base": url + "/v1", "messages": MESSAGES}
    return client.completion(**{**given, "max_tokens": 90, **more})


@call("litellm", "completion, streamed with usage; text_completion; embedding; responses")
def _(url: str, model: str) -> None:
    import litellm as client

    chunks = list(litellm(url, model, stream=True, stream_options={"include_usage": True}))
    assert any(one.choices and one.choices[0].delta.content for one in chunks)
    base: Any = {"api_base": url + "/v1"}
    text = client.text_completion(model=f"text-completion-openai/{model}", prompt="a", **base)
    assert text.choices
    assert client.embedding(model=f"hosted_vllm/{model}", input=["a"], **base).data
    assert client.responses(model=f"openai/{model}", input="a", max_output_tokens=16, **base).output


@call("litellm", "completion(tools, required), its message given back; response_format=a model")
def _(url: str, model: str) -> None:
    message = litellm(url, model, tools=[TOOL], tool_choice="required").choices[0].message
    results = [{**TOOL_BACK, "tool_call_id": one.id} for one in message.tool_calls]
    assert litellm(url, model, messages=[*MESSAGES, message, *results], tools=[TOOL]).choices
    reply = litellm(url, model, response_format=Answer).choices[0].message.content
    assert Answer.model_validate_json(reply)


@call("litellm", "completion(marks for a cache, thoughts given back); anthropic/ with tools")
def _(url: str, model: str) -> None:
    import litellm as client

    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    thoughts = [{"type": "thinking", "thinking": "b", "signature": "c"}]
    before = {"role": "assistant", "content": "d", "thinking_blocks": thoughts}
    messages = [{"role": "system", "content": [marked]}, *MESSAGES, before, *MESSAGES]
    assert litellm(url, model, messages=messages).choices
    given: Any = {"api_base": url, "api_key": "EMPTY", "max_tokens": 8}
    assert client.completion(f"anthropic/{model}", MESSAGES, tools=[TOOL], **given).choices


def ask_instructor(url: str, model: str, mode: str) -> None:
    import instructor
    import openai

    plain = openai.OpenAI(base_url=url + "/v1", api_key="EMPTY", max_retries=0)
    client = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
    client.chat.completions.create(
        model=model, messages=MESSAGES, response_model=Answer, max_tokens=90, max_retries=1
    )


@call("instructor", "create(response_model) with TOOLS, TOOLS_STRICT, JSON_SCHEMA")
def _(url: str, model: str) -> None:
    for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"):
        ask_instructor(url, model, mode)


def pydantic_ai(url: str, model: str, **more: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url + "/v1", api_key="EMPTY")
    settings: Any = {"max_tokens": 90}
    return Agent(OpenAIChatModel(model, provider=provider), model_settings=settings, **more)


@call("pydantic-ai-slim", "Agent.run_sync with an output type by a tool and natively; run_stream")
def _(url: str, model: str) -> None:
    from pydantic_ai import NativeOutput

    for kind in (Answer, NativeOutput(Answer)):
        assert isinstance(pydantic_ai(url, model, output_type=kind).run_sync("a").output, Answer)

    async def stream() -> list[str]:
        async with pydantic_ai(url, model).run_stream("a") as reply:
            return [text async for text in reply.stream_text(delta=True)]

    assert asyncio.run(stream())


@call("openai-agents", "Runner.run_streamed(output_type) over chat completions and over responses")
def _(url: str, model: str) -> None:
    import agents
    import openai

    async def ask(kind: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="EMPTY")
        agent = agents.Agent(
            name="a", instructions="be brief", output_type=Answer,
            model=kind(model=model, openai_client=client),
            model_settings=agents.ModelSettings(max_tokens=90),
        )  # fmt: skip
        reply = agents.Runner.run_streamed(agent, "a")
        async for _ in reply.stream_events():
            pass
        return reply.final_output

    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        assert isinstance(asyncio.run(ask(kind)), Answer)


@call("smolagents", "OpenAIModel.generate(tools), .generate_stream")
def _(url: str, model: str) -> None:
    from smolagents import OpenAIModel, tool

    @tool
    def weather(days: int) -> str:
        """The weather.

        Args:
            days: How many.
        """
        return str(days)

    client = OpenAIModel(model, api_base=url + "/v1", api_key="EMPTY")
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    asked: Any = {"max_tokens": 90, "stop_sequences": ["Observation:"]}
    assert client.generate(messages, tools_to_call_from=[weather], **asked).tool_calls
    assert list(client.generate_stream(messages, max_tokens=8))


@call("haystack-ai", "OpenAIChatGenerator.run with a streaming callback and tools")
def _(url: str, model: str) -> None:
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import Tool
    from haystack.utils import Secret

    schema = TOOL["function"]["parameters"]
    tool = Tool(name="w", description="of a place", parameters=schema, function=str)
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token("EMPTY"), model=model, api_base_url=url + "/v1", tools=[tool],
        generation_kwargs={"max_tokens": 8}, streaming_callback=lambda _: None,
    )  # fmt: skip
    assert generator.run([ChatMessage.from_user("a")])["replies"]


@call("dspy", "LM and Predict")
def _(url: str, model: str) -> None:
    import dspy

    lm = dspy.LM(f"openai/{model}", api_base=url + "/v1", api_key="EMPTY", max_tokens=8)
    assert lm("a")


if __name__ == "__main__":
    sys.exit(main())
