"""Requests made from the API's own schema: whatever they say, no answer is a 5xx."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from tests.serve.http.servers import Server

OPERATIONS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v2/chat"),
    ("POST", "/generate"),
    ("POST", "/completion"),
    ("POST", "/infill"),
    ("POST", "/apply-template"),
    ("POST", "/api/chat"),
    ("POST", "/v1beta/models/{name}:generateContent"),
    ("POST", "/v1beta/models/{name}:countTokens"),
    ("POST", "/api/generate"),
    ("POST", "/api/embed"),
    ("POST", "/api/show"),
    ("GET", "/v1/responses/{response_id}"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/v1/embeddings"),
    ("POST", "/invocations"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/memory"),
    ("GET", "/load"),
    ("GET", "/version"),
    ("POST", "/ping"),
]

OPENAIS = {"message", "type", "param", "code"}
SHAPES = {
    "/v1/messages": {"type", "message"},
    "/v1beta": {"code", "message", "status"},
    "/api/": None,
}
"""What stands in an error where it is not OpenAI's; None: it is a text."""


def fuzz(server: Server, method: str, path: str, num_examples: int) -> None:
    """Half of the requests fit the schema, half break it; all name the served model if any."""
    schema = schemathesis.openapi.from_url(server.address + "/openapi.json")
    operation = schema[path][method]
    fitting = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    breaking = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    cases = fitting if method == "GET" else fitting | breaking
    statuses: list[int] = []

    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "library"
        response = case.call(base_url=server.address, timeout=60)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            error = response.json()["error"]
            shape = next((one for begin, one in SHAPES.items() if path.startswith(begin)), OPENAIS)
            assert isinstance(error, str) if shape is None else set(error) == shape
        statuses.append(response.status_code)

    ask()
    assert statuses
    assert httpx.get(server.address + "/health").status_code == 200


@pytest.mark.sweep(every=12)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda part: part)
def test_no_request_is_our_fault(stub: Server, method: str, path: str) -> None:
    fuzz(stub, method, path, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda part: part)
def test_no_request_is_our_fault_at_length(stub: Server, method: str, path: str) -> None:
    fuzz(stub, method, path, 500)
