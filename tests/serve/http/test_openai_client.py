"""The official `openai` client, unchanged, against the real server with a really trained model."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from bench.serve_clients import CALLS, Call, version
from pydantic import BaseModel
from tests.serve.http.servers import ROOT, Server, serving
from tests.serve.http.test_openapi_fuzz import fuzz

WORDS = ("--port", "0", "--dtype", "fp32", "--kv-bytes", "32MiB", "--threads", "1")
MESSAGES: Any = [{"role": "user", "content": "def main("}]
WEATHER: Any = {
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
    },
}


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(model, *WORDS) as found:
        found.wait_until_ready()
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.mark.parametrize(
    ("name", "work"), [pytest.param(a, work, id=f"{a}: {b}") for a, b, work in CALLS]
)
def test_a_clients_call_works(server: Server, name: str, work: Call) -> None:
    try:
        version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed; bench/serve_clients.py runs it elsewhere")
    work(server.address, "library")


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["library"]


def test_a_chat_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    common: Any = {"model": "library", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**common)
    stream = client.chat.completions.create(
        **common, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert [reason for reason in reasons if reason] == [whole.choices[0].finish_reason]


@pytest.mark.slow
def test_a_completion_matches_what_the_command_generates(
    client: openai.OpenAI, model: Path
) -> None:
    answer = client.completions.create(
        model="library", prompt="def main(", temperature=0, max_tokens=24
    )
    words = [sys.executable, "-m", "ridgeline.cli.main", "generate", str(model)]
    words += ["--prompt", "def main(", "--max-tokens", "24", "--temperature", "0"]
    words += ["--dtype", "fp32", "--json"]
    found = subprocess.run(words, capture_output=True, check=True, cwd=ROOT)
    document = json.dumps(json.loads(found.stdout))
    assert json.dumps(answer.choices[0].text)[1:-1] in document


def test_seeds_repeat_and_answers_differ(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str]:
        answer = client.completions.create(
            model="library", prompt="import ", n=3, seed=seed, max_tokens=12, temperature=1.5
        )
        return [choice.text for choice in answer.choices]

    assert ask(7) == ask(7)
    assert len({*ask(7), *ask(8)}) > 3


def test_the_best_of_several_come_back_the_likeliest_first(client: openai.OpenAI) -> None:
    common: Any = {"model": "library", "prompt": ["import ", "def "], "seed": 7, "max_tokens": 12}
    drawn = client.completions.create(**common, n=4, logprobs=0).choices

    def likelihood(choice: Any) -> float:
        found = choice.logprobs.token_logprobs
        return float(sum(found) / len(found))

    groups = [sorted(group, key=likelihood, reverse=True) for group in (drawn[:4], drawn[4:])]
    best = client.completions.create(**common, n=2, best_of=4)
    assert [one.text for one in best.choices] == [one.text for g in groups for one in g[:2]]
    assert [one.index for one in best.choices] == [0, 1, 2, 3]
    assert best.choices[0].logprobs is None
    assert best.usage is not None
    assert best.usage.completion_tokens == sum(len(one.logprobs.tokens) for one in drawn)


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="library", messages=MESSAGES, logprobs=True, top_logprobs=3, max_tokens=8,
        temperature=0,
    )  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    for one in logprobs.content:
        assert len(one.top_logprobs) == 3
        assert one.logprob <= 0
        assert one.logprob == pytest.approx(max(top.logprob for top in one.top_logprobs))


def test_an_echoed_prompt_has_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="library", prompt="for i in range(", echo=True, logprobs=1, max_tokens=1
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert answer.usage is not None
    assert len(logprobs.token_logprobs) == answer.usage.total_tokens
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])


def test_stop_strings_end_an_answer(client: openai.OpenAI) -> None:
    common: Any = {"model": "library", "prompt": "def main(", "temperature": 0, "max_tokens": 40}
    free = client.completions.create(**common).choices[0].text
    stop = free[5:8]
    ended = client.completions.create(**common, stop=stop).choices[0]
    assert ended.text == free[: free.index(stop)]
    assert ended.finish_reason == "stop"


class Point(BaseModel):
    """What the answer must be."""

    kind: bool
    size: bool


def test_structured_output_parses(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="library", messages=MESSAGES, response_format=Point, max_tokens=100, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Point)


def test_extras_of_vllm_are_honoured(client: openai.OpenAI) -> None:
    choice = client.completions.create(
        model="library", prompt="x", max_tokens=20,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}, "top_k": 5, "min_p": 0.01},
    )  # fmt: skip
    assert choice.choices[0].text in ("yes", "no")
    for others in ({"guided_regex": "[0-9]{3}"}, {"regex": "[0-9]{3}"}, {"ebnf": 'root ::= "7"'}):
        digits = client.completions.create(
            model="library", prompt="x", max_tokens=20, extra_body=others
        )
        assert digits.choices[0].text.isdigit()
    long = client.completions.create(
        model="library", prompt="x", max_tokens=9, extra_body={"ignore_eos": True}
    )
    assert long.usage is not None
    assert long.usage.completion_tokens == 9


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str
)
def test_a_forced_tool_is_called_whole_and_streamed(client: openai.OpenAI, choice: Any) -> None:
    common: Any = {
        "model": "library", "messages": MESSAGES, "tools": [WEATHER], "tool_choice": choice,
        "parallel_tool_calls": False, "max_tokens": 120, "seed": 3,
    }  # fmt: skip
    whole = client.chat.completions.create(**common).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls
    (call,) = whole.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["days"] in (1, 2, 3)
    arguments, names = "", []
    for chunk in client.chat.completions.create(**common, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            assert part.function is not None
            arguments += part.function.arguments or ""
            names += [part.function.name] if part.function.name else []
    assert names == ["weather"]
    assert json.loads(arguments) == json.loads(call.function.arguments)


def test_a_response_its_stream_and_a_chat_say_the_same(client: openai.OpenAI) -> None:
    common: Any = {"model": "library", "temperature": 0}
    chat = client.chat.completions.create(**common, messages=MESSAGES, max_tokens=16)
    whole = client.responses.create(**common, input=MESSAGES, max_output_tokens=16)
    assert whole.output_text == chat.choices[0].message.content
    with client.responses.stream(**common, input=MESSAGES, max_output_tokens=16) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text


def test_anthropics_client_gets_the_same_answer_and_its_sequence(
    client: openai.OpenAI, server: Server
) -> None:
    common: Any = {"model": "library", "messages": MESSAGES, "max_tokens": 24}
    chat = client.chat.completions.create(**common, temperature=0)
    text = chat.choices[0].message.content or ""
    common["extra_body"] = {"temperature": 0}
    with anthropic.Anthropic(base_url=server.address, api_key="none", max_retries=0) as other:
        with other.messages.stream(**common) as stream:
            assert "".join(stream.text_stream) == text
        sequence = text[5:8]
        ended = other.messages.create(**common, stop_sequences=[sequence])
    (block,) = ended.content
    assert block.type == "text"
    assert block.text == text[: text.index(sequence)]
    assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", sequence)


def test_a_response_is_parsed_into_a_type(client: openai.OpenAI) -> None:
    found = client.responses.parse(
        model="library", input="x", text_format=Point, max_output_tokens=100
    )
    assert isinstance(found.output_parsed, Point)


def test_embeddings_of_equal_texts_are_equal(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model="library", input=["import os", "class A:", "import os"])
    first, second, third = (one.embedding for one in found.data)
    assert first == pytest.approx(third, abs=1e-5)
    assert first != pytest.approx(second, abs=1e-2)
    assert sum(value * value for value in first) == pytest.approx(1.0, abs=1e-3)


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="no tokens for a text to be filled into"):
        client.completions.create(model="library", prompt="x", suffix="y")
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model="library", prompt="x " * 5000)
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "odd"}}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="library", messages=MESSAGES, response_format=schema)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_request_is_the_engines_fault(server: Server, path: str) -> None:
    pid = server.engine_pid()
    fuzz(server, "POST", path, 6)
    assert server.engine_pid() == pid


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"]
)
def test_no_request_is_the_engines_fault_at_length(server: Server, path: str) -> None:
    pid = server.engine_pid()
    fuzz(server, "POST", path, 300)
    assert server.engine_pid() == pid


def test_strict_tools_leave_a_free_answer_free(client: openai.OpenAI) -> None:
    tool = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    answer = client.chat.completions.create(
        model="library", messages=MESSAGES, tools=[tool], max_tokens=8, temperature=0
    )
    plain = client.chat.completions.create(
        model="library", messages=MESSAGES, tools=[WEATHER], max_tokens=8, temperature=0
    )
    assert answer.choices[0].message.content == plain.choices[0].message.content


def test_a_structure_in_free_text_is_kept(client: openai.OpenAI) -> None:
    tag = {"begin": "<days>", "schema": {"enum": [1, 2, 3]}, "end": "</days>"}
    form: Any = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": tag["begin"],
            "content": {"type": "json_schema", "json_schema": tag["schema"]},
            "end": tag["end"],
        },
    }
    answer = client.chat.completions.create(
        model="library", messages=MESSAGES, response_format=form, max_tokens=60
    )
    assert answer.choices[0].message.content in {f"<days>{one}</days>" for one in (1, 2, 3)}
    older: Any = {"type": "structural_tag", "structures": [tag], "triggers": ["<days>"]}
    free = client.chat.completions.create(
        model="library", messages=MESSAGES, response_format=older, max_tokens=4
    )
    assert free.choices[0].message.content


def test_what_clients_of_vllm_write_beside_a_message_is_taken(client: openai.OpenAI) -> None:
    call = {"id": "1", "index": 0, "function": {"name": "weather", "arguments": "{}"}}
    messages: Any = [
        {"role": "user", "content": "x", "type": "text"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    answer = client.chat.completions.create(
        model="library", messages=messages, max_tokens=2, logprobs=True,
        extra_body={"add_special_tokens": False, "return_tokens_as_token_ids": True},
    )  # fmt: skip
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.choices[0].logprobs.content[0].token.startswith("token_id:")
    text = client.completions.create(
        model="library", prompt="x y", max_tokens=1, logprobs=1, echo=True,
        extra_body={"return_tokens_as_token_ids": True},
    )  # fmt: skip
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.tokens is not None
    assert all(one.startswith("token_id:") for one in text.choices[0].logprobs.tokens)


def test_a_salt_keeps_prefixes_apart(client: openai.OpenAI) -> None:
    def cached(salt: str) -> int:
        usage = client.completions.create(
            model="library", prompt="import os " * 20, max_tokens=1,
            extra_body={"cache_salt": salt},
        ).usage  # fmt: skip
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert (cached("mine"), cached("mine") > 0, cached("yours")) == (0, True, 0)


def test_a_reset_prefix_cache_is_empty(client: openai.OpenAI, server: Server) -> None:
    def cached() -> int:
        usage = client.completions.create(
            model="library", prompt="class Reset: " * 20, max_tokens=1
        ).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert (cached(), cached() > 0) == (0, True)
    assert server.post("/reset_prefix_cache", None).status_code == 200
    assert cached() == 0
