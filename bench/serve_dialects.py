"""More rows of the table client x call x status: clients that speak Ollama's or Google's API.

    ridgeline serve examples/models/library --port 8000 --chat-template FILE
    PYTHONPATH=OTHER python bench/serve_dialects.py http://127.0.0.1:8000

As in `serve_agents.py`: each in a folder of its own (`pip install --target OTHER`), rows of others
say that they are not installed. The template has to show tools.
"""

import asyncio
import contextlib
import sys
from typing import Any

from pydantic import BaseModel
from serve_clients import BOOLEANS, MESSAGES, call, main

TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": BOOLEANS}}
FEW: Any = {"num_predict": 8, "num_ctx": 512}
SOME: Any = {"num_predict": 200}


class Answer(BaseModel):
    """A schema that ends soon."""

    kind: bool


def weather(days: int) -> str:
    """Tell the weather of some days.

    Args:
        days: How many.
    """
    return str(days)


@call("ollama", "Client.chat, .generate, streamed, tools, format, .embed, .list, .show, .ps")
def _(url: str, model: str) -> None:
    import ollama

    client = ollama.Client(url)
    assert client.list().models[0].model == model
    assert client.ps().models
    assert client.show(model).capabilities
    assert client.pull(model).status == "success"
    given: Any = {"model": model, "messages": MESSAGES}
    assert client.chat(**given, options=FEW).done_reason
    assert list(client.chat(**given, options=FEW, stream=True, think=False))[-1].done
    assert client.chat(**given, options=FEW, tools=[weather], keep_alive="5m").message
    formed = client.chat(**given, options=SOME, format=Answer.model_json_schema())
    assert isinstance(Answer.model_validate_json(formed.message.content or ""), Answer)
    assert client.chat(**given, options=FEW, logprobs=True, top_logprobs=2).logprobs
    asked: Any = {"model": model, "prompt": "hi", "options": FEW}
    assert client.generate(**asked).eval_count
    assert client.generate(**asked, raw=True).response is not None
    assert list(client.generate(**asked, system="s", stream=True))[-1].done
    assert client.embed(model, ["a", "b"]).embeddings
    assert client.embeddings(model, "a").embedding
    with contextlib.suppress(ollama.ResponseError):
        client.chat("another", messages=[])
        raise AssertionError("another model answered")


@call("ollama", "AsyncClient.chat, streamed, a tool's result given back")
def _(url: str, model: str) -> None:
    import ollama

    async def ask() -> None:
        client = ollama.AsyncClient(url)
        called = {"function": {"name": "f", "arguments": {"kind": True}}}
        back = [{"role": "assistant", "tool_calls": [called]}]
        back += [{"role": "tool", "tool_name": "f", "content": "1"}]
        given: Any = {"model": model, "messages": [*MESSAGES, *back], "options": FEW}
        stream = await client.chat(**given, tools=[TOOL], stream=True)
        assert [one async for one in stream][-1].done

    asyncio.run(ask())


@call("langchain-ollama", "ChatOllama.invoke, .stream, .bind_tools, .with_structured_output")
def _(url: str, model: str) -> None:
    from langchain_ollama import ChatOllama

    chat = ChatOllama(model=model, base_url=url, num_predict=200, validate_model_on_init=True)
    assert chat.invoke("hi").content is not None
    assert list(chat.stream("hi"))
    assert chat.bind_tools([weather]).invoke("hi")
    assert isinstance(chat.with_structured_output(Answer).invoke("hi"), Answer)


@call("langchain-ollama", "OllamaLLM.invoke, .stream; OllamaEmbeddings")
def _(url: str, model: str) -> None:
    from langchain_ollama import OllamaEmbeddings, OllamaLLM

    text = OllamaLLM(model=model, base_url=url, num_predict=8)
    assert text.invoke("hi") is not None
    assert list(text.stream("hi"))
    assert OllamaEmbeddings(model=model, base_url=url).embed_documents(["a", "b"])


@call("llama-index-llms-ollama", "Ollama.complete, .chat, .stream_chat, .structured_predict")
def _(url: str, model: str) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.prompts import PromptTemplate
    from llama_index.llms.ollama import Ollama

    client = Ollama(model=model, base_url=url, context_window=512, additional_kwargs=SOME)
    assert client.complete("hi").text is not None
    assert client.chat([ChatMessage(content="hi")]).message
    assert list(client.stream_chat([ChatMessage(content="hi")]))
    assert isinstance(client.structured_predict(Answer, PromptTemplate("hi")), Answer)


@call("llama-index-embeddings-ollama", "OllamaEmbedding")
def _(url: str, model: str) -> None:
    from llama_index.embeddings.ollama import OllamaEmbedding

    client = OllamaEmbedding(model_name=model, base_url=url)
    assert client.get_text_embedding("a")
    assert client.get_text_embedding_batch(["a", "b"])


@call("ollama-haystack", "OllamaChatGenerator plain and streamed; OllamaTextEmbedder")
def _(url: str, model: str) -> None:
    from haystack.dataclasses import ChatMessage
    from haystack_integrations.components.embedders.ollama import OllamaTextEmbedder
    from haystack_integrations.components.generators.ollama import OllamaChatGenerator

    given: Any = {"model": model, "url": url, "generation_kwargs": FEW}
    hello = [ChatMessage.from_user("hi")]
    assert OllamaChatGenerator(**given).run(hello)["replies"]
    assert OllamaChatGenerator(**given, streaming_callback=lambda _: None).run(hello)["replies"]
    assert OllamaTextEmbedder(model=model, url=url).run("a")["embedding"]


@call("litellm", "completion, streamed, tools as ollama_chat/ and ollama/; embedding")
def _(url: str, model: str) -> None:
    import litellm

    for kind in ("ollama_chat", "ollama"):
        given: Any = {"model": f"{kind}/{model}", "api_base": url, "messages": MESSAGES}
        assert litellm.completion(**given, max_tokens=8).choices
        assert list(litellm.completion(**given, max_tokens=8, stream=True))
        assert litellm.completion(**given, max_tokens=200, response_format=Answer).choices
    chat: Any = {"model": f"ollama_chat/{model}", "api_base": url, "messages": MESSAGES}
    assert litellm.completion(**chat, max_tokens=8, tools=[TOOL]).choices
    assert litellm.embedding(f"ollama/{model}", input=["a"], api_base=url).data


@call("google-genai", "generate_content, streamed, tools, schema, chats, count_tokens, embed")
def _(url: str, model: str) -> None:
    from google import genai
    from google.genai import types

    def config(most: int = 8, **fields: Any) -> Any:
        return types.GenerateContentConfig(max_output_tokens=most, **fields)

    client = genai.Client(api_key="x", http_options=types.HttpOptions(base_url=url))
    ask = client.models.generate_content
    assert ask(model=model, contents="hi", config=config(top_k=5, seed=1)).candidates
    stream = client.models.generate_content_stream(model=model, contents="hi", config=config())
    assert list(stream)[-1].usage_metadata
    formed = config(200, response_mime_type="application/json", response_schema=Answer)
    assert isinstance(ask(model=model, contents="hi", config=formed).parsed, Answer)
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
    never = types.AutomaticFunctionCallingConfig(disable=True)
    called = config(
        200,
        tools=[weather],
        tool_config=types.ToolConfig(function_calling_config=calling),
        automatic_function_calling=never,
        system_instruction="s",
    )
    reply = ask(model=model, contents="hi", config=called)
    assert reply.function_calls
    back = types.Part.from_function_response(name="weather", response={"result": "dry"})
    turns = [types.UserContent("hi"), reply.candidates[0].content, types.UserContent(back)]
    assert ask(model=model, contents=turns, config=config(tools=called.tools)).candidates
    chat = client.chats.create(model=model, config=config())
    assert chat.send_message("hi").candidates
    assert chat.send_message("and?").candidates
    assert client.models.count_tokens(model=model, contents="hi").total_tokens
    assert len(client.models.embed_content(model=model, contents=["a", "b"]).embeddings) == 2
    assert client.models.get(model=model).input_token_limit
    assert list(client.models.list())


@call("langchain-google-genai", "ChatGoogleGenerativeAI plain, streamed, tools, schema; embeddings")
def _(url: str, model: str) -> None:
    from langchain_google_genai import ChatGoogleGenerativeAI, GoogleGenerativeAIEmbeddings

    given: Any = {"model": model, "google_api_key": "x", "base_url": url}
    chat = ChatGoogleGenerativeAI(**given, max_output_tokens=200, max_retries=1)
    assert chat.invoke("hi").content is not None
    assert list(chat.stream("hi"))
    assert chat.bind_tools([weather], tool_choice="any").invoke("hi").tool_calls
    structured = chat.with_structured_output(Answer, method="json_schema")
    assert isinstance(structured.invoke("hi"), Answer)
    assert GoogleGenerativeAIEmbeddings(**given).embed_query("a")


if __name__ == "__main__":
    sys.exit(main())
