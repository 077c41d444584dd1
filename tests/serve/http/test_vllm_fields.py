"""What clients of vLLM's server send beside OpenAI's fields, and what they read of a reply."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.http.servers import Server, running, sse, stub_server

ORDER = "SAY hello there END"
CHAT = {"model": "library", "messages": [{"role": "user", "content": ORDER}]}


def complete(stub: Server, **fields: Any) -> Any:
    given = {"model": "library", "prompt": ORDER, "max_tokens": 64, **fields}
    response = stub.post("/v1/completions", given)
    assert response.status_code == 200, response.text
    return sse(response) if fields.get("stream") else response.json()


def converse(stub: Server, **fields: Any) -> Any:
    response = stub.post("/v1/chat/completions", {**CHAT, **fields})
    assert response.status_code == 200, response.text
    return sse(response) if fields.get("stream") else response.json()


def tokens_of(stub: Server, **given: Any) -> list[int]:
    found: list[int] = stub.post("/tokenize", given).json()["tokens"]
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_the_ids_of_prompt_and_completion_stand_beside_the_text(stub: Server, stream: bool) -> None:
    reply = complete(stub, return_token_ids=True, stream=stream)
    choices = [one["choices"][0] for one in (reply if stream else [reply])]
    prompts = [one["prompt_token_ids"] for one in choices if "prompt_token_ids" in one]
    assert prompts == [tokens_of(stub, prompt=ORDER)]
    ids = [token for one in choices for token in one["token_ids"]]
    assert stub.post("/detokenize", {"tokens": ids}).json()["prompt"].strip() == "hello there"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_tells_ids_as_well(stub: Server, stream: bool) -> None:
    reply = converse(stub, return_token_ids=True, stream=stream)
    parts = reply if stream else [reply]
    prompts = [one["prompt_token_ids"] for one in parts if "prompt_token_ids" in one]
    assert prompts == [tokens_of(stub, messages=CHAT["messages"])]
    ids = [t for one in parts for choice in one["choices"] for t in choice.get("token_ids") or ()]
    assert stub.post("/detokenize", {"tokens": ids}).json()["prompt"].strip() == "hello there"


def test_ids_are_not_told_unasked(stub: Server) -> None:
    assert "token_ids" not in complete(stub)["choices"][0]
    assert "prompt_token_ids" not in converse(stub)


@pytest.mark.parametrize("ask", [complete, converse])
def test_every_chunk_says_the_usage_so_far_where_that_is_asked_for(stub: Server, ask: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = ask(stub, stream=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["usage"]]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] > 1
    assert all(c["usage"]["prompt_tokens"] > 0 for c in chunks)
    options["include_usage"] = False
    assert not any(c.get("usage") for c in ask(stub, stream=True, stream_options=options))


def test_prompt_logprobs_are_by_token_id_and_the_first_place_has_none(stub: Server) -> None:
    (choice,) = complete(stub, prompt_logprobs=1)["choices"]
    first, *others = choice["prompt_logprobs"]
    ids = tokens_of(stub, prompt=ORDER)
    assert first is None
    assert len(others) == len(ids) - 1
    assert all(str(token) in place for token, place in zip(ids[1:], others, strict=True))
    assert set(others[0][str(ids[1])]) == {"logprob", "rank", "decoded_token"}
    assert converse(stub, prompt_logprobs=0)["prompt_logprobs"][0] is None
    streamed = {**CHAT, "prompt_logprobs": 0, "stream": True}
    assert stub.post("/v1/chat/completions", streamed).status_code == 400


def test_a_prompt_is_cut_from_its_beginning(stub: Server) -> None:
    ids = tokens_of(stub, prompt=ORDER)
    reply = complete(stub, truncate_prompt_tokens=2, return_token_ids=True, echo=True)
    (choice,) = reply["choices"]
    assert choice["prompt_token_ids"] == ids[-2:]
    assert reply["usage"]["prompt_tokens"] == 2
    long = complete(stub, prompt="x " * 3000, truncate_prompt_tokens=-1, max_tokens=8)
    assert long["usage"]["prompt_tokens"] == 248  # this engine's context has 256


def test_documents_are_refused_where_the_template_shows_none(stub: Server) -> None:
    response = stub.post("/v1/chat/completions", {**CHAT, "documents": [{"text": "x"}]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "documents"


def test_a_vector_is_shortened_and_has_length_one_again(stub: Server) -> None:
    given = {"model": "library", "input": "hello"}
    whole = stub.post("/v1/embeddings", given).json()["data"][0]["embedding"]
    short = stub.post("/v1/embeddings", {**given, "dimensions": 1}).json()["data"][0]["embedding"]
    assert len(whole) == 2
    assert short == [1.0]
    response = stub.post("/v1/embeddings", {**given, "dimensions": 3})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "dimensions"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"prompt": ORDER}, "text_completion"),
        ({"messages": CHAT["messages"]}, "chat.completion"),
        ({"input": "hello"}, "list"),
    ],
)
def test_an_invocation_is_told_by_its_body(stub: Server, body: dict[str, Any], kind: str) -> None:
    assert stub.post("/invocations", {"model": "library", **body}).json()["object"] == kind


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, None), ({"prompt": "x", "input": "x"}, None), ({"prompt": 5}, "prompt")],
)
def test_an_invocation_that_means_nothing_is_refused(
    stub: Server, body: dict[str, Any], param: str | None
) -> None:
    response = stub.post("/invocations", {"model": "library", **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_operators_of_other_servers_find_what_they_ask_for(stub: Server) -> None:
    assert stub.get("/version").json()["version"]
    assert stub.get("/load").json() == {"server_load": 0}
    assert stub.get("/ping").status_code == stub.post("/ping", None).status_code == 200
    page = stub.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/v1/chat/completions" in page.text
    assert "<script" not in page.text


def certificate(folder: Path) -> tuple[Path, Path]:
    made = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-out", str(made[0]), "-keyout", str(made[1])]
    subprocess.run(words, check=True, capture_output=True)
    return made


@pytest.mark.slow
def test_pages_of_named_origins_ask_over_https_and_behind_a_prefix(
    model: Path, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)
    settings: dict[str, Any] = {
        "allowed_origins": ["http://localhost:3000"],
        "tls": [str(cert), str(key)],
        "root_path": "/llm",
        "defaults": {"temperature": 0.5, "top_k": 7},
        "api_keys": ["secret"],
    }
    with stub_server(model, **settings) as server:
        assert server.address.startswith("https://")
        trusted = ssl.create_default_context(cafile=cert)
        with httpx.Client(base_url=server.address, verify=trusted) as client:
            asked = {
                "Origin": "http://localhost:3000",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization",
            }
            before = client.options("/v1/chat/completions", headers=asked)
            assert before.status_code == 200
            assert before.headers["access-control-allow-origin"] == "http://localhost:3000"
            other = client.options(
                "/v1/chat/completions", headers={**asked, "Origin": "http://evil.example"}
            )
            assert "access-control-allow-origin" not in other.headers
            key_header = {"Authorization": "Bearer secret", "Origin": "http://localhost:3000"}
            reply = client.post("/v1/chat/completions", json=CHAT, headers=key_header)
            assert reply.status_code == 200
            assert reply.headers["x-sampling-defaults"] == "temperature=0.5, top_k=7"
            given = {**CHAT, "temperature": 0, "top_k": 1}
            reply = client.post("/v1/chat/completions", json=given, headers=key_header)
            assert "x-sampling-defaults" not in reply.headers
            schema = client.get("/openapi.json", headers=key_header).json()
            assert schema["servers"] == [{"url": "/llm"}]
            assert client.get("/health").status_code == 200  # asked without a key


WORDS = ("ridgeline.cli.main", "serve", "examples/models/library", "--port", "0")


@pytest.fixture(scope="module")
def real() -> Any:
    """The shipped model as a newcomer serves it: it has no chat template of its own."""
    with running(*WORDS, "--dtype", "fp32", "--max-length", "256") as server:
        server.wait_until_ready()
        yield server


def greedy(real: Server, **fields: Any) -> Any:
    given = {"model": "library", "prompt": "def main(", "max_tokens": 12, "temperature": 0}
    response = real.post("/v1/completions", {**given, **fields, "return_token_ids": True})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.slow
def test_a_model_without_a_template_is_talked_to_plainly_and_ends_at_its_turn(
    real: Server,
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    response = real.post(
        "/v1/chat/completions", {"model": "library", "messages": messages, "max_tokens": 8}
    )
    assert response.status_code == 200, response.text
    ids = tokens_of(real, messages=messages)
    text = real.post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert text.endswith("Be brief.\n\nUser: Hello\nAssistant:")
    assert any("the plain one" in event["event"] for event in real.events)
    tools = [{"type": "function", "function": {"name": "f"}}]
    refused = real.post(
        "/v1/chat/completions", {"model": "library", "messages": messages, "tools": tools}
    )
    assert refused.status_code == 400
    assert "--chat-template" in refused.json()["error"]["message"]


@pytest.mark.slow
def test_only_allowed_tokens_come(real: Server) -> None:
    allowed = greedy(real)["token_ids"][:2]
    found = greedy(real, allowed_token_ids=allowed, ignore_eos=True)["token_ids"]
    assert set(found) <= set(allowed)
    assert len(found) == 12


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_forbids_every_token_is_told_so(real: Server, stream: bool) -> None:
    end = 0
    fields = {"model": "library", "prompt": "import", "max_tokens": 4, "stream": stream}
    limits = {"allowed_token_ids": [end], "stop_token_ids": [end], "min_tokens": 2}
    response = real.post("/v1/completions", {**fields, **limits})
    said = "no token may follow the 0 of this answer: allowed_token_ids and min_tokens forbid"
    assert said in response.text
    if not stream:
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "allowed_token_ids"
    assert greedy(real)["token_ids"]  # others go on


@pytest.mark.slow
def test_forbidden_words_do_not_come_and_the_rest_is_as_without(real: Server) -> None:
    plain = greedy(real)
    word = plain["text"].split()[0]
    assert word in plain["text"]
    without = greedy(real, bad_words=[word])
    assert word not in without["text"]
    same = greedy(real, bad_words=["zebra crossing"])
    assert same["token_ids"] == plain["token_ids"]


@pytest.mark.slow
def test_special_tokens_are_shown_where_they_are_wanted(real: Server) -> None:
    fields = {"allowed_token_ids": [2], "ignore_eos": True, "max_tokens": 2}  # padding
    assert greedy(real, **fields)["text"] == ""
    shown = greedy(real, **fields, skip_special_tokens=False)["text"]
    assert shown == "<|padding|><|padding|>"


@pytest.mark.slow
def test_prompt_logprobs_are_those_of_the_model(real: Server) -> None:
    scored = greedy(real, prompt_logprobs=0)
    echoed = greedy(real, echo=True, logprobs=0)
    ids = scored["prompt_token_ids"]
    places = zip(ids[1:], scored["prompt_logprobs"][1:], strict=True)
    ours = [place[str(token)]["logprob"] for token, place in places]
    assert ours == pytest.approx(echoed["logprobs"]["token_logprobs"][1 : len(ids)], abs=1e-5)
