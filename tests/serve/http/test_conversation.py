"""A chat template gets words from strangers: not its own names, and not for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.serve.http.servers import LIBRARY, Server
from transformers import AutoTokenizer

from ridgeline.serve.http import conversation
from ridgeline.serve.http.conversation import in_time, reserved
from ridgeline.serve.http.protocol.errors import ApiError

MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize(
    "name",
    [
        "messages", "tools", "documents", "chat_template", "conversation", "conversations", "self",
        "tokenize", "add_generation_prompt", "return_dict", "sanitize_control_tokens", "range",
        "namespace", "dict", "raise_exception", "strftime_now", "bos_token", "eos_token", "loop",
        "_private", "__class__", "two words", "",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [1, None, {"a": [1]}], ids=str)
def test_a_name_that_means_something_already_is_not_a_clients(
    stub: Server, name: str, value: Any
) -> None:
    given = {"model": "library", "messages": MESSAGES, "chat_template_kwargs": {name: value}}
    response = stub.post("/v1/chat/completions", given)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "chat_template_kwargs"
    asked = {"messages": MESSAGES, "chat_template_kwargs": {name: value}}
    assert stub.post("/tokenize", asked).status_code == 400


def test_a_variable_of_the_template_is_a_clients(stub: Server) -> None:
    kwargs = {"extra": "SAY it END", "tojson": 1}
    given = {"model": "library", "messages": MESSAGES, "chat_template_kwargs": kwargs}
    response = stub.post("/v1/chat/completions", given)
    assert response.json()["choices"][0]["message"]["content"] == "it"


def test_reserved_names_are_those_of_what_renders() -> None:
    names = reserved(AutoTokenizer.from_pretrained(LIBRARY))
    assert {"conversation", "tools", "range", "bos_token", "messages"} <= names


def rendered(template: str, seconds: float, **variables: Any) -> str:
    tokenizer = AutoTokenizer.from_pretrained(LIBRARY)
    tokenizer.chat_template = template

    def work() -> str:
        text: str = tokenizer.apply_chat_template(MESSAGES, tokenize=False, **variables)
        return text

    return asyncio.run(in_time(work, seconds))


def test_a_template_that_comes_to_no_end_is_stopped() -> None:
    loops = "{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}"
    began = time.monotonic()
    with pytest.raises(ApiError, match=r"takes longer than 0\.5 s"):
        rendered(loops, 0.5, n=99999)
    while any(one.name == "chat-template" for one in threading.enumerate()):
        assert time.monotonic() - began < 60
        time.sleep(0.01)


def test_a_template_that_writes_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LONGEST_CHARACTERS", 1000)
    assert rendered("{{ 'x' * n }}", 30, n=1000) == "x" * 1000
    with pytest.raises(ApiError, match="1001 characters"):
        rendered("{{ 'x' * n }}", 30, n=1001)
