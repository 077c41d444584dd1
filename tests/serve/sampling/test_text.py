"""Text as tokens come: nothing broken, nothing of a stop, and in the end the whole text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ridgeline.serve.sampling.text import BROKEN, TextStream, decoded

LIBRARY = Path(__file__).parents[3] / "examples/models/library"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
byte_level = PreTrainedTokenizerFast.from_pretrained(LIBRARY)


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's and Gemma's: a mark for a space, single bytes for what has no token."""
    words = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "a", "b", "▁a", "▁b", "ab", "\n", "é", "▁▁"]
    backend = Backend(
        models.BPE({word: at for at, word in enumerate(words)}, [], byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


byte_fallback = byte_fallback_tokenizer()
tokenizers = st.sampled_from([byte_level, byte_fallback])


def tokens_of(tokenizer: PreTrainedTokenizerFast) -> st.SearchStrategy[list[int]]:
    some = st.integers(0, len(tokenizer) - 1)
    if tokenizer is byte_fallback:
        bytes_of_characters = st.sampled_from("é€😀\n").map(
            lambda one: [2 + byte for byte in one.encode()]
        )
        parts = st.one_of(some.map(lambda one: [one]), bytes_of_characters)
    else:
        texts = st.text(st.sampled_from("aé€😀\n .x"), max_size=6)
        parts = st.one_of(some.map(lambda one: [one]), texts.map(tokenizer.encode))
    return st.lists(parts, max_size=12).map(lambda found: [t for part in found for t in part])


answers = tokenizers.flatmap(lambda one: st.tuples(st.just(one), tokens_of(one)))
stop_strings = st.lists(
    st.text(st.sampled_from("ab é\n€x."), min_size=1, max_size=4), max_size=3
).map(tuple)


def cut(text: str, stops: tuple[str, ...], *, keep: bool) -> tuple[str, str | None]:
    """What the rule says, looking at every prefix of the text."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if keep else end - len(stop)], stop
    return text, None


@settings(max_examples=400, deadline=None)
@given(answers, stop_strings, st.booleans())
def test_joined_pieces_are_the_text_up_to_the_first_stop(
    answer: tuple[PreTrainedTokenizerFast, list[int]], stops: tuple[str, ...], keep: bool
) -> None:
    tokenizer, tokens = answer
    stream = TextStream(tokenizer, stops, keep_stop=keep)
    pieces = []
    for token in tokens:
        stream.push(token)
        pieces.append(stream.take())
        if stream.stopped_by is not None:
            break
    stream.flush()
    pieces.append(stream.take())
    text, stop = cut(decoded(tokenizer, tokens), stops, keep=keep)
    assert "".join(pieces) == text
    assert stream.stopped_by == stop


def test_a_character_of_several_tokens_comes_whole() -> None:
    tokens = byte_level.encode("naïve 😀 €")
    stream = TextStream(byte_level)
    pieces = []
    for token in tokens:
        stream.push(token)
        pieces.append(stream.take())
    assert "".join(pieces) == "naïve 😀 €"
    assert "" in pieces  # some token ended within a character
    assert not any(BROKEN in piece for piece in pieces)


def test_text_is_held_back_only_while_it_may_begin_a_stop() -> None:
    stream = TextStream(byte_fallback, ("ab\n",))
    a, b, new_line = (byte_fallback.convert_tokens_to_ids(one) for one in ("a", "b", "\n"))
    given_out = []
    for token in (a, b, b, a, b, new_line):
        stream.push(token)
        given_out.append(stream.take())
    assert given_out == ["", "", "abb", "", "", ""]
    assert stream.stopped_by == "ab\n"


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    stream = TextStream(byte_level)
    first = byte_level.encode("😀")[0]
    stream.push(first)
    assert stream.take() == ""
    stream.flush()
    assert stream.take() == BROKEN


@pytest.mark.parametrize(("least", "text"), [(0, ""), (1, "a"), (2, "aa"), (9, "aaaa")])
def test_no_stop_counts_before_the_least_number_of_tokens(least: int, text: str) -> None:
    a = byte_fallback.convert_tokens_to_ids("a")
    stream = TextStream(byte_fallback, ("a",), min_tokens=least)
    for _ in range(4):
        stream.push(a)
    stream.flush()
    assert stream.take() == text


def test_without_a_tokenizer_there_is_no_text() -> None:
    stream = TextStream(None)
    stream.push(5)
    stream.flush()
    assert stream.take() == ""


def trained(model: models.Model, trainer: Any, words: Any, decoder: Any) -> PreTrainedTokenizerFast:
    backend = Backend(model)
    backend.pre_tokenizer, backend.decoder = words, decoder
    backend.train_from_iterator([Path(__file__).read_text()], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


OTHERS = {
    "byte-level": byte_level,
    "word pieces": trained(
        models.WordPiece(unk_token="<s>"),  # noqa: S106 - a token of text
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=["<s>", "</s>"]),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
    ),
    "unigram": trained(
        models.Unigram(),
        trainers.UnigramTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], unk_token="<s>"),  # noqa: S106
        pre_tokenizers.Metaspace(),
        decoders.Metaspace(),
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pieces_are_those_of_decode_stream(kind: str, data: st.DataObject) -> None:
    tokenizer = OTHERS[kind]
    tokens = data.draw(tokens_of(tokenizer))
    ours, theirs = TextStream(tokenizer), decoders.DecodeStream(skip_special_tokens=True)
    for token in tokens:
        ours.push(token)
        assert ours.take() == (theirs.step(tokenizer.backend_tokenizer, token) or "")


def test_where_decode_stream_fails_a_whole_text_comes() -> None:
    """Bytes of a bad character behind a good one: why `TextStream` does not use it."""
    tokens = [2 + byte for byte in "é".encode() + b"\xe2"] + byte_fallback.encode("a")
    theirs = decoders.DecodeStream(skip_special_tokens=True)
    for token in tokens[:-1]:
        theirs.step(byte_fallback.backend_tokenizer, token)
    with pytest.raises(Exception, match="Invalid prefix"):
        theirs.step(byte_fallback.backend_tokenizer, tokens[-1])
    ours = TextStream(byte_fallback)
    for token in tokens:
        ours.push(token)
    ours.flush()
    assert ours.take() == decoded(byte_fallback, tokens)
