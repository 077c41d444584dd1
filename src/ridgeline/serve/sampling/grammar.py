"""Completions that match a JSON schema, an expression, a choice or a grammar, by xgrammar.

A grammar is compiled once per vocabulary and kept, in a process of its own (`compiler.py`), for it
may come to no end; a completion has a matcher, which gives a bit mask of the tokens that may come
next. Rows after drafts walk the matcher along them and back. Dong et al., "XGrammar", 2411.15100.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from functools import lru_cache
from typing import Any

from torch import Tensor

from ridgeline.errors import MissingExtra
from ridgeline.serve.messages import Grammar
from ridgeline.serve.packed.tokenizer import whole_tokenizer
from ridgeline.serve.sampling.compiler import GrammarCompiler, words_of
from ridgeline.serve.sampling.text import Tokenizer
from ridgeline.serve.sampling.validate import RequestError

CACHE_BYTES = 256 * 2**20
LONGEST_TOKEN_SECONDS = 0.25
JSON = frozenset({"json_schema", "json_object"})
CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
"""All but line feeds."""


class Matcher:
    """How far a completion has come in its grammar.

    One that takes too long once (`LONGEST_TOKEN_SECONDS`) is given up at the completion's next
    token: the next step would take far longer, and everyone waits for it.
    """

    def __init__(self, compiled: Any, eos_ids: tuple[int, ...], allowed: Tensor | None) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._eos_ids = eos_ids
        self._allowed = allowed
        """Bits of the tokens that may come at all; None: every one."""
        self._longest_seconds = 0.0
        """The most processor time that one row or token took so far."""

    def accept(self, token: int) -> None:
        """Go on with this token; one that cannot follow ends the completion anyway.

        Raises:
            RequestError: The grammar takes too long.
        """
        if self._longest_seconds > LONGEST_TOKEN_SECONDS:
            raise RequestError(
                f"grammar: it can be followed in too many ways ({self._longest_seconds:.2g} s for a"
                " token); put no counted repetition into another",
                "grammar",
            )
        began = time.thread_time()
        if not self._matcher.is_terminated():
            self._matcher.accept_token(token)
        self._longest_seconds = max(self._longest_seconds, time.thread_time() - began)

    def fill(self, bits: Tensor, row: int, drafts: tuple[int, ...]) -> bool:
        """Set a row of bits to what may follow the drafts; the matcher stays where it is.

        Where nothing may follow, the completion may end.

        Returns:
            Whether the row restricts anything; not where a draft breaks the grammar, since then
            nobody will ask for what follows it.
        """
        walked = 0
        began = time.thread_time()
        try:
            for draft in drafts:
                if self._matcher.is_terminated() or not self._matcher.accept_token(draft):
                    return False
                walked += 1
            if self._matcher.is_terminated():
                return False
            restricts = bool(self._matcher.fill_next_token_bitmask(bits, row))
            if self._allowed is not None:
                bits[row] &= self._allowed
                restricts = True
            if restricts and not bool(bits[row].any()):
                for token in self._eos_ids:
                    bits[row, token // 32] |= _bit(token)
            return restricts
        finally:
            if walked:
                self._matcher.rollback(walked)
            self._longest_seconds = max(self._longest_seconds, time.thread_time() - began)


class Grammars:
    """The grammars of one vocabulary; any thread may compile, what is known is given at once."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._vocab = vocab
        self._known: OrderedDict[Grammar, Any] = OrderedDict()
        """Compiled, the oldest first."""
        self._turn = threading.Lock()
        """The lock of the thread that compiles."""
        self._about: Any = None
        self._printable: Tensor | None = None
        self._compiler: GrammarCompiler | None = None

    def knows(self, grammar: Grammar) -> bool:
        """Whether it is compiled."""
        return grammar in self._known

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar unless it is known; may take as long as `compiler.LONGEST_SECONDS`.

        Raises:
            RequestError: It cannot be compiled, not be enforced, matches nothing, or takes longer.
        """
        with self._turn:
            if grammar in self._known:
                return
            if self._compiler is None:
                self._compiler = GrammarCompiler(self._serialised)
            text = self._compiler.compile(grammar)
            import xgrammar

            self._known[grammar] = xgrammar.CompiledGrammar.deserialize_json(text, self._about)
            held = sum(one.memory_size_bytes for one in self._known.values())
            while held > CACHE_BYTES and len(self._known) > 1:
                _, dropped = self._known.popitem(last=False)
                held -= dropped.memory_size_bytes

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of a completion; an unknown grammar is compiled."""
        while (compiled := self._known.get(grammar)) is None:
            self.compile(grammar)
        # xgrammar lets control characters into strings of a given length; JSON has none there.
        allowed = self._printable if grammar.kind in JSON else None
        return Matcher(compiled, self._eos_ids, allowed)

    def _serialised(self) -> str:
        """The vocabulary for the compiler's process, which begins meanwhile."""
        if self._about is not None:
            return str(self._about.serialize_json())
        try:
            import xgrammar
        except ImportError:
            raise MissingExtra("xgrammar", "serve") from None
        self._about = xgrammar.TokenizerInfo.from_huggingface(
            whole_tokenizer(self._tokenizer),
            vocab_size=self._vocab,
            stop_token_ids=list(self._eos_ids),
        )
        about = str(self._about.serialize_json())
        self._printable = _without_control_characters(words_of(about), self._vocab)
        return about


@lru_cache(maxsize=2)
def grammars_of(tokenizer: Tokenizer, vocab: int, eos_ids: tuple[int, ...]) -> Grammars:
    """The grammars of one model.

    Raises:
        RequestError: The model has no token that ends a completion.
    """
    if not eos_ids:
        raise RequestError("grammar cannot end: the model has no end-of-text token", "grammar")
    return Grammars(tokenizer, vocab, eos_ids)


def mask(logits: Tensor, rows: list[tuple[Matcher | None, tuple[int, ...]]]) -> None:
    """Set logits of tokens that a row's grammar does not allow after its drafts to -∞, in place."""
    import xgrammar

    bits = xgrammar.allocate_token_bitmask(len(rows), logits.shape[1])
    restricted = [
        at
        for at, (matcher, drafts) in enumerate(rows)
        if matcher is not None and matcher.fill(bits, at, drafts)
    ]
    if restricted:
        on_device = bits.to(logits.device, non_blocking=True)
        xgrammar.apply_token_bitmask_inplace(logits, on_device, indices=restricted)


def _without_control_characters(words: list[bytes], vocab: int) -> Tensor:
    """[⌈V / 32⌉] int32 bits of the tokens that hold no control character but line feeds."""
    import xgrammar

    bits = xgrammar.allocate_token_bitmask(1, vocab)
    for token, word in enumerate(words):
        if CONTROL.search(word):
            bits[0, token // 32] &= ~_bit(token)
    return bits[0]


def _bit(token: int) -> int:
    """The bit of a token in a 32-bit signed word."""
    return (1 << token % 32) - (1 << 32 if token % 32 == 31 else 0)
