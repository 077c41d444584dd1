"""A table of client x call x status: what the clients of other servers get from ours.

    ridgeline serve examples/models/library --port 8000 --chat-template FILE
    python bench/serve_clients.py http://127.0.0.1:8000
    OTHER/bin/python bench/serve_clients.py http://127.0.0.1:8000   # clients installed elsewhere
    python bench/serve_clients.py http://127.0.0.1:8000 openai      # these clients' rows alone

Each row is one call of a client as its users write it, or, where a program cannot be called
(`vllm bench serve`, lm-evaluation-harness), the request that it sends and what it reads of the
reply. Clients that are not installed here are said to be so. Nothing of Ridgeline is imported.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import Any

import httpx

Call = Callable[[str, str], Any]
CALLS: list[tuple[str, str, Call]] = []
"""Client (a package's name, or what the wire format is of), call, and what makes it."""
MESSAGES: Any = [{"role": "user", "content": "def main("}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a place",
        "parameters": {
            "type": "object",
            "properties": {"days": {"enum": [1, 2, 3]}},
            "required": ["days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
BOOLEANS: Any = {
    "type": "object",
    "properties": {"kind": {"type": "boolean"}},
    "required": ["kind"],
    "additionalProperties": False,
}


def call(client: str, name: str) -> Callable[[Call], Call]:
    """Register what makes a call: it is given the server's address and the model's name."""

    def register(work: Call) -> Call:
        CALLS.append((client, name, work))
        return work

    return register


def post(url: str, body: Any) -> Any:
    """The JSON of a reply, or the documents of a stream."""
    reply = httpx.post(url, json=body, timeout=120).raise_for_status()
    if not body.get("stream"):
        return reply.json()
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def openai_client(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=url + "/v1", api_key="EMPTY", max_retries=0)


@call("openai", "models.list")
def _(url: str, model: str) -> None:
    assert model in [one.id for one in openai_client(url).models.list()]


@call("openai", "chat.completions.create")
def _(url: str, model: str) -> None:
    reply = openai_client(url).chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, n=2, seed=1, stop=["\n\n"], logprobs=True,
        top_logprobs=2, presence_penalty=0.1,
    )  # fmt: skip
    assert len(reply.choices) == 2
    assert reply.choices[0].logprobs.content


@call("openai", "chat.completions.create(stream)")
def _(url: str, model: str) -> None:
    chunks = list(
        openai_client(url).chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=8, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert chunks[-1].usage.completion_tokens > 0


@call("openai", "chat.completions.stream")
def _(url: str, model: str) -> None:
    with openai_client(url).chat.completions.stream(
        model=model, messages=MESSAGES, max_tokens=8,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
    ) as stream:  # fmt: skip
        assert any(event.type == "content.delta" for event in stream)
        assert stream.get_final_completion().choices[0].finish_reason


@call("openai", "chat.completions.parse(response_format)")
def _(url: str, model: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": BOOLEANS, "strict": True}}
    reply = openai_client(url).chat.completions.create(
        model=model, messages=MESSAGES, response_format=form, max_tokens=60
    )
    assert set(json.loads(reply.choices[0].message.content)) == {"kind"}


@call("openai", "chat.completions.create(strict tools, auto)")
def _(url: str, model: str) -> None:
    reply = openai_client(url).chat.completions.create(
        model=model, messages=MESSAGES, tools=[TOOL], max_tokens=8
    )
    assert reply.choices[0].finish_reason in ("stop", "length", "tool_calls")


@call("openai", "chat.completions.create(tools, required) and its answer given back")
def _(url: str, model: str) -> None:
    client = openai_client(url)
    reply = client.chat.completions.create(
        model=model, messages=MESSAGES, tools=[TOOL], tool_choice="required", max_tokens=120,
        parallel_tool_calls=False,
    )  # fmt: skip
    message = reply.choices[0].message
    (one,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": one.id, "content": "sunny"}
    again = client.chat.completions.create(
        model=model, messages=[*MESSAGES, message, result], tools=[TOOL], max_tokens=4
    )
    assert again.choices


@call("openai", "responses.create(previous_response_id), .retrieve, .delete")
def _(url: str, model: str) -> None:
    responses = openai_client(url).responses
    first = responses.create(model=model, input="def main(", max_output_tokens=16)
    more = {"model": model, "input": "x", "max_output_tokens": 16}
    again = responses.create(**more, previous_response_id=first.id)
    assert again.usage.input_tokens > first.usage.total_tokens
    assert responses.retrieve(first.id).output_text == first.output_text
    responses.delete(first.id)


@call("openai", "responses.create(a custom tool with a regex), completions.create(best_of)")
def _(url: str, model: str) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-z]{3}"}
    reply = openai_client(url).responses.create(
        model=model, input="x", max_output_tokens=16, tool_choice={"type": "custom", "name": "f"},
        tools=[{"type": "custom", "name": "f", "format": form}],
    )  # fmt: skip
    assert reply.output[0].input.isalpha()
    assert len(reply.output[0].input) == 3
    best = openai_client(url).completions.create(model=model, prompt="x", best_of=3, max_tokens=4)
    assert len(best.choices) == 1


@call("openai", "completions.create(vLLM's extra_body)")
def _(url: str, model: str) -> None:
    reply = openai_client(url).completions.create(
        model=model, prompt="x", max_tokens=8,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}, "top_k": 5, "min_p": 0.01},
    )  # fmt: skip
    assert reply.choices[0].text in ("yes", "no")


@call("openai", "responses.create(stream)")
def _(url: str, model: str) -> None:
    events = list(
        openai_client(url).responses.create(
            model=model, input="hi", max_output_tokens=16, stream=True
        )
    )
    assert events[-1].type in ("response.completed", "response.incomplete")


@call("openai", "embeddings.create")
def _(url: str, model: str) -> None:
    reply = openai_client(url).embeddings.create(model=model, input=["a", "b"])
    assert len(reply.data) == 2


@call("anthropic", "messages.create, messages.stream, messages.count_tokens")
def _(url: str, model: str) -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="EMPTY", max_retries=0)
    common: Any = {"model": model, "messages": MESSAGES}
    assert client.messages.create(**common, max_tokens=8).content
    with client.messages.stream(**common, max_tokens=8) as stream:
        assert stream.get_final_message().usage.output_tokens > 0
    assert client.messages.count_tokens(**common).input_tokens > 0


@call("langchain-openai", "ChatOpenAI.invoke, .stream")
def _(url: str, model: str) -> None:
    chat = langchain_chat(url, model)
    assert chat.invoke([("system", "be brief"), ("user", "hi")]).usage_metadata["output_tokens"]
    assert list(chat.stream("hi"))


@call("langchain-openai", "ChatOpenAI.bind_tools(strict)")
def _(url: str, model: str) -> None:
    bound = langchain_chat(url, model).bind_tools([TOOL], tool_choice="weather")
    (one,) = bound.invoke("hi").tool_calls
    assert one["args"]["days"] in (1, 2, 3)


@call("langchain-openai", "ChatOpenAI.with_structured_output")
def _(url: str, model: str) -> None:
    schema = {"title": "Answer", "description": "an answer", **BOOLEANS}
    chat = langchain_chat(url, model).with_structured_output(schema, method="json_schema")
    assert set(chat.invoke("hi")) == {"kind"}


@call("langchain-openai", "OpenAI.invoke")
def _(url: str, model: str) -> None:
    from langchain_openai import OpenAI

    completions: Any = OpenAI(model=model, base_url=url + "/v1", api_key="EMPTY", max_tokens=8)
    assert isinstance(completions.invoke("def "), str)


@call("langchain-openai", "OpenAIEmbeddings.embed_documents")
def _(url: str, model: str) -> None:
    from langchain_openai import OpenAIEmbeddings

    given: Any = {"model": model, "base_url": url + "/v1", "api_key": "EMPTY"}
    vectors = OpenAIEmbeddings(**given, check_embedding_ctx_length=False).embed_documents(["a"])
    assert len(vectors) == 1


def langchain_chat(url: str, model: str) -> Any:
    from langchain_openai import ChatOpenAI

    given: Any = {"model": model, "base_url": url + "/v1", "api_key": "EMPTY", "max_tokens": 60}
    return ChatOpenAI(**given, max_retries=0)


@call("llama-index-llms-openai-like", "OpenAILike.complete, .chat, .stream_chat")
def _(url: str, model: str) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    given: Any = {"model": model, "api_base": url + "/v1", "api_key": "EMPTY", "max_tokens": 8}
    chat = OpenAILike(**given, is_chat_model=True)
    assert chat.chat([ChatMessage(role="user", content="hi")]).message is not None
    assert list(chat.stream_chat([ChatMessage(role="user", content="hi")]))
    assert OpenAILike(**given, is_chat_model=False).complete("def ").text is not None


@call("cohere", "ClientV2.rerank")
def _(url: str, model: str) -> None:
    import cohere

    client = cohere.ClientV2("EMPTY", base_url=url)
    reply = client.rerank(model=model, query="a", documents=["b", "c"], top_n=1)
    assert len(reply.results) == 1


@call("vllm bench serve (its requests)", "openai backend")
def _(url: str, model: str) -> None:
    chunks = post(
        url + "/v1/completions",
        {"model": model, "prompt": "def ", "repetition_penalty": 1.0, "max_tokens": 8,
         "logprobs": None, "stream": True, "stream_options": {"include_usage": True},
         "ignore_eos": True},
    )  # fmt: skip
    assert [one for one in chunks if one["choices"]]
    assert chunks[-1]["usage"]["completion_tokens"] == 8


@call("vllm bench serve (its requests)", "openai-chat backend")
def _(url: str, model: str) -> None:
    content = [{"type": "text", "text": "def "}]
    chunks = post(
        url + "/v1/chat/completions",
        {"model": model, "messages": [{"role": "user", "content": content}], "ignore_eos": True,
         "max_completion_tokens": 8, "stream": True, "stream_options": {"include_usage": True}},
    )  # fmt: skip
    assert [one["choices"][0]["delta"].get("content") for one in chunks if one["choices"]]
    assert chunks[-1]["usage"]["completion_tokens"] == 8


@call("vllm bench serve (its requests)", "openai-embeddings and vllm-rerank backends")
def _(url: str, model: str) -> None:
    vectors = post(url + "/v1/embeddings", {"model": model, "input": "a"})
    assert vectors["usage"]["prompt_tokens"]
    body = {"model": model, "query": "a", "documents": ["b"], "truncate_prompt_tokens": -1}
    assert post(url + "/v1/rerank", body)["usage"]["total_tokens"]


@call("lm-evaluation-harness (its requests)", "local-completions: loglikelihood of token ids")
def _(url: str, model: str) -> None:
    context = [4, 2]
    body = {"model": model, "prompt": [[5, 6, 7, 8, 9], [5, 6, 7]], "temperature": 0,
            "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}  # fmt: skip
    choices = sorted(post(url + "/v1/completions", body)["choices"], key=lambda one: one["index"])
    for choice, length, prompt in zip(choices, context, body["prompt"], strict=True):
        scores = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        assert len(scores) == len(tops) == len(prompt) - length
        assert sum(scores) < 0
        assert all(max(top.values()) >= score for score, top in zip(scores, tops, strict=True))


@call("lm-evaluation-harness (its requests)", "local-completions: generate_until")
def _(url: str, model: str) -> None:
    body = {"prompt": [[5, 6, 7], [5, 6]], "model": model, "max_tokens": 8, "temperature": 0,
            "stop": ["\n\n", "Question:", "<|endoftext|>"], "seed": 1234}  # fmt: skip
    choices = post(url + "/v1/completions", body)["choices"]
    assert {one["index"] for one in choices} == {0, 1}


@call("lm-evaluation-harness (its requests)", "local-chat-completions")
def _(url: str, model: str) -> None:
    messages = [{"role": "user", "content": "hi", "type": "text"}]
    body = {"messages": messages, "model": model, "max_tokens": 8, "temperature": 0,
            "stop": ["\n\n"], "seed": 1234}  # fmt: skip
    assert isinstance(
        post(url + "/v1/chat/completions", body)["choices"][0]["message"]["content"], str
    )


@call("lm-evaluation-harness (its requests)", "remote tokenizer")
def _(url: str, model: str) -> None:
    about = httpx.get(url + "/tokenizer_info", timeout=60).raise_for_status()
    assert "chat_template" in about.json()
    tokens = post(url + "/tokenize", {"prompt": "hi there", "add_special_tokens": False})["tokens"]
    assert post(url + "/detokenize", {"tokens": tokens})["prompt"] == "hi there"
    assert model


def version(client: str) -> str:
    """The client's version here; empty for a wire format. Raises PackageNotFoundError."""
    return "" if "(" in client else importlib.metadata.version(client)


def status(work: Call, url: str, model: str) -> str:
    """What became of a call, in a few words."""
    try:
        work(url, model)
    except httpx.HTTPStatusError as error:
        return f"{error.response.status_code}: {error.response.text[:160]}"
    except Exception as error:  # whatever a client raises is its answer
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return "works"


def main() -> int:
    """Print the table; 1 where an installed client's call fails."""
    url, only = sys.argv[1].rstrip("/"), sys.argv[2:]
    model = httpx.get(url + "/v1/models", timeout=60).json()["data"][0]["id"]
    failed = False
    rows = ["| client | version | call | status |", "|---|---|---|---|"]
    for client, name, work in CALLS:
        if only and client not in only:
            continue
        try:
            found = version(client)
        except importlib.metadata.PackageNotFoundError:
            rows.append(f"| {client} | | {name} | not installed here |")
            continue
        outcome = status(work, url, model)
        failed = failed or outcome != "works"
        rows.append(f"| {client} | {found} | {name} | {outcome} |")
    sys.stdout.write("\n".join(rows) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
