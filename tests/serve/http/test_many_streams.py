"""Two hundred streams at once through the real server: every token exactly once, in order."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from tests.serve.http.servers import Server, running

NUM_STREAMS = 200
TOKENS = 24
WORDS = ("--port", "0", "--dtype", "fp32", "--kv-bytes", "64MiB", "--threads", "1")


async def streamed(client: httpx.AsyncClient, prompt: str) -> tuple[str, int, int]:
    """The text put together, the number of chunks with text, and the tokens by usage."""
    text, chunks, tokens = "", 0, 0
    asked = {
        "model": "library", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    async with client.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            for choice in event["choices"]:
                text += choice["text"]
                chunks += bool(choice["text"])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    return text, chunks, tokens


async def all_at_once(server: Server, prompts: list[str]) -> list[tuple[str, int, int]]:
    limits = httpx.Limits(max_connections=len(prompts))
    async with httpx.AsyncClient(base_url=server.address, limits=limits, timeout=240) as client:
        return await asyncio.gather(*(streamed(client, prompt) for prompt in prompts))


@pytest.mark.slow
def test_two_hundred_streams_each_get_every_token_once(model: Path) -> None:
    prompts = [f"def f{number % 20}(self, " for number in range(NUM_STREAMS)]
    with running("ridgeline.cli.main", "serve", str(model), *WORDS) as server:
        server.wait_until_ready()
        found = asyncio.run(all_at_once(server, prompts))
        with httpx.Client(base_url=server.address, timeout=60) as client:
            for number in range(20):
                asked = {"model": "library", "prompt": prompts[number], "max_tokens": TOKENS,
                         "temperature": 0, "ignore_eos": True}  # fmt: skip
                alone = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
                assert {text for text, _, _ in found[number::20]} == {alone}
    assert {tokens for _, _, tokens in found} == {TOKENS}
    assert all(1 < chunks <= TOKENS for _, chunks, _ in found)
