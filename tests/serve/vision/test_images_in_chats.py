"""Images in conversations, through the real server: its tokens beside transformers' `generate`."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.serve.http.servers import Server, serving, sse
from tests.serve.vision.picture_host import RED, picture_host, png
from tests.serve.vision.tiny_seers import Judge, save

WORDS = ("--port", "0", "--dtype", "fp32", "--debug")
CHUNK = 48
"""Tokens of a step: images and long texts come in chunks."""
GRADIENT = Image.linear_gradient("L").resize((50, 40)).convert("RGB")
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
    host: str = ""
    """A host of pictures that the server may ask."""

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


@contextmanager
def served(family: str, folder: Path) -> Iterator[Seen]:
    model = save(family, folder)
    words = [*WORDS, "--kv-bytes", str(1 << 24)]
    words += ["--max-tokens-per-step", str(CHUNK), "--allowed-media-domains", "localhost"]
    with (
        picture_host(folder) as (host, cert),
        serving(model, *words, SSL_CERT_FILE=str(cert)) as server,
    ):
        judge = Judge(family, model)
        server.wait_until_ready()
        yield Seen(server, judge, host)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with served("llava", tmp_path_factory.mktemp("seer")) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_images_of_any_shape_are_seen_through_the_server(family: str, tmp_path: Path) -> None:
    with served(family, tmp_path) as seen:
        for first, second in ((RED, GRADIENT), (GRADIENT, RED), (RED, BLUE)):
            prompt, answer, _ = seen.ids("First", part(first), "then", part(second), "?")
            assert (prompt, answer) == seen.expected("First<image>then<image>?", first, second)


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


def text_of(reply: Any) -> str:
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def test_two_answers_to_one_image_are_both_right(llava: Seen) -> None:
    reply = llava.chat(part(BLUE), "Twice", n=2).json()
    expected = llava.expected("<image>Twice", BLUE)[1]
    assert [one["token_ids"] for one in reply["choices"]] == [expected, expected]


def test_a_stream_counts_the_tokens_of_images(llava: Seen) -> None:
    options = {"include_usage": True}
    chunks = sse(llava.chat(part(RED), "How many?", stream=True, stream_options=options))
    prompt, answer = llava.expected("<image>How many?", RED)
    assert chunks[-1]["usage"]["prompt_tokens"] == len(prompt)
    found = [t for one in chunks for c in one["choices"] for t in c.get("token_ids") or ()]
    assert found == answer


def test_an_image_comes_by_https_from_an_allowed_host(llava: Seen) -> None:
    inline = llava.ids(part(RED), "From afar")
    for path in ("/red.png", "/near"):
        linked = {"type": "image_url", "image_url": llava.host + path}
        assert llava.ids(linked, "From afar")[:2] == inline[:2]


def test_other_endpoints_take_images_in_their_own_words(llava: Seen) -> None:
    said = text_of(llava.chat(part(RED), "Say it"))
    data = {"type": "base64", "media_type": "image/png", "data": url(RED).partition(",")[2]}
    block = {"type": "image", "source": data}
    asked = {"role": "user", "content": [block, {"type": "text", "text": "Say it"}]}
    body = {"model": "llava", "messages": [asked], "max_tokens": COUNT, "temperature": 0}
    reply = llava.server.post("/v1/messages", body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["content"][0]["text"] == said
    counted = llava.server.post(
        "/v1/messages/count_tokens", {"model": "llava", "messages": [asked]}
    )
    usage = reply.json()["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted.json()["input_tokens"] == read > 16
    image = {"type": "input_image", "image_url": url(RED), "detail": "high"}
    item = {"role": "user", "content": [image, {"type": "input_text", "text": "Say it"}]}
    body = {"model": "llava", "input": [item], "max_output_tokens": COUNT, "temperature": 0}
    reply = llava.server.post("/v1/responses", body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["output"][0]["content"][0]["text"] == said
    assert reply.headers["x-without-effect"] == "messages.image_url.detail"


def test_what_tools_returned_is_seen_in_every_dialect(llava: Seen) -> None:
    data = url(GRADIENT).partition(",")[2]
    called = {"name": "f", "arguments": "{}"}
    call = {"id": "c", "type": "function", "function": called}
    asked = {"role": "user", "content": "Look"}
    chat = [
        asked,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [part(GRADIENT)]},
    ]
    body: Any = {"messages": chat, "max_tokens": COUNT, "temperature": 0, "return_token_ids": True}
    found = llava.server.post("/v1/chat/completions", body).json()
    tokens = found["choices"][0]["token_ids"]
    written = "user: Look\nassistant: \ntool: <image>\nassistant:"
    assert (found["prompt_token_ids"], tokens) == llava.judge.answer(
        written, [GRADIENT], count=COUNT
    )
    said = found["choices"][0]["message"]["content"]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    result = {"tool_use_id": "c", "content": [{"type": "image", "source": source}]}
    turns = [
        asked,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", **result}]},
    ]
    body = {"model": "llava", "messages": turns, "max_tokens": COUNT, "temperature": 0}
    reply = llava.server.post("/v1/messages", body)
    assert reply.json()["content"][0]["text"] == said, reply.text
    output = [{"type": "input_image", "image_url": url(GRADIENT)}]
    items = [
        asked,
        {"type": "function_call", "call_id": "c", **called},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    body = {"input": items, "max_output_tokens": COUNT, "temperature": 0}
    reply = llava.server.post("/v1/responses", body)
    assert reply.json()["output"][0]["content"][0]["text"] == said, reply.text


def test_googles_own_client_writes_base64_for_addresses(llava: Seen) -> None:
    said = text_of(llava.chat(part(GRADIENT), "Say it"))
    data = url(GRADIENT).partition(",")[2]
    assert {*"+/"} & {*data}
    for written in (data, data.replace("+", "-").replace("/", "_"), data.rstrip("=")):
        blob = {"inlineData": {"mimeType": "image/png", "data": written}}
        config = {"maxOutputTokens": COUNT, "temperature": 0}
        body = {"contents": [{"parts": [blob, {"text": "Say it"}]}], "generationConfig": config}
        reply = llava.server.post("/v1beta/models/llava:generateContent", body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["candidates"][0]["content"]["parts"][0]["text"] == said


def test_the_model_says_that_it_takes_images(llava: Seen) -> None:
    (card,) = llava.server.get("/v1/models").json()["data"]
    assert card["input_modalities"] == ["text", "image"]


def test_a_conversation_with_images_is_tokenised_as_the_model_sees_it(llava: Seen) -> None:
    content = [part(RED), {"type": "text", "text": "x"}]
    reply = llava.server.post("/tokenize", {"messages": [{"role": "user", "content": content}]})
    assert reply.json()["tokens"] == llava.expected("<image>x", RED)[0]


def chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + name + content + check


def claiming(side: int) -> bytes:
    """A file of some bytes that says that it is a picture of so many pixels squared."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(bytes(100))), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def inline(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("file:///etc/passwd", "begins with data: or https://"),
        ("/etc/passwd", "begins with data: or https://"),
        ("http://localhost/red.png", "begins with data: or https://"),
        ("https://images.example/red.png", "not fetched from 'images.example' here"),
        ("https://localhost@images.example/", "not fetched from 'images.example' here"),
        ("HOST/away", "not fetched from '127.0.0.1' here"),
        ("HOST/down", "begins with data: or https://"),
        ("HOST/round", "behind more than 3 redirects"),
        ("HOST/nowhere", "'localhost' answers 404"),
        ("HOST/words", "is none of PNG"),
        ("HOST/large", "larger than 20971520 bytes"),
        ("https://localhost:1/red.png", "cannot be fetched"),
        ("https://localhost:port/", "url is none"),
        ("data:image/png;base64,%%%", "no base64"),
        ("data:text/plain,hello", "begins as data:image/png;base64,"),
        (inline(b"no picture"), "is none of PNG"),
        (inline(png(RED)[:60]), "an image"),
        (inline(claiming(9000)), "9000 x 9000 pixels; at most 33554432"),
        (inline(claiming(30000)), "more than 33554432 pixels"),
    ],
)
def test_an_image_that_may_not_be_read_is_refused_in_one_line(
    llava: Seen, given: str, message: str
) -> None:
    given = given.replace("HOST", llava.host)
    reply = llava.chat({"type": "image_url", "image_url": {"url": given}}, "x")
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert error["param"] == "messages"
    assert error["type"] == "invalid_request_error"


def test_what_cannot_go_with_images_is_refused(llava: Seen) -> None:
    def why(*content: Any, **fields: Any) -> str:
        reply = llava.chat(*content, **fields)
        assert reply.status_code == 400, reply.text
        message: str = reply.json()["error"]["message"]
        return message

    assert "33 images; at most 32" in why(*[part(RED)] * 33)
    assert "1 images, and 2 places" in why(part(RED), "so <image> it is")
    assert "0 images, and 1 places" in why("only <image>")
    assert "is not cut" in why(part(RED), truncate_prompt_tokens=8)
    assert "context is 512 tokens" in why(*[part(RED)] * 31, "x" * 100)
    system = [{"role": "system", "content": [part(RED)]}, {"role": "user", "content": "x"}]
    assert "system" in why(messages=system)
