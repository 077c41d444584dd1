"""SGLang's own endpoints, as its frontend language and its benchmark send and read them."""

from __future__ import annotations

import itertools
from typing import Any

from tests.serve.http.servers import Server, sse

PROMPT = "SAY the quick é END"


def ask(stub: Server, **body: Any) -> Any:
    response = stub.post("/generate", body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_text_is_continued_with_its_ids_and_what_is_known_of_it(stub: Server) -> None:
    found = ask(stub, text=PROMPT, sampling_params={"temperature": 0}, rid="mine")
    assert found["text"] == "the quick é"
    told = found["meta_info"]
    assert told["id"] == "mine"
    assert told["finish_reason"] == {"type": "stop", "matched": found["output_ids"][-1]}
    assert told["completion_tokens"] == len(found["output_ids"]) > 2
    assert told["prompt_tokens"] > 2
    cut = ask(stub, text=PROMPT, sampling_params={"max_new_tokens": 2})
    assert cut["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


def test_several_texts_and_several_answers_come_as_a_list(stub: Server) -> None:
    found = ask(stub, text=["SAY one END", "SAY two END"])
    assert [one["text"] for one in found] == ["one", "two"]
    assert len(ask(stub, text=PROMPT, sampling_params={"n": 3})) == 3
    ids = stub.post("/tokenize", {"prompt": "SAY three END"}).json()["tokens"]
    assert ask(stub, input_ids=ids)["text"] == "three"
    assert [one["text"] for one in ask(stub, input_ids=[ids, ids])] == ["three", "three"]


def test_each_event_has_all_of_the_text_so_far(stub: Server) -> None:
    plain = sse(stub.post("/generate", {"text": PROMPT, "stream": True}))
    texts = [one["text"] for one in plain]
    assert texts[-1] == "the quick é"
    assert all(late.startswith(early) for early, late in itertools.pairwise(texts))
    assert [bool(one["meta_info"]["finish_reason"]) for one in plain].index(True) == len(plain) - 1
    both = sse(stub.post("/generate", {"text": ["SAY one END", "SAY two END"], "stream": True}))
    last = {one["index"]: one["text"] for one in both}
    assert last == {0: "one", 1: "two"}


def test_log_probabilities_of_a_prompt_begin_where_they_are_asked_for(stub: Server) -> None:
    """Nothing is drawn at `max_new_tokens` 0, as the frontend language scores its choices."""
    ids = stub.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    given: Any = {"text": PROMPT, "return_logprob": True, "sampling_params": {"max_new_tokens": 0}}
    scored = ask(stub, **given, logprob_start_len=1, return_text_in_logprobs=True)
    assert scored["text"] == ""
    assert scored["output_ids"] == []
    assert scored["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    first, *others = scored["meta_info"]["input_token_logprobs"]
    assert first[0] is None
    assert [one[1] for one in (first, *others)] == ids[1:]
    assert all(one[0] <= 0 and isinstance(one[2], str) for one in others)
    assert ask(stub, **given)["meta_info"]["input_token_logprobs"] == []
    drawn = ask(stub, text=PROMPT, return_logprob=True, top_logprobs_num=2)
    told = drawn["meta_info"]
    assert [one[1] for one in told["output_token_logprobs"]] == drawn["output_ids"]
    assert {len(one) for one in told["output_top_logprobs"]} == {2}


def test_what_is_not_served_is_refused_by_its_name(stub: Server) -> None:
    for body, name in (
        ({"text": "x", "input_ids": [1]}, "text"),
        ({"sampling_params": {}}, "text"),
        ({"text": "x", "image_data": "y"}, "image_data"),
        ({"text": "x", "return_hidden_states": True}, "return_hidden_states"),
        ({"text": "x", "lora_path": "nobody"}, "lora_path"),
        ({"text": "x", "sampling_params": {"stop_regex": "a"}}, "stop_regex"),
        ({"text": "x", "sampling_params": {"max_new_tokens": 10**6}}, "text"),
        ({"text": "x", "stream": True, "return_logprob": True, "logprob_start_len": 0}, "logprob"),
    ):
        response = stub.post("/generate", body)
        assert response.status_code in (400, 404), body
        error = response.json()["error"]
        assert name in f"{error['param']} {error['message']}", error


def test_the_server_says_what_it_is_before_it_is_asked_anything(stub: Server) -> None:
    assert stub.get("/get_model_info").json()["is_generation"] is True
    assert stub.get("/model_info").json()["model_path"].endswith("library")
    assert stub.get("/server_info").json()["internal_states"] == [{}]
    for path in ("/health_generate", "/v2/health/live", "/v2/health/ready"):
        assert stub.get(path).status_code == 200
    assert stub.post("/flush_cache", {"empty_cache": True}).status_code == 200
    told = stub.get("/info?api-version=2024-05-01-preview").json()
    assert told["model_id"] == told["model_name"] == "library"
    assert told["max_input_tokens"] < told["max_total_tokens"]
