"""Images in conversations, through the real server: its tokens beside transformers' `generate`."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.serve.http.servers import Server, running
from tests.serve.vision.tiny_seers import Judge, save

WORDS = ("--port", "0", "--dtype", "fp32", "--kv-bytes", str(1 << 24), "--debug")
CHUNK = 48
"""Tokens of a step: images and long texts come in chunks."""
GRADIENT = Image.linear_gradient("L").resize((50, 40)).convert("RGB")
RED = Image.new("RGB", (30, 60), (200, 10, 30))
BLUE = Image.new("RGB", (30, 60), (10, 30, 200))
COUNT = 12


def url(image: Image.Image, form: str = "PNG") -> str:
    held = io.BytesIO()
    image.save(held, form)
    return f"data:image/{form.lower()};base64," + base64.b64encode(held.getvalue()).decode()


def part(image: Image.Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(image)}}


@dataclass(frozen=True)
class Seen:
    """A server, and transformers beside it."""

    server: Server
    judge: Judge

    def chat(self, *content: Any, path: str = "/v1/chat/completions", **fields: Any) -> Any:
        parts = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": COUNT}
        given = {"temperature": 0, "return_token_ids": True, **fields}
        return self.server.post(path, {**body, **given})

    def ids(self, *content: Any, **fields: Any) -> tuple[list[int], list[int], int]:
        """Tokens of the prompt and of the answer, and how many were cached."""
        reply = self.chat(*content, **fields)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        usage = found["usage"]
        prompt = found["prompt_token_ids"]
        assert usage["prompt_tokens"] == len(prompt)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return prompt, found["choices"][0]["token_ids"], cached

    def expected(self, text: str, *images: Image.Image) -> tuple[list[int], list[int]]:
        return self.judge.answer(f"user: {text}\nassistant:", [*images], count=COUNT)


def seen(family: str, folder: Path, *words: str) -> Iterator[Seen]:
    model = save(family, folder)
    with running("ridgeline.cli.main", "serve", str(model), *WORDS, *words) as server:
        judge = Judge(family, model)
        server.wait_until_ready()
        yield Seen(server, judge)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    yield from seen("llava", tmp_path_factory.mktemp("seer"), "--max-tokens-per-step", str(CHUNK))


def test_one_image_gives_the_tokens_of_transformers(llava: Seen) -> None:
    prompt, answer, _ = llava.ids(part(GRADIENT), "What is it?")
    assert (prompt, answer) == llava.expected("<image>What is it?", GRADIENT)


def test_two_images_stand_where_they_were_sent(llava: Seen) -> None:
    prompt, answer, _ = llava.ids("First", part(RED), "then", part(GRADIENT), "?")
    assert (prompt, answer) == llava.expected("First<image>then<image>?", RED, GRADIENT)


def test_chunks_of_a_long_prompt_cut_through_an_image(llava: Seen) -> None:
    text = "Of all pictures that I know this one is " * 4
    prompt, answer, _ = llava.ids(text[:75], part(GRADIENT), text)
    assert len(prompt) > 4 * CHUNK
    assert (prompt, answer) == llava.expected(f"{text[:75]}<image>{text}", GRADIENT)


def test_images_unlike_share_no_prefix_and_the_same_one_does(llava: Seen) -> None:
    text = "The same question about each of them"
    first, red, _ = llava.ids(part(RED), text)
    second, blue, cached = llava.ids(part(BLUE), text)
    assert first == second
    assert red == llava.expected(f"<image>{text}", RED)[1]
    assert blue == llava.expected(f"<image>{text}", BLUE)[1]
    assert cached < first.index(259) + 1
    again, same, cached = llava.ids(part(RED), text)
    assert (again, same) == (first, red)
    assert cached > first.index(259) + 16


def test_text_alone_is_answered_as_ever(llava: Seen) -> None:
    prompt, answer, _ = llava.ids("No picture")
    assert (prompt, answer) == llava.expected("No picture")


def test_several_at_once_are_answered_each_by_its_own_image(llava: Seen) -> None:
    from concurrent.futures import ThreadPoolExecutor

    pictures = [RED, BLUE, GRADIENT, RED.rotate(90), BLUE.resize((64, 8))]
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(lambda one: llava.ids(part(one), "Which?")[1], pictures))
    assert found == [llava.expected("<image>Which?", one)[1] for one in pictures]
