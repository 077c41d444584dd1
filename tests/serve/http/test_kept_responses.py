"""Responses that go on from earlier ones, and that are asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.serve.http.servers import Server
from tests.serve.http.test_responses import ORDER, WEATHER


@pytest.fixture(scope="module")
def client(stub: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stub.address + "/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_from_the_one_that_it_names(client: openai.OpenAI, stream: bool) -> None:
    common: Any = {"model": "library", "tools": [WEATHER]}
    first: Any = client.responses.create(**common, input=ORDER, stream=stream)
    if stream:
        first = list(first)[-1].response
    call = next(one for one in first.output if one.type == "function_call")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = client.responses.create(**common, input=[result], previous_response_id=first.id)
    assert second.previous_response_id == first.id
    said: Any = [one.to_dict() for one in first.output]
    whole = client.responses.create(
        **common, input=[{"role": "user", "content": ORDER}, *said, result]
    )
    assert second.usage is not None
    assert whole.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens
    third = client.responses.create(**common, input="x", previous_response_id=second.id)
    assert third.usage is not None
    assert third.usage.input_tokens > second.usage.input_tokens
    counted = client.responses.input_tokens.count(
        **common, input="x", previous_response_id=second.id
    )
    assert counted.input_tokens == third.usage.input_tokens


def test_a_response_is_told_again_until_it_is_deleted(client: openai.OpenAI) -> None:
    first = client.responses.create(model="library", input="SAY hello END")
    assert first.store is True
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    later: Any = client.responses.create(model="library", input="y", previous_response_id=first.id)
    items: Any = list(client.responses.input_items.list(later.id, order="asc", limit=2))
    assert [one.content[0].text for one in items] == ["SAY hello END", first.output_text, "y"]
    with pytest.raises(openai.BadRequestError, match="in the background"):
        client.responses.cancel(first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="is kept here"):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="library", input="y", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"
    client.responses.create(model="library", input="z", previous_response_id=later.id)


def test_a_response_that_is_not_to_be_stored_is_not_kept(client: openai.OpenAI) -> None:
    found = client.responses.create(model="library", input="SAY a END", store=False)
    assert found.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(found.id)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_has_what_each_response_said(client: openai.OpenAI, stream: bool) -> None:
    first: Any = {"type": "message", "role": "user", "content": "x"}
    made = client.conversations.create(items=[first], metadata={"topic": "rain"})
    asked: Any = {"model": "library", "input": "SAY hello END", "conversation": made.id}
    found: Any = client.responses.create(**asked, stream=stream)
    if stream:
        found = list(found)[-1].response
    assert found.conversation.id == made.id
    items: Any = list(client.conversations.items.list(made.id, order="asc", limit=2))
    said = [part.text for one in items for part in one.content]
    assert said == ["x", "SAY hello END", found.output_text]
    assert {one.status for one in items} == {"completed"}
    asked = {"model": "library", "input": "y"}
    later = client.responses.create(**asked, conversation={"id": made.id})
    beside = client.responses.create(**asked, previous_response_id=found.id)
    assert later.usage is not None
    assert beside.usage is not None
    assert later.usage.input_tokens == beside.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="does not go with conversation"):
        client.responses.create(**asked, conversation=made.id, previous_response_id=found.id)


def test_a_conversation_is_changed_until_it_is_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create()
    said: Any = [{"role": "user", "content": one} for one in "ab"]
    first, second = client.conversations.items.create(made.id, items=said).data
    assert client.conversations.items.retrieve(second.id or "", conversation_id=made.id) == second
    client.conversations.items.delete(first.id or "", conversation_id=made.id)
    assert list(client.conversations.items.list(made.id)) == [second]
    changed = client.conversations.update(made.id, metadata={"a": "b"})
    assert client.conversations.retrieve(made.id) == changed
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError, match="no conversation"):
        client.responses.create(model="library", input="y", conversation=made.id)


def test_tools_are_told_back_as_they_came(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "code_interpreter", "container": {"type": "auto"}}, WEATHER]
    found = client.responses.create(model="library", input="SAY a END", tools=tools)
    assert [one.to_dict() for one in found.tools] == tools
