"""More rows of the table client x call x status: clients that were made for one cloud's API.

    ridgeline serve examples/models/library --port 8000 --chat-template FILE
    PYTHONPATH=OTHER python bench/serve_clouds.py http://127.0.0.1:8000

As in `serve_agents.py`: each in a folder of its own (`pip install --target OTHER`), rows of others
say that they are not installed. The template has to show tools.
"""

import asyncio
import importlib
import sys
from typing import Any

from pydantic import BaseModel
from serve_clients import BOOLEANS, MESSAGES, call, main

TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": BOOLEANS}}
FEW, SOME = 8, 200


class Answer(BaseModel):
    """A schema that ends soon."""

    kind: bool


def weather(days: int) -> str:
    """Tell the weather of some days.

    Args:
        days: How many.
    """
    return str(days)


@call("cohere", "ClientV2.chat, .chat_stream, tool_choice REQUIRED, response_format")
def _(url: str, model: str) -> None:
    import cohere

    client = cohere.ClientV2("EMPTY", base_url=url)
    given: Any = {"model": model, "messages": MESSAGES, "max_tokens": SOME}
    assert client.chat(**given).message.content
    assert list(client.chat_stream(**given))[-1].delta.finish_reason
    assert client.chat(**given, tools=[TOOL], tool_choice="REQUIRED").message.tool_calls
    form: Any = {"type": "json_object", "schema": BOOLEANS}
    assert "kind" in client.chat(**given, response_format=form).message.content[0].text


@call("langchain-cohere", "ChatCohere.invoke, .stream, .bind_tools, .with_structured_output")
def _(url: str, model: str) -> None:
    from langchain_cohere import ChatCohere

    client = ChatCohere(model=model, base_url=url, cohere_api_key="x")
    assert client.invoke("hi", max_tokens=SOME).content
    assert list(client.stream("hi", max_tokens=SOME))
    assert client.bind_tools([weather]).invoke("hi", max_tokens=SOME)
    structured = client.with_structured_output(Answer, method="json_schema")
    assert isinstance(structured.invoke("hi"), Answer)


def langchain(package: str, name: str, path: str, **more: Any) -> None:
    """Register a chat class of LangChain's partners: four calls of it."""

    @call(package, f"{name}.invoke, .stream, .bind_tools(any), .with_structured_output")
    def _(url: str, model: str) -> None:
        chat = getattr(importlib.import_module(package.replace("-", "_")), name)
        addresses = dict.fromkeys(("base_url", *more), url + path)
        client = chat(model=model, api_key="x", max_tokens=SOME, max_retries=0, **addresses)
        assert client.invoke("hi").content is not None
        assert list(client.stream("hi"))
        assert client.bind_tools([weather], tool_choice="any").invoke("hi").tool_calls
        structured = client.with_structured_output(Answer, method="json_schema")
        assert isinstance(structured.invoke("hi"), Answer)


langchain("langchain-groq", "ChatGroq", "")
langchain("langchain-together", "ChatTogether", "/v1")
langchain("langchain-fireworks", "ChatFireworks", "/v1")
langchain("langchain-openrouter", "ChatOpenRouter", "/v1")
langchain("langchain-xai", "ChatXAI", "/v1", xai_api_base="")


@call("zai-sdk", "chat.completions.create, streamed, thinking disabled; embeddings.create")
def _(url: str, model: str) -> None:
    from zai import ZaiClient

    client = ZaiClient(api_key="x.y", base_url=url + "/v1")
    given: Any = {"model": model, "messages": MESSAGES, "max_tokens": FEW}
    assert client.chat.completions.create(**given, thinking={"type": "disabled"}).choices
    assert list(client.chat.completions.create(**given, stream=True))
    assert client.embeddings.create(model=model, input="a").data


@call("perplexityai", "chat.completions.create, streamed; responses.create")
def _(url: str, model: str) -> None:
    from perplexity import Perplexity

    client = Perplexity(api_key="x", base_url=url)
    given: Any = {"model": model, "messages": MESSAGES, "max_tokens": FEW}
    assert client.chat.completions.create(**given).choices
    assert list(client.chat.completions.create(**given, stream=True))
    assert client.responses.create(model=model, input="hi", max_output_tokens=16)


@call("agentscope", "OpenAIChatModel, DeepSeekChatModel: plain, streamed, a required tool")
def _(url: str, model: str) -> None:
    from agentscope import credential
    from agentscope import model as models
    from agentscope.message import UserMsg
    from agentscope.tool import ToolChoice

    async def ask(name: str, stream: bool, **more: Any) -> Any:
        key = getattr(credential, f"{name}Credential")(api_key="x", base_url=url + "/v1")
        kind = getattr(models, f"{name}ChatModel")
        room = kind.Parameters(max_tokens=SOME)
        reply = await kind(key, model, room, stream=stream)([UserMsg("u", "hi")], **more)
        return [one async for one in reply][-1] if stream else reply

    required = {"tools": [TOOL], "tool_choice": ToolChoice(mode="required")}
    for name in ("OpenAI", "DeepSeek"):
        for stream in (False, True):
            assert asyncio.run(ask(name, stream)).content
            assert asyncio.run(ask(name, stream, **required)).content[0].type == "tool_call"


@call("mistral-haystack", "MistralChatGenerator.run, with tools any; MistralTextEmbedder.run")
def _(url: str, model: str) -> None:
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret
    from haystack_integrations.components.embedders.mistral import MistralTextEmbedder
    from haystack_integrations.components.generators.mistral import MistralChatGenerator

    given: Any = {"model": model, "api_base_url": url + "/v1", "api_key": Secret.from_token("x")}
    said = MistralChatGenerator(**given, generation_kwargs={"max_tokens": FEW})
    assert said.run([ChatMessage.from_user("hi")])["replies"]
    assert MistralTextEmbedder(**given).run("a")["embedding"]


if __name__ == "__main__":
    sys.exit(main())
