"""Several models behind one front, and pipelines of them, through real servers of stub engines."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.serve.http.servers import Server, sse, stub_server

FILE = """
[[models]]
model = "{model}"
name = "small"
[[models]]
model = "{model}"
name = "large"
[[pipelines]]
name = "both"
[[pipelines.stages]]
model = "small"
max_tokens = 40
[[pipelines.stages]]
model = "large"
prompt = "SAY heard {{output}} END of {{request}}"
"""


@pytest.fixture(scope="module")
def several(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("several") / "models.toml"
    path.write_text(FILE.format(model=model))
    with stub_server(path) as server:
        yield server


def answered(server: Server, model: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    wanted = f'vllm:e2e_request_latency_seconds_count{{model_name="{model}"}}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))


def test_a_request_goes_to_the_model_that_it_names(several: Server) -> None:
    before = {name: answered(several, name) for name in ("small", "large")}
    given = {"model": "large", "prompt": "SAY a b c END", "max_tokens": 50}
    reply = several.post("/v1/completions", given).json()
    assert reply["model"] == "large"
    assert answered(several, "small") == before["small"]
    assert answered(several, "large") > before["large"]
    first = several.post("/v1/completions", {**given, "model": ""}).json()
    assert first["model"] == "small"


def test_all_models_and_pipelines_are_listed(several: Server) -> None:
    cards = several.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["small", "large", "both"]
    assert several.get("/v1/models/both").json()["root"] == "small → large"
    assert several.get("/v1/models/large").json()["id"] == "large"
    assert several.get("/v1/models/none").status_code == 404


def test_a_name_that_nobody_has_is_refused_with_those_that_are_there(several: Server) -> None:
    reply = several.post("/v1/completions", {"model": "other", "prompt": "a"})
    assert reply.status_code == 404
    assert reply.json()["error"]["message"].endswith("known: small, large, both")


def test_memory_health_and_metrics_tell_of_every_model(several: Server) -> None:
    memory = several.get("/memory").json()
    assert memory["models"].keys() == {"small", "large"}
    assert memory["total_bytes"] == sum(one["total_bytes"] for one in memory["models"].values())
    assert several.get("/memory?model=large").json() == memory["models"]["large"]
    assert several.get("/health").json()["models"] == {"small": "ok", "large": "ok"}
    text = several.get("/metrics").text
    types = [line for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(types) == len(set(types))


def test_a_pipeline_gives_each_stage_what_the_one_above_it_wrote(several: Server) -> None:
    given = {"model": "both", "prompt": "SAY red green END", "max_tokens": 60}
    reply = several.post("/v1/completions", given).json()
    said = reply["choices"][0]["text"]
    assert said.split() == ["heard", "red", "green"]
    assert reply["usage"]["completion_tokens"] > len(said.split())
    streamed = sse(several.post("/v1/completions", {**given, "stream": True}))
    assert "".join(one["choices"][0]["text"] for one in streamed) == said


def test_a_pipeline_answers_chats_and_many_at_once(several: Server) -> None:
    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"SAY n{number} END"}]
        given = {"model": "both", "messages": messages, "max_tokens": 60}
        reply = several.post("/v1/chat/completions", given).json()
        return str(reply["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(ask, range(8)))
    assert [reply.split() for reply in replies] == [["heard", f"n{one}"] for one in range(8)]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt: a pipeline takes one text"),
        ("/v1/chat/completions", {"messages": []}, "takes a text as the last message"),
        ("/v1/embeddings", {"input": "a"}, "both is a pipeline, which answers"),
        ("/v1/completions", {"prompt": ""}, "stage small: prompt has no token"),
    ],
)
def test_what_a_pipeline_cannot_take_is_refused(
    path: str, body: dict[str, object], said: str, several: Server
) -> None:
    reply = several.post(path, {"model": "both", **body})
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]


def test_other_apis_name_their_model_in_their_own_ways(several: Server) -> None:
    body = {"messages": [{"role": "user", "content": "SAY a END"}], "stream": False}
    chat = several.post("/api/chat", {**body, "model": "large:latest"}).json()
    assert chat["model"] == "large"
    shown = several.post("/api/show", {"name": "large:latest"})
    assert shown.json()["details"]["family"] == "large"
    digests = {one["digest"] for one in several.get("/api/tags").json()["models"]}
    assert len(digests) == 2
    asked = {"contents": "SAY a END"}
    reply = several.post("/v1beta/models/large:generateContent", asked).json()
    assert reply["modelVersion"] == "large"
    missing = several.post("/v1beta/models/none:generateContent", asked)
    assert missing.json()["error"]["status"] == "NOT_FOUND"
