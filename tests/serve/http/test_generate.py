"""The API of text-generation-inference, as its clients send and read it."""

from __future__ import annotations

import json
from typing import Any

from tests.serve.http.servers import Server

PROMPT = "SAY the quick é END"
SAMPLED = {"do_sample": True, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "seed": 1}


def ask(stub: Server, path: str, inputs: str = PROMPT, **parameters: Any) -> Any:
    response = stub.post(path, {"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_text_is_continued_with_its_tokens(stub: Server) -> None:
    found = ask(stub, "/generate", details=True, decoder_input_details=True, **SAMPLED)
    assert found["generated_text"] == "the quick é"
    details = found["details"]
    assert details["finish_reason"] == "eos_token"
    assert details["generated_tokens"] == len(details["tokens"]) > 2
    first, *others = details["prefill"]
    assert first["logprob"] is None
    assert all(one["logprob"] <= 0 for one in others)
    whole = ask(stub, "/generate", return_full_text=True)
    assert whole == {"generated_text": PROMPT + "the quick é"}
    cut = ask(stub, "/generate", max_new_tokens=2, details=True)
    assert cut["details"]["finish_reason"] == "length"
    assert ask(stub, "/") == [{"generated_text": "the quick é"}]


def test_a_stream_has_every_token_and_the_text_at_its_end(stub: Server) -> None:
    body = {"inputs": PROMPT, "parameters": {"seed": 3}}
    lines = stub.post("/generate_stream", body).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(one["token"]["text"] for one in events) == "the quick é"
    assert [one["index"] for one in events] == list(range(1, len(events) + 1))
    *others, last = events
    assert {one["generated_text"] for one in others} == {None}
    assert last["generated_text"] == "the quick é"
    ended = {"finish_reason": "eos_token", "generated_tokens": len(events), "seed": 3}
    assert last["details"] == ended
    same = stub.post("/", {**body, "stream": True}).text
    assert same.count("data: ") == len(events)


def test_what_is_not_served_is_refused_by_its_name(stub: Server) -> None:
    for name, value in (
        ("watermark", True), ("typical_p", 0.5), ("top_n_tokens", 2), ("adapter_id", "nobody"),
        ("best_of", 200), ("grammar", {"type": "regex", "value": "("}), ("nothing", 1),
    ):  # fmt: skip
        response = stub.post("/generate", {"inputs": "x", "parameters": {name: value}})
        assert response.status_code in (400, 404), name
        error = response.json()["error"]
        assert name in (error["param"], error["message"].split()[0].split(".")[-1].rstrip(":"))


def test_typical_sampling_is_taken_where_nothing_is_drawn(stub: Server) -> None:
    """LangChain's client sends it with every request, and `do_sample: false` beside it."""
    asked = {"typical_p": 0.95, "do_sample": False, "temperature": 0.8}
    assert ask(stub, "/generate", **asked) == {"generated_text": "the quick é"}
    response = stub.post(
        "/generate", {"inputs": PROMPT, "parameters": {**asked, "do_sample": None}}
    )
    assert response.status_code == 400
    assert "typical_p" in response.json()["error"]["message"]


def test_hugging_faces_clients_need_no_name_for_the_model_of_an_address(stub: Server) -> None:
    for name in ("tgi", "TGI", "dummy"):
        body = {"model": name, "prompt": PROMPT}
        assert stub.post("/v1/completions", body).json()["model"] == "library"
    assert stub.post("/v1/completions", {"model": "other", "prompt": "x"}).status_code == 404


def test_what_one_apis_words_allow_and_the_others_cannot_say_is_no_fault_of_ours(
    stub: Server,
) -> None:
    streamed = {"inputs": PROMPT, "parameters": {"decoder_input_details": True}}
    error = stub.post("/generate_stream", streamed).json()["error"]
    assert error["param"] == "decoder_input_details"
    both = {
        "model": "library",
        "prompt": PROMPT,
        "stream": False,
        "options": {"stop": ["x" * 2000]},
    }
    assert stub.post("/api/generate", {**both, "raw": True}).status_code == 400
