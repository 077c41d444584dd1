"""Two engines for prompts and two for the rest, each a command of its own, killed one by one."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.serve.http.servers import LIBRARY, Server, running, until

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.timeout(900)]
ENGINE = ["--dtype", "fp32", "--device", "cpu", "--threads", "1", "--kv-bytes", "16MB"]
PROMPTS = ["import os\n", "def first(self, name):\n    return ", "class Path:\n    " * 30, "x"]
COUNT = 100


@contextmanager
def engine(role: str, key: Path, port: int = 0) -> Iterator[Server]:
    words = ["serve", str(LIBRARY), "--role", role, "--cluster-key-file", str(key)]
    with running("ridgeline.cli.main", *words, "--port", str(port), *ENGINE, "--debug") as server:
        yield server


def body(prompt: str) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": COUNT, "temperature": 0, "ignore_eos": True}


def whole(server: Server, prompt: str) -> str:
    answer = httpx.post(f"{server.address}/v1/completions", json=body(prompt), timeout=90)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def streamed(server: Server, prompt: str) -> tuple[str, str]:
    """The text that came, and the error that ended it."""
    text, error = "", ""
    asked = {**body(prompt), "stream": True}
    where = f"{server.address}/v1/completions"
    with httpx.stream("POST", where, json=asked, timeout=90) as answer:
        if answer.status_code != 200:
            return "", answer.read().decode()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                error = event.get("error", {}).get("message", error)
                text += "".join(one["text"] for one in event.get("choices", ()))
    return text, error


def test_engines_of_four_hosts_answer_like_one_and_survive_each_others_death(
    tmp_path: Path,
) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    with ExitStack() as stack:
        alone = stack.enter_context(
            running("ridgeline.cli.main", "serve", str(LIBRARY), "--port", "0", *ENGINE)
        )
        roles = ["prefill", "prefill", "decode", "decode"]
        engines = [stack.enter_context(engine(role, key)) for role in roles]
        for one in (alone, *engines):
            one.wait_until_ready()
        expected = {prompt: whole(alone, prompt) for prompt in PROMPTS}
        alone.process.send_signal(signal.SIGTERM)
        front_words = ["serve", str(LIBRARY), "--port", "0", "--cluster-key-file", str(key)]
        for role, one in zip(roles, engines, strict=True):
            front_words += [f"--{role}", one.address]
        front = stack.enter_context(running("ridgeline.cli.main", *front_words))
        front.wait_until_ready()

        def ups() -> list[bool]:
            return [host["up"] for host in front.get("/health").json()["hosts"]]

        assert ups() == [True] * 4
        with ThreadPoolExecutor(8) as pool:
            assert (
                dict(zip(PROMPTS, pool.map(lambda p: whole(front, p), PROMPTS), strict=True))
                == expected
            )
            metrics = front.get("/metrics").text
            assert 'kv_transfers_total{model_name="library"} 0.0' not in metrics

            asked = PROMPTS * 6
            open_answers = [pool.submit(streamed, front, prompt) for prompt in asked]
            until(lambda: sum(h["open"] for h in front.get("/health").json()["hosts"]), "a load")
            for victim in (engines[0], engines[2]):
                victim.process.send_signal(signal.SIGKILL)
                victim.process.wait()
            answers = [one.result() for one in open_answers]
            for prompt, (text, error) in zip(asked, answers, strict=True):
                assert expected[prompt].startswith(text)
                assert (text == expected[prompt]) is (error == ""), error
            until(lambda: ups() == [False, True, False, True], "the news of their end")
            assert all(whole(front, prompt) == expected[prompt] for prompt in PROMPTS)

        for index in (0, 2):
            port = int(engines[index].address.rpartition(":")[2])
            stack.enter_context(engine(roles[index], key, port)).wait_until_ready()
        until(lambda: ups() == [True] * 4, "their return")
        for survivor in (engines[1], engines[3]):
            survivor.process.send_signal(signal.SIGKILL)
        until(lambda: ups() == [True, False, True, False], "the news of the others' end")
        assert all(whole(front, prompt) == expected[prompt] for prompt in PROMPTS)
