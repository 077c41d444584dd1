"""Responses in the background: queued at once, computed while nobody waits, asked for by id."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.serve.http.servers import Server, stub_server, until

OVER = ("completed", "incomplete", "failed", "cancelled")


@pytest.fixture(scope="module")
def client(stub: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=stub.address + "/v1", api_key="none", max_retries=0) as found:
        yield found


def begun(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    return client.responses.create(model="library", input=text, background=True, **fields)


def ended(client: openai.OpenAI, name: str) -> Any:
    end = time.monotonic() + 20
    while (found := client.responses.retrieve(name)).status not in OVER:
        assert time.monotonic() < end, found.status
        time.sleep(0.02)
    return found


def test_a_response_is_queued_at_once_and_complete_later(client: openai.OpenAI) -> None:
    queued = begun(client, "SLOW SAY hello there END", metadata={"a": "b"})
    assert (queued.status, queued.output, queued.background) == ("queued", [], True)
    found = ended(client, queued.id)
    assert (found.status, found.output_text) == ("completed", "hello there")
    assert (found.metadata, found.created_at) == ({"a": "b"}, queued.created_at)
    assert found.usage is not None
    assert found.usage.output_tokens > 1
    later = client.responses.create(model="library", input="y", previous_response_id=found.id)
    assert later.usage is not None
    assert later.usage.input_tokens > found.usage.input_tokens
    cut = begun(client, "SAY hello there END", max_output_tokens=1)
    assert ended(client, cut.id).status == "incomplete"


def test_work_that_is_cancelled_or_forgotten_ends(client: openai.OpenAI, stub: Server) -> None:
    first, second = (begun(client, "SLOW FILL", max_output_tokens=200) for _ in range(2))
    assert client.responses.retrieve(first.id).status in ("queued", "in_progress")
    assert client.responses.cancel(first.id).status == "cancelled"
    assert client.responses.retrieve(first.id).status == "cancelled"
    assert client.responses.cancel(first.id).status == "cancelled"  # once more changes nothing
    client.responses.delete(second.id)
    until(lambda: stub.get("/health").json()["running"] == 0, "an idle engine")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_nothing_goes_on_from_what_is_not_complete(client: openai.OpenAI) -> None:
    first = begun(client, "SLOW FILL", max_output_tokens=200)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="library", input="y", previous_response_id=first.id)
    assert caught.value.param == "previous_response_id"
    client.responses.cancel(first.id)


def test_a_request_that_cannot_be_served_is_refused_at_once(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        begun(client, "x " * 3000)
    assert caught.value.param == "input"


@pytest.mark.slow
def test_work_of_an_engine_that_dies_has_failed(model: Path) -> None:
    with (
        stub_server(model) as server,
        openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0) as client,
    ):
        found = ended(client, begun(client, "SLOW DIE", max_output_tokens=200).id)
        assert found.status == "failed"
        assert found.error is not None
        assert "try again" in found.error.message
        until(lambda: server.get("/ready").status_code == 200, "the engine's return")
        assert ended(client, begun(client, "SAY hello END").id).output_text == "hello"


def test_a_stream_in_the_background_goes_on_and_is_told_again(
    client: openai.OpenAI, stub: Server
) -> None:
    with begun(client, "SLOW SAY hello there END", stream=True) as stream:
        first = [next(stream) for _ in range(4)]
    assert [one.type for one in first[:3]] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    name = first[0].response.id
    rest = list(client.responses.retrieve(name, stream=True, starting_after=3))
    assert [one.sequence_number for one in rest] == list(range(4, 4 + len(rest)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response == client.responses.retrieve(name)
    text = [one.delta for one in [*first, *rest] if one.type == "response.output_text.delta"]
    assert "".join(text) == rest[-1].response.output_text == "hello there"
    again = list(client.responses.retrieve(name, stream=True))
    assert [one.type for one in again[-len(rest) :]] == [one.type for one in rest]
    stopped = begun(client, "SLOW FILL", stream=True, max_output_tokens=200)
    client.responses.cancel(next(stopped).response.id)
    assert "response.completed" not in [one.type for one in stopped]
    client.responses.delete(name)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(name, stream=True)
    whole = begun(client, "SAY a END")
    with pytest.raises(openai.BadRequestError, match="begun with background and stream"):
        client.responses.retrieve(whole.id, stream=True)
