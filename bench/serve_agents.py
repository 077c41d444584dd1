"""More rows of the table client x call x status: other dialects, evaluation and agents.

    ridgeline serve examples/models/library --port 8000 --chat-template FILE
    PYTHONPATH=OTHER python bench/serve_agents.py http://127.0.0.1:8000

Their requirements exclude each other, so each is installed into a folder of its own (`pip install
--target OTHER`) and called from there; rows of those that are not installed say so. Rows are made
as in `serve_clients.py`, and only what the server enforces is looked at.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from typing import Any

from serve_clients import BOOLEANS, MESSAGES, TOOL, call, main

LOOSE_TOOL: Any = {**TOOL, "function": {**TOOL["function"], "strict": False}}


@call("mistralai", "chat.complete (random_seed, prefix, tools any), .stream; embeddings.create")
def _(url: str, model: str) -> None:
    from mistralai.client import Mistral

    client = Mistral(api_key="EMPTY", server_url=url)
    asked: Any = {"model": model, "messages": MESSAGES}
    assert client.chat.complete(**asked, max_tokens=8, random_seed=1).choices
    assert list(client.chat.stream(**asked, max_tokens=8))
    tools: Any = {"tools": [LOOSE_TOOL], "tool_choice": "any", "max_tokens": 120}
    assert client.chat.complete(**asked, **tools).choices
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "So", "prefix": True}]
    assert client.chat.complete(model=model, messages=begun, max_tokens=8).choices
    assert len(client.embeddings.create(model=model, inputs=["a", "b"]).data) == 2


@call("cohere", "ClientV2.embed")
def _(url: str, model: str) -> None:
    import cohere

    client = cohere.ClientV2(api_key="EMPTY", base_url=url)
    given: Any = {"texts": ["a"], "input_type": "search_query", "embedding_types": ["float"]}
    assert client.embed(model=model, **given).embeddings.float_


@call("huggingface_hub", "InferenceClient.chat.completions; .feature_extraction of URL/embed")
def _(url: str, model: str) -> None:
    from huggingface_hub import InferenceClient

    asked: Any = {"model": model, "messages": MESSAGES, "max_tokens": 8}
    client = InferenceClient(base_url=url)
    assert client.chat.completions.create(**asked, seed=1).choices
    assert list(client.chat.completions.create(**asked, stream=True))
    vectors = InferenceClient(model=url + "/embed").feature_extraction("hi", normalize=True)
    assert vectors.shape[0] == 1


@call("anthropic", "messages.stream with tools any; beta tool_runner")
def _(url: str, model: str) -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="EMPTY", max_retries=0)
    tools: Any = [{"name": "f", "input_schema": BOOLEANS, "eager_input_streaming": True}]
    asked: Any = {"model": model, "messages": MESSAGES}
    forced: Any = {"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 200}
    with client.messages.stream(**asked, **forced) as stream:
        assert any(event.type == "input_json" for event in stream)
    runner = client.beta.messages.tool_runner(**asked, max_tokens=8, tools=[], max_iterations=1)
    assert runner.until_done().content


@call("inspect_ai", "eval with openai-api and vllm models: choices, logprobs")
def _(url: str, model: str) -> None:
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig

    os.environ |= {"RL_BASE_URL": url + "/v1", "RL_API_KEY": "x"}
    os.environ |= {"VLLM_BASE_URL": url + "/v1", "VLLM_API_KEY": "x"}
    asked = GenerateConfig(max_tokens=8, num_choices=2, logprobs=True, top_logprobs=2, seed=1)
    with tempfile.TemporaryDirectory() as logs:
        for name in (f"openai-api/rl/{model}", f"vllm/{model}"):
            task = inspect_ai.Task(dataset=[Sample(input="hi", target="x")], config=asked)
            (log,) = inspect_ai.eval(task, model=name, display="none", log_dir=logs)
            assert log.status == "success", log.error


@call("autogen-ext", "AssistantAgent.run: plain, streamed, with a tool, with a schema")
def _(url: str, model: str) -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    from pydantic import BaseModel

    class Answer(BaseModel):
        kind: bool

    async def weather(city: str) -> str:
        """The weather of a city."""
        return city

    about: Any = {"vision": False, "function_calling": True, "json_output": True}
    about |= {"family": "unknown", "structured_output": True}
    given: Any = {"model": model, "base_url": url + "/v1", "api_key": "x", "max_tokens": 60}
    shapes: Any = ({}, {"tools": [weather]}, {"model_client_stream": True})

    async def run() -> None:
        for more in (*shapes, {"output_content_type": Answer}):
            client = OpenAIChatCompletionClient(**given, model_info=about)
            assert (await AssistantAgent("a", client, **more).run(task="hi")).messages

    asyncio.run(run())


@call("semantic-kernel", "OpenAIChatCompletion: plain, functions, a schema")
def _(url: str, model: str) -> None:
    from openai import AsyncOpenAI
    from pydantic import BaseModel
    from semantic_kernel import Kernel
    from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
    from semantic_kernel.connectors.ai.open_ai import (
        OpenAIChatCompletion,
        OpenAIChatPromptExecutionSettings,
    )
    from semantic_kernel.contents import ChatHistory

    class Answer(BaseModel):
        kind: bool

    client = AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    service = OpenAIChatCompletion(ai_model_id=model, async_client=client)
    kernel, history = Kernel(), ChatHistory(system_message="be brief")
    kernel.add_service(service)
    history.add_user_message("hi")

    async def run() -> None:
        auto = FunctionChoiceBehavior.Auto()
        for more in ({"seed": 1}, {"function_choice_behavior": auto}, {"response_format": Answer}):
            given: Any = OpenAIChatPromptExecutionSettings(max_tokens=60, **more)
            assert await service.get_chat_message_content(history, given, kernel=kernel)

    asyncio.run(run())


@call("ag2", "Agent.ask over chats, streamed, and over responses")
def _(url: str, model: str) -> None:
    from ag2 import Agent
    from ag2.config import OpenAIConfig, OpenAIResponsesConfig

    async def run() -> None:
        given: Any = {"model": model, "api_key": "x"}
        v1: Any = {**given, "base_url": url + "/v1"}
        made: Any = [OpenAIConfig(**v1, max_tokens=8), OpenAIConfig(**v1, streaming=True)]
        made.append(OpenAIResponsesConfig(**v1, max_output_tokens=16))
        for config in made:
            assert await Agent("a", prompt="be brief", config=config).ask("hi")

    asyncio.run(run())


@call("crewai", "LLM.call, with a schema")
def _(url: str, model: str) -> None:
    from crewai import LLM
    from pydantic import BaseModel

    class Answer(BaseModel):
        kind: bool

    for name in (f"openai/{model}", f"hosted_vllm/{model}"):
        client = LLM(model=name, base_url=url + "/v1", api_key="x", max_tokens=60, seed=1)
        assert client.call("hi")
        assert client.call("hi", response_model=Answer)


if __name__ == "__main__":
    sys.exit(main())
