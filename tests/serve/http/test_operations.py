"""What operators and other endpoints ask: health, metrics, models, tokens, embeddings, logs."""

from __future__ import annotations

import base64
import struct

import pytest
from tests.serve.http.servers import Server, until

NAMES = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"),
    *("prompt_tokens_total", "generation_tokens_total", "request_success_total"),
    *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
    *("e2e_request_latency_seconds_bucket", "request_queue_time_seconds_bucket"),
    *("request_prefill_time_seconds_bucket", "request_decode_time_seconds_bucket"),
    *("request_prompt_tokens_bucket", "request_generation_tokens_bucket", "cache_config_info"),
)


def value(metrics: str, name: str) -> float:
    lines = [line for line in metrics.splitlines() if line.startswith(f"vllm:{name}")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_health_and_readiness(stub: Server) -> None:
    health = stub.get("/health")
    assert health.status_code == 200
    assert health.json()["heartbeat_age_seconds"] < 10
    assert health.json()["slower"] == ["experts as numbers: the stub has none"]
    assert stub.get("/ready").json() == {"ready": True, "why": ""}


def test_phases_of_requests_add_up_and_have_their_bounds(stub: Server) -> None:
    given = {"model": "library", "prompt": "SAY a b c d SLOW END", "max_tokens": 20}
    assert stub.post("/v1/completions", given).status_code == 200
    text = stub.get("/metrics").text
    found: dict[str, dict[str, float]] = {"seconds_total": {}, "speedup_bound": {}}
    for line in text.splitlines():
        for name, phases in found.items():
            if line.startswith(f"ridgeline_phase_{name}{{"):
                phases[line.partition('phase="')[2].partition('"')[0]] = float(line.split()[-1])
    seconds, bounds = found.values()
    assert list(seconds) == ["tokenise", "queue", "prefill", "decode", "detokenise"]
    assert seconds["tokenise"] > 0.0
    assert seconds["decode"] > 3 * 0.02, "what the stub sleeps between the tokens"
    whole = sum(seconds.values())
    assert bounds == pytest.approx({name: whole / (whole - one) for name, one in seconds.items()})


def test_metrics_have_vllms_names_and_count(stub: Server) -> None:
    before = stub.get("/metrics").text
    given = {"model": "library", "prompt": "SAY a b c d END", "max_tokens": 50, "n": 2}
    usage = stub.post("/v1/completions", given).json()["usage"]
    after = stub.get("/metrics").text
    assert [name for name in NAMES if f"vllm:{name}" not in after] == []

    def grown(name: str) -> float:
        return value(after, name) - value(before, name)

    assert grown("request_success_total") == 2
    assert grown("e2e_request_latency_seconds_count") == 2
    assert grown("time_to_first_token_seconds_count") == 2
    assert grown("inter_token_latency_seconds_count") == usage["completion_tokens"] - 2
    assert grown("request_generation_tokens_sum") == usage["completion_tokens"]


def test_what_the_engine_counts_is_told_as_soon_as_the_answer(stub: Server) -> None:
    """Not with the next heartbeat: who asks at once would find the counts of half a second ago."""
    before = value(stub.get("/metrics").text, "generation_tokens_total")
    for turn in range(1, 6):
        given = {"model": "library", "prompt": "SAY a b c d END", "max_tokens": 50}
        tokens = stub.post("/v1/completions", given).json()["usage"]["completion_tokens"]
        after = value(stub.get("/metrics").text, "generation_tokens_total")
        assert after - before == turn * tokens


def test_the_memory_ledger_is_served(stub: Server) -> None:
    ledger = stub.get("/memory").json()
    assert ledger["tokens"] == ledger["num_blocks"] * ledger["block_size"]
    assert sum(row["bytes"] for row in ledger["rows"]) == ledger["total_bytes"]


def test_adapters_come_and_go_as_models(stub: Server) -> None:
    given = {"lora_name": "pirate", "lora_path": "/somewhere"}
    assert stub.post("/v1/load_lora_adapter", given).status_code == 200
    names = [card["id"] for card in stub.get("/v1/models").json()["data"]]
    assert names[0] == "library"
    assert "pirate" in names
    assert stub.get("/v1/models/pirate").json()["parent"] == "library"
    answer = stub.post("/v1/completions", {"model": "pirate", "prompt": "x"})
    assert answer.json()["model"] == "pirate"
    gone = {"lora_name": "pirate"}
    assert stub.post("/v1/unload_lora_adapter", gone).status_code == 200
    assert stub.post("/v1/unload_lora_adapter", gone).status_code == 404
    assert stub.post("/v1/completions", {"model": "pirate", "prompt": "x"}).status_code == 404


@pytest.mark.parametrize("given", ["one text", ["one", "two three"], [5, 6, 7], [[5], [6, 7]]])
def test_embeddings_as_numbers_and_as_base64(stub: Server, given: object) -> None:
    body = {"model": "library", "input": given}
    plain = stub.post("/v1/embeddings", body).json()
    packed = stub.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json()
    assert plain["usage"]["prompt_tokens"] > 0
    for one, other in zip(plain["data"], packed["data"], strict=True):
        raw = base64.b64decode(other["embedding"])
        assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == one["embedding"]


@pytest.mark.parametrize("text", ["", "hello  there\n", "日本 é 🎈", "x" * 10000])
def test_tokens_and_back(stub: Server, text: str) -> None:
    found = stub.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    back = stub.post("/detokenize", {"tokens": found["tokens"]}).json()
    assert back == {"prompt": text, "content": text}


def test_a_request_id_goes_through_and_into_the_log(stub: Server) -> None:
    given = {"model": "library", "prompt": "x", "user": "me"}
    response = stub.post("/v1/completions", given, headers={"X-Request-Id": "my-id.7"})
    assert response.headers["x-request-id"] == "my-id.7"
    (line,) = until(
        lambda: [one for one in stub.events if one.get("request_id") == "my-id.7"], "a log line"
    )
    assert line["status"] == 200
    assert line["user"] == "me"
    assert line["finish_reasons"] == ["stop"]
    assert line["output_tokens"] == response.json()["usage"]["completion_tokens"]
    made = stub.post("/v1/completions", given, headers={"X-Request-Id": "no good"})
    assert made.headers["x-request-id"] not in ("", "no good")
