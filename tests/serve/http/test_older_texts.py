"""Endpoints that continue a text in their makers' older words: `/v1/complete`, `/v1/generate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.http.servers import Server, running

from ridgeline.serve.http.protocol.older_texts import CompleteRequest

ASKED = {"model": "library", "prompt": "SAY hello there END", "max_tokens_to_sample": 64}


@pytest.fixture(scope="module")
def real() -> Iterator[Server]:
    words = ("serve", "examples/models/library", "--port", "0", "--max-length", "256")
    with running("ridgeline.cli.main", *words, "--dtype", "fp32") as server:
        server.wait_until_ready()
        yield server


def test_anthropics_older_clients_get_a_text(stub: Server) -> None:
    found = stub.post("/v1/complete", {**ASKED, "metadata": {"user_id": "a", "team": "b"}})
    said = found.json()
    assert said.pop("id").startswith("compl_")
    assert said == {
        "type": "completion",
        "completion": "hello there",
        "stop_reason": "stop_sequence",
        "stop": None,
        "model": "library",
    }
    assert found.headers["x-without-effect"] == "metadata.team"


@pytest.mark.slow
def test_a_text_of_theirs_ends_at_a_sequence(real: Server) -> None:
    asked = {"prompt": "import", "max_tokens_to_sample": 12, "temperature": 0}
    whole = real.post("/v1/complete", asked).json()
    assert whole["stop_reason"] == "max_tokens"
    middle = whole["completion"][5:8]
    said = real.post("/v1/complete", {**asked, "stop_sequences": [middle]}).json()
    assert (said["stop_reason"], said["stop"]) == ("stop_sequence", middle)
    assert said["completion"] == whole["completion"].partition(middle)[0]


def test_a_text_of_theirs_ends_before_the_next_turn_of_its_own_form() -> None:
    asked = CompleteRequest.model_validate({**ASKED, "stop_sequences": ["a"]})
    assert asked.completion.stop == ["a", "\n\nHuman:"]


def test_their_stream_has_the_pieces_and_why_it_ended(stub: Server) -> None:
    lines = stub.post("/v1/complete", {**ASKED, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert {line for line in lines if line.startswith("event")} == {"event: completion"}
    assert "".join(one["completion"] for one in events) == "hello there"
    assert [one["stop_reason"] for one in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["stop_reason"] == "stop_sequence"


@pytest.mark.parametrize("path", ["/v1/complete", "/anthropic/v1/complete"])
def test_their_errors_are_in_their_words(stub: Server, path: str) -> None:
    found = stub.post(path, {**ASKED, "max_tokens_to_sample": 0})
    assert found.status_code == 400
    assert found.json()["error"]["type"] == "invalid_request_error"
    assert "max_tokens_to_sample" in found.json()["error"]["message"]


def cohere(stub: Server, **fields: Any) -> Any:
    return stub.post("/v1/generate", {"prompt": "SAY hello there END", "max_tokens": 64, **fields})


def test_coheres_older_clients_get_generations(stub: Server) -> None:
    said = cohere(stub, num_generations=2, return_likelihoods="GENERATION").json()
    assert [one["text"] for one in said["generations"]] == ["hello there"] * 2
    assert [one["finish_reason"] for one in said["generations"]] == ["COMPLETE"] * 2
    assert said["prompt"] == "SAY hello there END"
    tokens = said["generations"][0]["token_likelihoods"]
    assert "".join(one["token"] for one in tokens).startswith("hello there")
    assert said["meta"]["tokens"]["output_tokens"] > 1


@pytest.mark.slow
def test_a_sequence_stays_in_the_text_or_not_as_they_ask(real: Server) -> None:
    asked = {"prompt": "import", "max_tokens": 12, "temperature": 0}
    whole = real.post("/v1/generate", asked).json()["generations"][0]
    assert whole["finish_reason"] == "MAX_TOKENS"
    middle = whole["text"][5:8]
    before = whole["text"].partition(middle)[0]
    for field, text in (("stop_sequences", before + middle), ("end_sequences", before)):
        found = real.post("/v1/generate", {**asked, field: [middle]}).json()["generations"][0]
        assert (found["text"], found["finish_reason"]) == (text, "STOP_SEQUENCE")
    both = real.post("/v1/generate", {**asked, "end_sequences": ["a"], "stop_sequences": ["b"]})
    assert both.json()["error"]["param"] == "end_sequences"


def test_their_stream_ends_with_all_of_the_text(stub: Server) -> None:
    lines = [json.loads(line) for line in cohere(stub, stream=True).text.splitlines()]
    assert "".join(one["text"] for one in lines[:-1]) == "hello there"
    last = lines[-1]
    assert (last["event_type"], last["is_finished"]) == ("stream-end", True)
    assert last["response"]["generations"][0]["text"] == "hello there"
