"""Tokens to text, piece by piece: never half a character, never a part of a stop string.

A token's text depends on its neighbours (bytes of one character, a space that only the first word
loses), so each new token is decoded together with those of the last piece, and what that decoding
adds is new. A piece ends where the text ends with a whole character. Tokens of single bytes
(`<0x..>`, byte fallback) are held back until one follows that is not: the tokenizers library
decodes a run of them as a whole, and a bad last byte spoils the good ones before it.
"""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter
from typing import Any

Tokenizer = Any
"""A tokenizer as transformers' PreTrainedTokenizerFast."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What an unfinished character decodes to."""


class TextStream:
    """Text of one completion as its tokens come.

    Stop strings are looked for in the text, whatever the borders of tokens. The stop is the one
    whose last character comes first; of two that end there, the one that begins first.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stops: tuple[str, ...] = (),
        *,
        keep_stop: bool = False,
        min_tokens: int = 0,
        keep_special: bool = False,
    ) -> None:
        self.stopped_by: str | None = None
        """The stop string that was found."""
        self._tokenizer = tokenizer
        self._bytes = frozenset() if tokenizer is None else byte_tokens(tokenizer)
        self._stops = stops
        self._longest = max((len(stop) for stop in stops), default=0)
        self._keep_stop = keep_stop
        self._keep_special = keep_special
        self._min_tokens = min_tokens
        self._tokens: list[int] = []
        self._context = 0
        """Where the tokens of the last piece begin, with which new ones are decoded."""
        self._read = 0
        """Tokens whose text is in a piece."""
        self._held = ""
        """Text of pieces that could be the beginning of a stop string."""
        self._ready = ""
        """Text to be taken."""
        self._length = 0
        """Characters decoded so far."""
        self.seconds = 0.0
        """The time that decoding has taken."""
        self._free = 0
        """Characters of the first `min_tokens` tokens; no stop string ends within them."""

    def push(self, token: int) -> None:
        """Add a token; afterwards `stopped_by` says whether a stop string is complete."""
        self._tokens.append(token)
        if self._tokenizer is None or self.stopped_by is not None:
            return
        if token not in self._bytes:
            self._decode(partial=False)

    def take(self) -> str:
        """The text that is certain, once."""
        taken, self._ready = self._ready, ""
        return taken

    def flush(self) -> None:
        """Take what is held back as text: unfinished characters and beginnings of stops."""
        if self._tokenizer is None or self.stopped_by is not None:
            return
        self._decode(partial=True)
        if self.stopped_by is None:
            self._ready += self._held
            self._held = ""

    def _decode(self, *, partial: bool) -> None:
        tokens = self._tokens
        if self._read == len(tokens):
            return
        special, began = self._keep_special, perf_counter()
        whole = decoded(self._tokenizer, tokens[self._context :], special=special)
        if whole.endswith(BROKEN) and not partial:
            self.seconds += perf_counter() - began
            return
        before = decoded(self._tokenizer, tokens[self._context : self._read], special=special)
        self.seconds += perf_counter() - began
        piece = whole[len(before) :]
        if piece:
            # A context without text (special tokens alone) would not keep the next word's space.
            self._context = self._read
        self._read = len(tokens)
        self._length += len(piece)
        if len(tokens) <= self._min_tokens:
            self._free = self._length
        self._release(piece)

    def _release(self, piece: str) -> None:
        text = self._held + piece
        found = self._first_stop(text)
        if found is not None:
            start, end, self.stopped_by = found
            self._ready += text[: end if self._keep_stop else start]
            self._held = ""
            return
        kept = self._beginning_of_a_stop(text)
        self._ready += text[: len(text) - kept]
        self._held = text[len(text) - kept :]

    def _first_stop(self, text: str) -> tuple[int, int, str] | None:
        begins = self._length - len(text)
        found = []
        for stop in self._stops:
            earliest = max(0, self._free + 1 - len(stop) - begins)
            start = text.find(stop, earliest)
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if not found:
            return None
        end, start, stop = min(found)
        return start, end, stop

    def _beginning_of_a_stop(self, text: str) -> int:
        """Characters at the text's end that begin a stop string, as many as possible."""
        for count in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-count:]
            if any(stop.startswith(tail) for stop in self._stops):
                return count
        return 0


def decoded(tokenizer: Tokenizer, tokens: list[int], *, special: bool = False) -> str:
    """Text with or without special tokens, spaces as they are."""
    skip = not special
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return backend.decode(tokens, skip_special_tokens=skip)
    return tokenizer.decode(tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


@lru_cache(maxsize=4)
def byte_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens of one byte by byte fallback, and special ones, which do not interrupt a run of them.

    None for byte-level vocabularies.
    """
    vocabulary = tokenizer.get_vocab()
    names = (f"<0x{byte:02X}>" for byte in range(256))
    found = frozenset(vocabulary[name] for name in names if name in vocabulary)
    if not found:
        return found
    return found.union(at for at, one in tokenizer.added_tokens_decoder.items() if one.special)
