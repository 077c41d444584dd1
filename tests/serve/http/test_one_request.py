"""Whatever one request asks for, the engine goes on, and its neighbour's stream is as it would be.

A real server around a real model of one layer, in which one token raises and another is NaN.
"""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.http.poisoned_model import NAN, RAISES, write_poisoned
from tests.serve.http.servers import Server, running, sse

WORDS = ("--port", "0", "--dtype", "fp32", "--kv-bytes", "32MiB", "--threads", "1", "--debug")
PROMPT = [300, 301, 302, 303, 304, 305]
NEIGHBOURS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"seed": 5, "repetition_penalty": 1.1, "logprobs": 1},
    "several": {"seed": 6, "n": 2, "top_p": 0.9},
}
HIDDEN = 128
pytestmark = pytest.mark.slow
"""A real engine of a model of its own; `serve/engine/test_attempt.py` has steps fail in process."""


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("poisoned")
    poisoned = str(write_poisoned(model, folder / "library"))
    words = ("ridgeline.cli.main", "serve", poisoned, *WORDS, "--trust-remote-code")
    with running(*words, HF_MODULES_CACHE=str(folder / "modules")) as found:
        found.wait_until_ready()
        yield found


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "library", "prompt": PROMPT, "max_tokens": 8, **fields}


def stream(server: Server, kind: str, began: threading.Event) -> list[Any]:
    """Texts, log-probabilities and reasons of a neighbour's stream, in order."""
    never = {str(RAISES): -100, str(NAN): -100}
    asked = body(stream=True, max_tokens=100, logit_bias=never, ignore_eos=True, **NEIGHBOURS[kind])
    found: dict[int, list[Any]] = {}
    url = server.address + "/v1/completions"
    with httpx.stream("POST", url, json=asked, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                began.set()
                document = json.loads(line.removeprefix("data: "))
                assert "error" not in document, document
                for choice in document["choices"]:
                    kept = {name: choice[name] for name in ("text", "logprobs", "finish_reason")}
                    found.setdefault(choice["index"], []).append(kept)
    return [found[index] for index in sorted(found)]


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> dict[str, list[Any]]:
    return {kind: stream(server, kind, threading.Event()) for kind in NEIGHBOURS}


@contextmanager
def neighbours(server: Server, undisturbed: dict[str, list[Any]]) -> Iterator[None]:
    """They have begun; afterwards they end as if nothing had been, in the same engine."""
    pid = server.engine_pid()
    with ThreadPoolExecutor(len(NEIGHBOURS)) as pool:
        running: dict[str, Future[list[Any]]] = {}
        for kind in NEIGHBOURS:
            began = threading.Event()
            running[kind] = pool.submit(stream, server, kind, began)
            assert began.wait(60)
        yield
        for kind, one in running.items():
            assert texts(one.result()) == texts(undisturbed[kind])
    assert server.engine_pid() == pid


def texts(found: list[Any]) -> Any:
    """Without how chunks were cut, and log-probabilities to what float32 keeps in any batch."""
    return [
        (
            "".join(choice["text"] for choice in choices),
            [
                round(value, 3)
                for choice in choices
                for value in (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
            ],
            choices[-1]["finish_reason"],
        )
        for choices in found
    ]


def check_error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error


POISONS: dict[str, dict[str, Any]] = {
    "a token that raises": {"prompt": [*PROMPT, RAISES]},
    "in several answers": {"prompt": [RAISES, 7], "n": 3},
    "in beams": {"prompt": [5, RAISES], "use_beam_search": True, "n": 2, "temperature": 0},
    "in one of two prompts": {"prompt": [[5, 6], [*PROMPT, RAISES]]},
    "said by the model": {"logit_bias": {str(RAISES): 100}, "temperature": 0},
    "a token that is NaN": {"prompt": [*PROMPT, NAN]},
    "NaN in several answers": {"prompt": [NAN], "n": 2, "seed": 1},
    "NaN in beams": {"prompt": [NAN], "use_beam_search": True, "n": 2, "temperature": 0},
    "NaN that is echoed": {"prompt": [5, NAN, 6], "echo": True, "logprobs": 1},
    "NaN under a grammar": {"prompt": [NAN], "guided_regex": "[a-z]+"},
}


def test_requests_at_which_the_model_fails_end_alone(
    server: Server, undisturbed: dict[str, list[Any]]
) -> None:
    with neighbours(server, undisturbed), ThreadPoolExecutor(4) as pool:
        asked = [body(**poison) for poison in POISONS.values()]
        answers = pool.map(lambda one: server.post("/v1/completions", one), asked)
        for kind, response in zip(POISONS, answers, strict=True):
            message = check_error(response, 500)["message"]
            assert message.startswith("the engine failed at this request: "), kind
            assert ("no finite numbers" in message) == ("NaN" in kind), kind
            assert ("IndexError: index out of range" in message) == ("NaN" not in kind), kind


def test_in_a_stream_the_error_is_the_last_event(
    server: Server, undisturbed: dict[str, list[Any]]
) -> None:
    bias = {str(RAISES): 3.0}
    with neighbours(server, undisturbed):
        asked = body(stream=True, logit_bias=bias, seed=3, max_tokens=900, ignore_eos=True)
        response = server.post("/v1/completions", asked)
        documents = sse(response)
        assert "choices" in documents[0]
        assert documents[-1]["error"]["code"] == 500


def test_embedding_a_poison_fails_alone(server: Server, undisturbed: dict[str, list[Any]]) -> None:
    with neighbours(server, undisturbed):
        for poison in (RAISES, NAN):
            given = {"model": "library", "input": [[5, 6], [5, poison]]}
            check_error(server.post("/v1/embeddings", given), 500)


def send(server: Server, content: bytes, seconds: float = 120) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    url = server.address + "/v1/completions"
    return httpx.post(url, content=content, headers=headers, timeout=seconds)


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "denormal penalty": ({"repetition_penalty": 5e-324}, "repetition_penalty"),
    "tiny penalty": ({"repetition_penalty": 1e-45}, "repetition_penalty"),
    "an expression in too many ways": (
        {"guided_regex": "(((([a-z]{1,9}){1,9}){1,9}){1,9})x"},
        "grammar",
    ),
    "an expression behind much text": (
        {"guided_regex": "a" * 2000 + "(((([a-z]{1,9}){1,9}){1,9}){1,9})x"},
        "grammar",
    ),
    "a nested schema": ({"guided_json": '{"items":' * 2000 + "1" + "}" * 2000}, "grammar"),
    "half a character": ({"guided_choice": ["\ud800"]}, "guided_choice"),
}


def test_what_a_request_can_cause_is_refused_in_it(
    server: Server, undisturbed: dict[str, list[Any]]
) -> None:
    with neighbours(server, undisturbed):
        for kind, (fields, parameter) in HOSTILE.items():
            content = json.dumps(body(**fields)).encode()
            error = check_error(send(server, content), 400)
            assert error["param"] == parameter, kind


def write_adapter(folder: Path, seed: int, rank: int = 4, **settings: Any) -> Path:
    """Of one layer, as PEFT writes it."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    chance, header, data = np.random.default_rng(seed), {}, b""
    for side, shape in (("A", (rank, HIDDEN)), ("B", (HIDDEN, rank))):
        tensor = chance.normal(size=shape).astype("<f4")
        name = f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight"
        at = [len(data), len(data) + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": at}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    body = struct.pack("<Q", len(text)) + text + data
    (folder / "adapter_model.safetensors").write_bytes(body)
    return folder


ADAPTERS: dict[str, tuple[int, dict[str, Any]]] = {
    "an alpha of text": (4, {"lora_alpha": "x"}),
    "an alpha of null": (4, {"lora_alpha": None}),
    "no rank": (0, {}),
    "an expression that is none": (4, {"target_modules": "("}),
    "a pattern that is a list": (4, {"alpha_pattern": [1]}),
    "too large an alpha": (4, {"lora_alpha": 1e300}),
}


def load(server: Server, name: str, path: str) -> httpx.Response:
    url = server.address + "/v1/load_lora_adapter"
    return httpx.post(url, json={"lora_name": name, "lora_path": path}, timeout=120)


NO_PATHS = [
    ("a", "/tmp/\0x"),
    ("a\0b", "/tmp"),
    ("a", "/dev/zero"),
    ("a", "/proc/self/mem"),
    ("\n", "/"),
]


def test_an_adapter_that_is_none_is_refused(
    server: Server, undisturbed: dict[str, list[Any]], tmp_path: Path
) -> None:
    with neighbours(server, undisturbed):
        for kind, (rank, settings) in ADAPTERS.items():
            folder = write_adapter(tmp_path / kind, 1, rank, **settings)
            error = check_error(load(server, "bad", str(folder)), 400)
            assert str(folder) in error["message"]
        for name, path in NO_PATHS:
            check_error(load(server, name, path), 400)
    assert [one["id"] for one in server.get("/v1/models").json()["data"]] == ["library"]


def test_an_adapter_with_an_expression_without_end_is_refused(
    server: Server, undisturbed: dict[str, list[Any]], tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "bad", 1, alpha_pattern={"([a-z._0-9]+)+X": 3})
    with neighbours(server, undisturbed):
        assert "took longer" in check_error(load(server, "bad", str(folder)), 400)["message"]


def test_vectors_of_an_adapter_are_the_adapters(server: Server, tmp_path: Path) -> None:
    assert load(server, "one", str(write_adapter(tmp_path / "one", 1))).status_code == 200

    def vector(model: str) -> Any:
        response = server.post("/v1/embeddings", {"model": model, "input": [PROMPT, [7]]})
        assert response.json()["model"] == model
        return np.array([one["embedding"] for one in response.json()["data"]])

    base, adapted = vector("library"), vector("one")
    # One token attends to itself alone, whatever the queries are.
    np.testing.assert_allclose(base[1], adapted[1], atol=1e-5)
    assert np.abs(base[0] - adapted[0]).max() > 1e-3
    with ThreadPoolExecutor(2) as pool:  # in one batch
        both = [pool.submit(vector, name) for name in ("library", "one")]
        for one, alone in zip(both, (base, adapted), strict=True):
            np.testing.assert_allclose(one.result(), alone, atol=1e-5)
    assert server.post("/v1/unload_lora_adapter", {"lora_name": "one"}).status_code == 200


EDGES = st.sampled_from(
    [0.0, -0.0, 5e-324, -5e-324, 2.3e-308, 1e-45, 1e-38, 1e-10, 1e-5, 0.01, 0.5, 1.0, 2.0, 10.0,
     100.0, 3.5e38, 1e308, -1e308, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**40, -1, 0, 1, 2, 20,
     True, False, None, "1", [], {}, math.inf, -math.inf, math.nan]
)  # fmt: skip
NUMBERS = st.one_of(EDGES, st.floats(), st.integers(), st.floats(width=32), st.floats(0, 2))
FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "seed", "n", "best_of", "max_tokens", "min_tokens", "logprobs", "priority",
    "length_penalty", "use_beam_search", "ignore_eos", "echo", "stream",
)  # fmt: skip


def sweep(server: Server, num_examples: int) -> None:
    @settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        fields=st.dictionaries(st.sampled_from(FIELDS), NUMBERS, min_size=1, max_size=4),
        bias=st.dictionaries(st.sampled_from(["5", "2047", "0", "-1", "x"]), NUMBERS, max_size=3),
    )
    def ask(fields: dict[str, Any], bias: dict[str, Any]) -> None:
        given = {**body(max_tokens=2), **fields}
        if bias:
            given["logit_bias"] = bias
        response = send(server, json.dumps(given).encode())
        assert response.status_code < 500, response.text
        assert '"code":500' not in response.text
        if response.status_code != 200:
            check_error(response, response.status_code)

    ask()


def test_no_number_is_our_fault(server: Server) -> None:
    sweep(server, 40)


def test_no_number_is_our_fault_at_length(server: Server) -> None:
    sweep(server, 2000)


HUGE: dict[str, dict[str, Any]] = {
    "biases": {"logit_bias": {str(at): 1 for at in range(3 * 10**5)}},
    "wrong biases": {"logit_bias": {str(at): "x" for at in range(10**5)}},
    "stops": {"stop": ["ab"] * 10**5},
    "a stop": {"stop": "x" * 10**6},
    "stop ids": {"stop_token_ids": list(range(10**5))},
    "fields": {f"field{at}": at for at in range(10**5)},
    "choices": {"guided_choice": [f"word{at}" for at in range(10**5)]},
    "wrong choices": {"guided_choice": [1] * 10**5},
    "prompts": {"prompt": [[5]] * 10**5},
    "wrong prompts": {"prompt": [None] * 10**5},
    "wrong lists of prompts": {"prompt": [[None]] * 10**5},
    "a number": {"seed": 10**4000},
    "a longer number": {"seed": "BIG"},
}


@pytest.mark.parametrize("kind", HUGE)
def test_what_is_huge_is_refused_at_once(server: Server, kind: str) -> None:
    content = json.dumps(body(**HUGE[kind])).replace('"BIG"', "9" * 5000).encode()
    response = send(server, content, 20)
    assert response.status_code == 400, response.text
    assert len(response.text) < 2000


def test_messages_of_very_many_wrong_parts_are_refused_at_once(server: Server) -> None:
    for wrong in (
        {"role": "user", "content": [{}] * 10**5},
        {"role": "assistant", "tool_calls": [{}] * 10**5},
    ):
        given = {"model": "library", "messages": [wrong]}
        url = server.address + "/v1/chat/completions"
        check_error(httpx.post(url, json=given, timeout=20), 400)
