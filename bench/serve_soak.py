"""Whether a server stays as it is under days of mixed requests: memory flat, every block returned.

    python bench/serve_soak.py [--requests 2000] [--rounds 7] [--at-once 16] [MODEL]

Starts `ridgeline serve MODEL` with two adapters and sends rounds of requests of sixteen kinds:
whole and streamed completions, chats, several choices, grammars, embeddings, adapters, prompts that
fill the context, clients that leave in the middle, requests that are refused, the same in
Ollama's, Google's, Anthropic's and Cohere's words, and as responses that are kept or computed in
the background. Behind each round
nothing may be open: no request runs or waits, and no sequence holds a block of the KV cache. The
memory of all the server's processes is read then; the table says how far rounds from the second on
lie apart, since the first one fills caches that stay.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

LIBRARY = Path(__file__).parents[1] / "examples/models/library"
SETTLE_SECONDS = 60.0
"""The longest wait until what clients have left behind is gone."""
PAUSE_SECONDS = 1.0
"""A wait in which an engine without work gives freed memory back to the system."""
WORDS = ("import", "def", "class", "return", "self", "for", "in", "range", "if", "else", "None")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What one round has left behind."""

    statuses: Counter[str]
    seconds: float
    resident_bytes: int
    """The memory of all the server's processes."""
    running: float
    waiting: float
    cache_usage: float


def write_adapter(model: Path, folder: Path, seed: int) -> None:
    """A LoRA adapter of a model with random weights."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    wrapped = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model),
        LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    )
    wrapped.save_pretrained(str(folder))


def request_of(kind: int, chance: random.Random, longest: int) -> tuple[str, dict[str, Any]]:
    """The path and body of one request."""
    prompt = " ".join(chance.choices(WORDS, k=chance.randint(3, 60)))
    plain: dict[str, Any] = {"prompt": prompt, "max_tokens": chance.randint(1, 24), "seed": kind}
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 16}
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    return [
        ("/v1/completions", plain),
        ("/v1/completions", {**plain, "stream": True, "logprobs": 2}),
        ("/v1/chat/completions", chat),
        ("/v1/completions", {**plain, "n": 3, "temperature": 1.2}),
        ("/v1/completions", {**plain, "max_tokens": 60, "structured_outputs": {"json": schema}}),
        ("/v1/embeddings", {"input": [prompt, prompt[:20]]}),
        ("/v1/completions", {**plain, "model": chance.choice(("first", "second"))}),
        ("/v1/completions", {**plain, "prompt": prompt * 40, "truncate_prompt_tokens": longest}),
        ("/v1/completions", {**plain, "max_tokens": 200, "ignore_eos": True, "stream": True}),
        ("/v1/completions", {**plain, "temperature": 9}),
        ("/v1/responses", {"input": prompt, "max_output_tokens": 16}),
        ("/api/chat", {"messages": chat["messages"], "options": {"num_predict": 16}}),
        ("/v1beta/models/base:streamGenerateContent?alt=sse", {"contents": prompt}),
        ("/v1/responses", {"input": prompt, "max_output_tokens": 60, "background": True}),
        ("/v1/messages", {**chat, "model": "base", "stream": True, "top_k": 5}),
        ("/v1/generate", {"prompt": prompt, "num_generations": 2, "stream": True}),
    ][kind]


KINDS, LEAVES, REFUSED = 16, 8, 9
"""How many kinds there are; those whose clients leave in the middle, and that are refused."""


async def ask(client: httpx.AsyncClient, number: int, chance: random.Random, longest: int) -> str:
    """Send one request; what became of it."""
    kind = number % KINDS
    path, body = request_of(kind, chance, longest)
    if kind != LEAVES:
        response = await client.post(path, json=body)
        fitting = response.status_code == (400 if kind == REFUSED else 200)
        return "as expected" if fitting else f"{path}: {response.status_code} {response.text[:120]}"
    pieces = chance.randint(1, 5)
    async with client.stream("POST", path, json=body) as response:
        async for _ in response.aiter_bytes():
            pieces -= 1
            if not pieces:
                break
    return "as expected" if response.status_code == 200 else f"{path}: {response.status_code}"


async def run_round(address: str, pid: int, requests: int, at_once: int, seed: int) -> RoundResult:
    """Send a round's requests, wait until nothing is open, and look."""
    chance, statuses = random.Random(seed), Counter[str]()
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=address, timeout=600) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        longest = listed[0]["max_model_len"] - 30
        numbers = iter(range(requests))

        async def work() -> None:
            for number in numbers:
                statuses[await ask(client, number, chance, longest)] += 1

        await asyncio.gather(*(work() for _ in range(at_once)))
        seconds = time.monotonic() - began
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            text = (await client.get("/metrics")).text
            names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
            running, waiting, usage = (metric(text, name) for name in names)
            if not (running or waiting or usage) or time.monotonic() > end:
                break
            await asyncio.sleep(0.2)
    await asyncio.sleep(PAUSE_SECONDS)
    return RoundResult(
        statuses=statuses,
        seconds=seconds,
        resident_bytes=tree_bytes(pid),
        running=running,
        waiting=waiting,
        cache_usage=usage,
    )


def metric(text: str, name: str) -> float:
    """One of vLLM's gauges."""
    found = re.search(rf"^vllm:{name}{{.*?}} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


def tree_bytes(pid: int) -> int:
    """Resident memory of a process and all that it started."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,rss="], capture_output=True, text=True, check=True
    )
    rows = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    ours = {pid}
    while more := {one for one, parent, _ in rows if parent in ours} - ours:
        ours |= more
    return 1024 * sum(size for one, _, size in rows if one in ours)


def table(rounds: list[RoundResult]) -> str:
    """The rounds as a table, and what they show together."""
    rows = ["| round | requests | other than expected | seconds | RSS MB | blocks held |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    for number, one in enumerate(rounds, start=1):
        count, good = one.statuses.total(), one.statuses["as expected"]
        rows.append(
            f"| {number} | {count} | {count - good} | {one.seconds:.0f} |"
            f" {one.resident_bytes / 1e6:.1f} | {one.cache_usage:.2%} |"
        )
    return "\n".join(rows)


def spread(rounds: list[RoundResult]) -> float:
    """How far the memory behind rounds from the second on lies apart, over the least of it."""
    sizes = [one.resident_bytes for one in rounds[1:]]
    return max(sizes) / min(sizes) - 1


def main() -> int:
    """Soak and print; 1 where something is left behind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, default=LIBRARY)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-once", type=int, default=16)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "ridgeline.cli.main", "serve", str(asked.model)]
        words += ["--port", "0", "--served-model-name", "base", "--kv-bytes", "64MiB"]
        for seed, name in enumerate(("first", "second")):
            write_adapter(asked.model, Path(folder) / name, seed)
            words += ["--adapters", f"{name}={folder}/{name}"]
        log = (Path(folder) / "log").open("wb")
        with log, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log) as server:
            try:
                assert server.stdout is not None
                found = re.search(r"http://\S+?(?=/v1)", server.stdout.readline().decode())
                assert found, (Path(folder) / "log").read_text()[-2000:]
                rounds: list[RoundResult] = []
                for seed in range(asked.rounds):
                    working = run_round(found[0], server.pid, asked.requests, asked.at_once, seed)
                    rounds.append(asyncio.run(working))
                    sys.stderr.write(table(rounds[-1:]).splitlines()[-1] + "\n")
                    others = [one for one in rounds[-1].statuses if one != "as expected"]
                    sys.stderr.writelines(f"{one}\n" for one in others[:5])
            finally:
                server.terminate()
    left = [one for one in rounds if one.running or one.waiting or one.cache_usage]
    sys.stdout.write(table(rounds) + "\n")
    if len(rounds) > 2:
        sys.stdout.write(f"\nRSS of rounds 2 to {len(rounds)} within {spread(rounds):.2%}\n")
    return int(bool(left))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
