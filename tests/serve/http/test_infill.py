"""What stands between two texts, as editors ask for it, over HTTP."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.http.servers import Server, sse, stub_server
from tokenizers import Tokenizer

from ridgeline.serve.http.infill import infill_families, infill_tokens

BEFORE, BEHIND = "SAY one", "two END"


def with_tokens(model: Path, folder: Path, tokens: list[str]) -> Path:
    """A copy of a model whose tokenizer has special tokens in place of its last ones."""
    shutil.copytree(model, folder)
    file = folder / "tokenizer.json"
    written = json.loads(file.read_bytes())
    vocab = written["model"]["vocab"]
    last = sorted(vocab, key=vocab.__getitem__)[-len(tokens) :]
    merges = written["model"]["merges"]
    written["model"]["merges"] = [one for one in merges if _merged(one) not in last]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for token, name in zip(tokens, last, strict=True):
        vocab[token] = vocab.pop(name)
        added = {"id": vocab[token], "content": token, "special": True, **plain}
        written["added_tokens"].append(added)
    file.write_text(json.dumps(written))
    return folder


def _merged(pair: str | list[str]) -> str:
    return "".join(pair.split(" ") if isinstance(pair, str) else pair)


@pytest.fixture(scope="module")
def editor(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tokens = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]
    folder = with_tokens(model, tmp_path_factory.mktemp("fim") / "library", tokens)
    with stub_server(folder) as server:
        yield server


def ids(server: Server, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    found: list[int] = server.post("/tokenize", body).json()["tokens"]
    return found


def test_a_suffix_goes_behind_its_mark_and_the_gap_is_asked_for(editor: Server) -> None:
    body: Any = {"prompt": BEFORE, "suffix": BEHIND, "max_tokens": 4, "return_token_ids": True}
    choice = editor.post("/v1/completions", body).json()["choices"][0]
    wanted = f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{BEHIND}<|fim_middle|>"
    assert choice["prompt_token_ids"] == ids(editor, wanted)
    assert editor.post("/v1/completions", {**body, "prompt": ""}).status_code == 200
    for other in ({"echo": True}, {"truncate_prompt_tokens": 3}):
        refused = editor.post("/v1/completions", {**body, **other})
        assert refused.json()["error"]["param"] == "suffix"


@pytest.mark.parametrize("path", ["/v1/fim/completions", "/v1/v1/fim/completions"])
def test_mistrals_address_tells_the_gap_as_a_chats_answer(editor: Server, path: str) -> None:
    body: Any = {"prompt": BEFORE, "suffix": BEHIND, "max_tokens": 4, "random_seed": 1}
    whole = editor.post(path, body).json()
    text = whole["choices"][0]["message"]["content"]
    known = editor.post("/v1/completions", {**body, "seed": 1, "random_seed": None}).json()
    assert text == known["choices"][0]["text"]
    assert whole["object"] == "chat.completion"
    chunks = sse(editor.post(path, {**body, "stream": True}))
    assert "".join(one["choices"][0]["delta"]["content"] for one in chunks) == text
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_deepseeks_address_takes_a_suffix(editor: Server) -> None:
    body = {"prompt": BEFORE, "suffix": BEHIND, "max_tokens": 4}
    assert editor.post("/beta/completions", body).json()["object"] == "text_completion"
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    assert editor.post("/chat/completions", chat).status_code == 200


def test_a_model_without_such_tokens_refuses_a_suffix_and_continues_without(stub: Server) -> None:
    response = stub.post("/v1/completions", {"prompt": "a", "suffix": "b"})
    assert response.status_code == 400
    assert "no tokens for a text to be filled into" in response.json()["error"]["message"]
    assert stub.post("/v1/fim/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200


def test_the_list_of_models_says_who_fills_gaps(editor: Server, stub: Server) -> None:
    for server, able in ((editor, True), (stub, False)):
        (card,) = server.get("/v1/models").json()["data"]
        assert card["type"] == "base"
        assert card["capabilities"]["completion_fim"] is able


@pytest.mark.parametrize("name", sorted(infill_families()))
def test_every_family_is_known_by_its_tokens(model: Path, name: str) -> None:
    family = infill_families()[name]
    backend = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert infill_tokens(backend, 10_000) is None
    backend.add_special_tokens([one for one in (family.before, family.behind, family.fill) if one])
    assert infill_tokens(backend, backend.get_vocab_size() - 1) is None  # the model knows fewer
    found = infill_tokens(backend, 10_000)
    assert found is not None
    text = backend.decode(list(found.prompt((7,), (8,))), skip_special_tokens=False)
    order = (
        [family.behind, family.before] if family.behind_first else [family.before, family.behind]
    )
    places = [text.index(one) for one in (*order, family.fill) if one]
    assert places == sorted(places)


def test_llama_cpps_editors_get_what_stands_at_the_cursor(editor: Server) -> None:
    """The line's own beginning is `prompt`; what is related stands above, nothing is prepared."""
    asked = {"input_prefix": "SAY ", "prompt": "one", "input_suffix": BEHIND, "n_predict": 4}
    found = editor.post("/infill", {**asked, "samplers": ["infill"], "cache_prompt": True}).json()
    wanted = ids(editor, f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{BEHIND}<|fim_middle|>")
    assert found["tokens_evaluated"] == len(wanted)
    assert found["content"]
    assert found["tokens_predicted"] <= 4
    related = {**asked, "input_extra": [{"filename": "a.py", "text": "x = 1", "time": 0}]}
    assert editor.post("/infill", related).json()["tokens_evaluated"] > len(wanted)
    prepared = editor.post("/infill", {**related, "n_predict": 0}).json()
    assert (prepared["content"], prepared["stop"]) == ("", True)
