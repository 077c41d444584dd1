"""Thoughts: told apart from answers, whole and streamed, and given back to the template."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.http.servers import Server, sse

from ridgeline.errors import InputError
from ridgeline.serve.http.chat_template import ChatTemplate, choose_template
from ridgeline.serve.http.protocol.chat import ChatRequest
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.reasoning import (
    ThoughtReader,
    check_parser,
    choose_marks,
    thought_marks,
)
from ridgeline.serve.http.routes.chat import template_variables

FAMILIES = thought_marks()
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
WEATHER = {"type": "function", "function": {"name": "weather"}}


def read(reader: ThoughtReader, text: str, cuts: list[int]) -> tuple[str, str]:
    thoughts, answers = [], []
    for start, end in pairwise([0, *sorted(cuts), len(text)]):
        thought, answer = reader.feed(text[start:end])
        thoughts.append(thought)
        answers.append(answer)
    thought, answer = reader.finish()
    return "".join([*thoughts, thought]), "".join([*answers, answer])


WAYS = [
    ("qwen3", "", "<think>\nHm. So?\n</think>\n\nYes.", "Hm. So?", "Yes."),
    ("qwen3", "", "\n<think>a < b</think>b <think>", "a < b", "b <think>"),
    ("qwen3", "", "  plain </think>", "", "  plain </think>"),
    ("qwen3", "", "<think>\n\n</think>\n\nYes.", "", "Yes."),
    ("qwen3", "", "<think>cut </thi", "cut </thi", ""),
    ("qwen3", "", " <thi", "", " <thi"),
    ("qwen3", "user: x\n<think>\n", "Hm.\n</think>\nYes.", "Hm.", "Yes."),
    ("qwen3", "<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
    ("deepseek_r1", "", "Hm.\n</think>\nYes.", "Hm.", "Yes."),
    ("deepseek_r1", "", "<think> Hm. </think>", "Hm.", ""),
    ("deepseek_r1", "x</think>", " Yes.", "", " Yes."),
    ("seed_oss", "", "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
    ("mistral", "", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    ("granite", "", "Here is my thought process: Hm. Here is my response: Yes.", "Hm.", "Yes."),
    ("gemma4", "", "<|channel>thought\nHm.\n<channel|>Yes.", "Hm.", "Yes."),
    (
        "apertus",
        "",
        "<|inner_prefix|>a<|inner_suffix|>Yes.<|inner_prefix|>b<|inner_suffix|> So.",
        "ab",
        "Yes.So.",
    ),
    ("cohere_command3", "<|START_THINKING|>", "Hm.<|END_THINKING|>Yes.", "Hm.", "Yes."),
]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(("family", "prompt", "text", "thought", "answer"), WAYS)
@given(data=st.data())
def test_thoughts_are_the_same_however_the_text_is_cut(
    family: str, prompt: str, text: str, thought: str, answer: str, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=len(text)))
    reader = ThoughtReader.behind(prompt, FAMILIES[family])
    assert read(reader, text, cuts) == (thought, answer)


PIECES = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<", "/", "th", " ", "\n", "a", "<|inner_prefix|>",
         "<|inner_suffix|>", "<|inner_"]
    )
)  # fmt: skip


@given(PIECES, st.sampled_from(sorted(FAMILIES)), st.sampled_from(["", "<think>", "</think>"]))
def test_any_text_cut_anywhere_is_read_as_the_whole(
    parts: list[str], family: str, prompt: str
) -> None:
    text, marks = "".join(parts), FAMILIES[family]
    whole = read(ThoughtReader.behind(prompt, marks), text, [])
    assert read(ThoughtReader.behind(prompt, marks), text, list(range(len(text)))) == whole


def test_the_family_is_the_one_whose_tags_the_template_has() -> None:
    def chosen(text: str) -> str:
        return choose_marks("auto", ChatTemplate(text=text, origin="given"))[0]

    assert chosen("{{ m.split('</think>')[-1] }}") == "qwen3"
    assert chosen("<seed:think>{{ x }}</seed:think>") == "seed_oss"
    assert chosen("'<|start|>assistant<|channel|>analysis<|message|>'") == "openai_gptoss"
    assert chosen("'<think>\\n' ~ t ~ '</think>\\n<answer>'") == "hunyuan_a13b"
    assert check_parser("kimi_k2") == "deepseek_r1"
    assert choose_marks("auto", choose_template(None, None)) == ("none", None)
    with pytest.raises(InputError, match=r"--reasoning-parser qwen: unknown; known are auto, none"):
        check_parser("qwen")


def ask(stub: Server, text: str, **fields: Any) -> Any:
    given = {"model": "library", "messages": [{"role": "user", "content": text}], **fields}
    response = stub.post("/v1/chat/completions", given)
    assert response.status_code == 200, response.text
    return sse(response) if fields.get("stream") else response.json()


@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER]}])
def test_a_reply_and_its_stream_tell_thoughts_apart(stub: Server, fields: dict[str, Any]) -> None:
    order = f"SAY <think>\nI look. {CALL}\n</think>\n\nYes. {CALL} END"
    whole = ask(stub, order, **fields)["choices"][0]["message"]
    assert whole["reasoning_content"] == whole["reasoning"] == f"I look. {CALL}"
    assert ("tool_calls" in whole) == bool(fields)
    deltas = [c["choices"][0]["delta"] for c in ask(stub, order, stream=True, **fields)]
    for name in ("reasoning_content", "reasoning", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == whole[name]
    names = [name for delta in deltas for name in delta if name in ("content", "reasoning")]
    assert names.index("reasoning") < len(names) - 1 - names[::-1].index("content")
    last = [n for n in names if n == "reasoning"]
    assert names[1 : len(last) + 1] == last  # behind the opening chunk, and nothing in between


def test_the_usage_says_how_many_tokens_were_thought(stub: Server) -> None:
    order = "SAY <think> so it is </think> yes END"
    told = ask(stub, order)["usage"]
    assert 0 < told["completion_tokens_details"]["reasoning_tokens"] < told["completion_tokens"]
    chunks = ask(stub, order, stream=True, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == told


def test_thoughts_are_left_out_where_they_are_not_wanted(stub: Server) -> None:
    message = ask(stub, "SAY <think>Hm.</think>Yes. END", include_reasoning=False)
    assert message["choices"][0]["message"]["content"] == "Yes."
    assert "reasoning" not in message["choices"][0]["message"]
    assert "reasoning" not in ask(stub, "SAY Yes. END")["choices"][0]["message"]


def prompt_of(stub: Server, messages: list[Any], **fields: Any) -> str:
    given = {"model": "library", "messages": messages, "return_token_ids": True, **fields}
    response = stub.post("/v1/chat/completions", given)
    assert response.status_code == 200, response.text
    ids = response.json()["prompt_token_ids"]
    found: str = stub.post("/detokenize", {"tokens": ids}).json()["prompt"]
    return found


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_come_back_to_the_template(stub: Server, name: str) -> None:
    earlier = {"role": "assistant", "content": "Yes.", name: "Hm."}
    prompt = prompt_of(stub, [{"role": "user", "content": "x"}, earlier])
    assert "<think>Hm.</think>Yes." in prompt


def test_two_names_that_differ_are_refused(stub: Server) -> None:
    both = {"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}
    response = stub.post("/v1/chat/completions", {"model": "library", "messages": [both]})
    assert response.status_code == 400


def test_the_effort_goes_to_a_template_that_knows_it(stub: Server) -> None:
    prompt = prompt_of(stub, [{"role": "user", "content": "x"}], reasoning_effort="low")
    assert prompt.startswith("think: low")
    body = {"model": "library", "messages": [{"role": "user", "content": "x"}]}
    kwargs = {"reasoning_effort": "high"}
    twice = {**body, "reasoning_effort": "low", "chat_template_kwargs": kwargs}
    response = stub.post("/v1/chat/completions", twice)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reasoning_effort"


SWITCH = "{{ enable_thinking }}"


@pytest.mark.parametrize(
    ("template", "effort", "thinks", "found"),
    [
        ("{{ reasoning_effort }}", "high", True, {"reasoning_effort": "high"}),
        (SWITCH, "none", True, {"enable_thinking": False}),
        (SWITCH, "high", True, {}),
        ("{{ messages }}", "low", True, {}),
        ("{{ messages }}", "none", False, {}),
        ("{{ messages }}", "none", True, "always thinks first"),
    ],
)
def test_the_effort_is_obeyed_without_meaning_or_refused(
    template: str, effort: str, thinks: bool, found: Any
) -> None:
    messages = [{"role": "user", "content": "x"}]
    body = ChatRequest.model_validate(
        {"model": "m", "messages": messages, "reasoning_effort": effort}
    )
    if isinstance(found, dict):
        assert template_variables(body, template, thinks=thinks) == found
    else:
        with pytest.raises(ApiError, match=found) as caught:
            template_variables(body, template, thinks=thinks)
        assert caught.value.param == "reasoning_effort"
