"""Answers that match a JSON schema, an expression, a choice or a grammar, by xgrammar.

A grammar is compiled once per vocabulary and kept; an answer has a matcher, which gives a bit mask
of the tokens that may come next. Rows after drafts walk the matcher along them and back.
Dong et al., "XGrammar", 2411.15100.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import Any

from torch import Tensor

from ridgeline.errors import MissingExtra
from ridgeline.serve.messages import Grammar
from ridgeline.serve.sampling.schema import unenforced
from ridgeline.serve.sampling.text import Tokenizer
from ridgeline.serve.sampling.validate import RequestError

CACHE_BYTES = 256 * 2**20
MOST_THREADS = 8
MOST_SPACES = 16
"""Between two parts of a JSON document: enough to indent it, too few to write spaces for ever."""


JSON = frozenset({"json_schema", "json_object"})
CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
"""All but line feeds."""


class Matcher:
    """How far an answer has come in its grammar."""

    def __init__(self, compiled: Any, eos_ids: tuple[int, ...], allowed: Tensor | None) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._eos_ids = eos_ids
        self._allowed = allowed
        """Bits of the tokens that may come at all; None: every one."""

    def accept(self, token: int) -> None:
        """The answer goes on with this token; one that cannot follow ends it anyway (EOS, stop)."""
        if not self._matcher.is_terminated():
            self._matcher.accept_token(token)

    def fill(self, bits: Tensor, row: int, drafts: tuple[int, ...]) -> bool:
        """Set a row of bits to what may follow the drafts; the matcher stays where it is.

        Where nothing may follow, the answer may end.

        Returns:
            Whether the row restricts anything; not where a draft breaks the grammar, since then
            nobody will ask for what follows it.
        """
        walked = 0
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


class Grammars:
    """Compiles for one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos_ids: tuple[int, ...]) -> None:
        try:
            import xgrammar
        except ImportError:
            raise MissingExtra("xgrammar", "serve") from None
        self._eos_ids = eos_ids
        self._vocab = vocab
        about = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab, stop_token_ids=list(eos_ids)
        )
        self._printable = _without_control_characters(about.decoded_vocab, vocab)
        threads = min(MOST_THREADS, os.cpu_count() or 1)
        self._compiler = xgrammar.GrammarCompiler(
            about, max_threads=threads, cache_limit_bytes=CACHE_BYTES
        )

    def matcher(self, grammar: Grammar) -> Matcher:
        """At the beginning of an answer.

        Raises:
            RequestError: It cannot be compiled, not be enforced, or matches nothing.
        """
        import xgrammar

        try:
            compiled = self._compiled(grammar)
        except RuntimeError as error:
            raise RequestError(f"{grammar.kind}: {_reason(error)}", "grammar") from None
        bits = xgrammar.allocate_token_bitmask(1, self._vocab)
        first = xgrammar.GrammarMatcher(compiled)
        if first.fill_next_token_bitmask(bits, 0) and not bool(bits.any()):
            raise RequestError(f"{grammar.kind}: no answer can match it", "grammar")
        # xgrammar lets control characters into strings of a given length; JSON has none there.
        allowed = self._printable if grammar.kind in JSON else None
        return Matcher(compiled, self._eos_ids, allowed)

    def _compiled(self, grammar: Grammar) -> Any:
        compiler, text = self._compiler, grammar.text
        match grammar.kind:
            case "json_object":
                return compiler.compile_json_schema(
                    '{"type": "object"}', strict_mode=False, max_whitespace_cnt=MOST_SPACES
                )
            case "json_schema":
                ignored = unenforced(_parsed(grammar))
                if ignored:
                    raise RequestError(f"json_schema: cannot be enforced: {ignored}", "grammar")
                return compiler.compile_json_schema(text, max_whitespace_cnt=MOST_SPACES)
            case "regex":
                return compiler.compile_regex(text)
            case "choice":
                return compiler.compile_grammar(_choices(grammar))
            case "ebnf":
                return compiler.compile_grammar(text)


@lru_cache(maxsize=2)
def grammars_of(tokenizer: Tokenizer, vocab: int, eos_ids: tuple[int, ...]) -> Grammars:
    """Of one model.

    Raises:
        RequestError: The model has no token that ends an answer.
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


def _parsed(grammar: Grammar) -> Any:
    try:
        return json.loads(grammar.text)
    except ValueError as error:
        raise RequestError(f"{grammar.kind}: not JSON: {error}", "grammar") from None


def _choices(grammar: Grammar) -> str:
    """As a grammar of one rule."""
    choices = _parsed(grammar)
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise RequestError("choice: must be a list of strings", "grammar")
    if not choices or "" in choices:
        raise RequestError("choice: needs at least one string, none of them empty", "grammar")
    return "root ::= " + " | ".join(json.dumps(one) for one in choices)


def _without_control_characters(words: list[bytes], vocab: int) -> Tensor:
    """[⌈V / 32⌉] int32 bits of the tokens that hold no control character but line feeds."""
    import xgrammar

    bits = xgrammar.allocate_token_bitmask(1, vocab)
    for token, word in enumerate(words):
        if CONTROL.search(word):
            bits[0, token // 32] &= ~_bit(token)
    return bits[0]


def _bit(token: int) -> int:
    """In a 32-bit signed word."""
    return (1 << token % 32) - (1 << 32 if token % 32 == 31 else 0)


def _reason(error: RuntimeError) -> str:
    """The first line, without where in xgrammar's source it was raised."""
    line = str(error).strip().split("\n")[0]
    return line.split(": ", 1)[-1] if ".cc:" in line else line
