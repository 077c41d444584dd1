"""Text and tokens: nothing is cut, and long texts leave the event loop alone."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.serve.http.servers import LIBRARY

from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.text import SHORT_CHARACTERS, TextTokens, load_tokenizer


def tokens() -> TextTokens:
    tokenizer = load_tokenizer(EngineConfig(model=str(LIBRARY)))
    tokenizer.backend_tokenizer.enable_truncation(4)
    return TextTokens(tokenizer, vocab=2048)


@pytest.mark.parametrize(("length", "here"), [(10, True), (SHORT_CHARACTERS + 1, False)])
def test_long_work_is_done_on_another_thread(length: int, here: bool) -> None:
    async def where() -> threading.Thread:
        return await tokens().run(threading.current_thread, length)

    assert (asyncio.run(where()) is threading.main_thread()) == here


def test_a_truncation_in_the_tokenizers_file_does_not_cut_prompts() -> None:
    ids = asyncio.run(tokens().encode("one two three four five six seven", special=False))
    assert len(ids) > 4


def test_an_empty_prompt_and_a_token_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(ApiError, match="no token"):
        asyncio.run(tokens().prompt("", special=False, param="prompt"))
    with pytest.raises(ApiError, match="not below 2048"):
        tokens().check([1, 2048], "prompt")


def test_a_folder_without_a_tokenizer_is_one_line(tmp_path: object) -> None:
    with pytest.raises(InputError, match="no tokenizer in it") as caught:
        load_tokenizer(EngineConfig(model=str(tmp_path)))
    assert "\n" not in str(caught.value)
