"""Grammars compiled and tried in a process of their own, which is given a time for each.

    compiler = GrammarCompiler(about)   # runs: python -m ridgeline.serve.sampling.compiler
    compiler.compile(Grammar(kind="regex", text="[a-z]{1,9}"))

No thread can be stopped in the middle of xgrammar's C++, but a process can; the next grammar starts
another one. It begins with the first grammar and ends with the engine.

Some grammars compile at once and cannot be followed: with "(((([a-z]{1,9}){1,9}){1,9}){1,9})x" the
parser keeps every way in which the text so far may be divided, and the fourth token takes it half a
minute. So a few completions are begun here, and a grammar of which a token takes long is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError
from ridgeline.records.input_file import too_deep
from ridgeline.serve.messages import Grammar
from ridgeline.serve.sampling.lone_xgrammar import lone_xgrammar
from ridgeline.serve.sampling.schema import unenforced
from ridgeline.serve.sampling.schema_forms import known_forms
from ridgeline.serve.sampling.validate import RequestError

LONGEST_SECONDS = 20.0
"""The most seconds for one grammar."""
LONGEST_START_SECONDS = 120.0
"""The time for Python and xgrammar to start, on a machine that is busy otherwise."""
SLOWEST_TOKEN_SECONDS = 0.05
"""The most processor time of a token in the completions that are tried; usual ones take a tenth of
a millisecond."""
TRIED_TOKENS = 32
"""Tokens of each completion that is tried."""
MOST_BYTES = 4 * 2**30
"""The most memory for grammars."""
MOST_THREADS = 8
MOST_SPACES = 16
"""Spaces between two parts of a JSON document: enough to indent, too few to go on for ever."""
_LENGTH = struct.Struct("!I")


class _Serialised(msgspec.Struct):
    """What is read of a vocabulary as xgrammar writes it."""

    decoded_vocab: list[str]
    """The words, a character for each of their bytes."""


def words_of(about: str) -> list[bytes]:
    """The words of a vocabulary; its own list is made of calls that take five times as long.

    Args:
        about: As `TokenizerInfo.serialize_json` writes it.
    """
    found = msgspec.json.decode(about, type=_Serialised)
    return [word.encode("latin-1") for word in found.decoded_vocab]


class Vocabulary:
    """What grammars are compiled for.

    Args:
        about: As `TokenizerInfo.serialize_json` writes it.
    """

    def __init__(self, about: str) -> None:
        xgrammar = lone_xgrammar()
        self.about = xgrammar.TokenizerInfo.deserialize_json(about)
        threads = min(MOST_THREADS, os.cpu_count() or 1)
        self.compiler = xgrammar.GrammarCompiler(
            self.about, max_threads=threads, cache_enabled=False
        )
        self._lengths = np.array([len(word) for word in words_of(about)], np.int64)
        self._lengths[list(self.about.stop_token_ids)] = 0

    def bits(self) -> NDArray[np.int32]:
        """[1, ⌈V / 32⌉] bits of the tokens that may come: all."""
        return np.full((1, -(-self.about.vocab_size // 32)), -1, np.int32)

    def longest(self, tokens: NDArray[np.int64]) -> int:
        """The one of these tokens with the most characters."""
        return int(tokens[self._lengths[tokens].argmax()])


class GrammarOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the process says."""

    compiled: str = ""
    """The grammar as `CompiledGrammar.serialize_json` writes it."""
    refused: str = ""


class _Ended(RidgelineError):
    """The process says nothing any more."""


class _Late(RidgelineError):
    """The process takes too long."""


_outcome = msgspec.msgpack.Decoder(GrammarOutcome)
_grammar = msgspec.msgpack.Decoder(Grammar)


class GrammarCompiler:
    """One process at a time, for one vocabulary; not to be shared by threads.

    Args:
        about: Says the vocabulary, as `TokenizerInfo.serialize_json` writes it, while the process
            begins.
        seconds: For one grammar.
    """

    def __init__(self, about: Callable[[], str], seconds: float = LONGEST_SECONDS) -> None:
        self._about = about
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        """Ends the process, whoever lets go of it."""

    def compile(self, grammar: Grammar) -> str:
        """The compiled grammar as JSON.

        Raises:
            RequestError: It cannot be compiled, not be enforced, matches nothing, or takes longer.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
            self._end = weakref.finalize(self, _end, self._process)
        try:
            _write(self._process, msgspec.msgpack.encode(grammar))
            outcome = _outcome.decode(_read(self._process, self._seconds))
        except (_Late, _Ended, OSError) as error:
            self.close()
            what = (
                f"takes longer than {self._seconds:g} s to compile; make it smaller"
                if isinstance(error, _Late) or self._process.returncode == -signal.SIGALRM
                else "is more than the compiler can do; make it smaller"
            )
            raise RequestError(f"{grammar.kind}: {what}", "grammar") from None
        if outcome.refused:
            raise RequestError(f"{grammar.kind}: {outcome.refused}", "grammar")
        return outcome.compiled

    def close(self) -> None:
        """End the process that compiles."""
        self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            _write(process, self._about().encode())
            _read(process, LONGEST_START_SECONDS)
        except (_Late, _Ended, OSError):
            _end(process)
            raise RidgelineError("the compiler of grammars does not start") from None
        except BaseException:
            _end(process)
            raise
        return process


def compile_grammar(compiler: Any, grammar: Grammar) -> Any:
    """Compile a grammar by xgrammar, with what it would pass over refused.

    Raises:
        RequestError: It cannot be enforced.
        RuntimeError: It cannot be compiled.
    """
    text = grammar.text
    match grammar.kind:
        case "json_object":
            return compiler.compile_json_schema(
                '{"type": "object"}', strict_mode=False, max_whitespace_cnt=MOST_SPACES
            )
        case "json_schema":
            schema = _known(_parsed(grammar))
            return compiler.compile_json_schema(json.dumps(schema), max_whitespace_cnt=MOST_SPACES)
        case "regex":
            return compiler.compile_regex(text)
        case "choice":
            return compiler.compile_grammar(_choices(grammar))
        case "ebnf":
            return compiler.compile_grammar(text)
        case "structural_tag":
            tag = _with_known_schemas(_parsed(grammar))
            return compiler.compile_structural_tag(json.dumps(tag))


def _parsed(grammar: Grammar) -> Any:
    if too_deep(grammar.text.encode()):
        raise RequestError("is nested too deeply", "grammar")
    try:
        return json.loads(grammar.text)
    except ValueError as error:
        raise RequestError(f"not JSON: {error}", "grammar") from None


def _known(schema: Any) -> Any:
    """A schema in the forms that are enforced. Raises RequestError where it has none."""
    found = known_forms(schema)
    ignored = unenforced(found)
    if ignored:
        raise RequestError(f"cannot be enforced: {ignored}", "grammar")
    return found


def _with_known_schemas(tag: Any) -> Any:
    """A structural tag with its JSON schemas in known forms."""
    if isinstance(tag, list):
        return [_with_known_schemas(one) for one in tag]
    if not isinstance(tag, dict):
        return tag
    return {
        name: _known(value) if name in ("json_schema", "schema") else _with_known_schemas(value)
        for name, value in tag.items()
    }


def _choices(grammar: Grammar) -> str:
    """The choices as a grammar of one rule."""
    choices = _parsed(grammar)
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise RequestError("must be a list of strings", "grammar")
    if not choices or "" in choices:
        raise RequestError("needs at least one string, none of them empty", "grammar")
    # Grammars know no surrogates, in which JSON would write what lies beyond 16 bits.
    return "root ::= " + " | ".join(json.dumps(one, ensure_ascii=False) for one in choices)


def compile_and_try(vocabulary: Vocabulary, grammar: Grammar) -> GrammarOutcome:
    """A grammar compiled and tried, or why it is refused."""
    xgrammar = lone_xgrammar()
    try:
        compiled = compile_grammar(vocabulary.compiler, grammar)
        bits = vocabulary.bits()
        first = xgrammar.GrammarMatcher(compiled)
        if first.fill_next_token_bitmask(bits, 0) and not bool(bits.any()):
            return GrammarOutcome(refused="no answer can match it")
        chance = np.random.default_rng(0)
        slowest = max(
            slowest_token_seconds(vocabulary, compiled, vocabulary.longest),
            slowest_token_seconds(vocabulary, compiled, lambda tokens: int(chance.choice(tokens))),
        )
        if slowest > SLOWEST_TOKEN_SECONDS:
            return GrammarOutcome(
                refused=f"{slowest:.2g} s for a token are too much: it can be followed in too many"
                " ways; put no counted repetition into another, or something between their parts"
            )
        return GrammarOutcome(compiled=compiled.serialize_json())
    except RequestError as error:
        return GrammarOutcome(refused=str(error))
    except Exception as error:  # xgrammar raises what it likes
        return GrammarOutcome(refused=_reason(error))


def slowest_token_seconds(
    vocabulary: Vocabulary, compiled: Any, choose: Callable[[NDArray[np.int64]], int]
) -> float:
    """Processor seconds that the slowest token of a completion's beginning takes."""
    matcher = lone_xgrammar().GrammarMatcher(compiled)
    bits = vocabulary.bits()
    slowest = 0.0
    for _ in range(TRIED_TOKENS):
        began = time.process_time()
        _skip_what_is_fixed(matcher)
        if matcher.is_terminated():
            break
        matcher.fill_next_token_bitmask(bits, 0)
        allowed = np.unpackbits(bits[0].view(np.uint8), bitorder="little").nonzero()[0]
        allowed = allowed[allowed < vocabulary.about.vocab_size]
        if not len(allowed) or not matcher.accept_token(choose(allowed)) or matcher.is_terminated():
            break
        slowest = max(slowest, time.process_time() - began)
        if slowest > SLOWEST_TOKEN_SECONDS:
            break
    return slowest


def _skip_what_is_fixed(matcher: Any) -> None:
    """Accept what leaves no choice, unless it ends within a character, as where é or è may come."""
    with contextlib.suppress(UnicodeDecodeError):
        fixed = matcher.find_jump_forward_string()
        if fixed:
            matcher.accept_string(fixed)


def _reason(error: Exception) -> str:
    """The first line, without where in xgrammar's source it was raised."""
    lines = str(error).strip().split("\n")
    line = lines[0] or "it cannot be compiled"
    return line.split(": ", 1)[-1] if ".cc:" in line else line


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(OSError):  # what it was not given in time
        process.communicate()


def _write(process: subprocess.Popen[bytes], body: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(_LENGTH.pack(len(body)) + body)
    process.stdin.flush()


def _read(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    deadline = time.monotonic() + seconds
    length = _LENGTH.unpack(_bytes(process, _LENGTH.size, deadline))[0]
    return _bytes(process, length, deadline)


def _bytes(process: subprocess.Popen[bytes], count: int, deadline: float) -> bytes:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    parts = []
    while count:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise _Late("no answer in time")
        part = os.read(descriptor, min(count, 1 << 20))
        if not part:
            raise _Ended("no answer")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _take(source: BinaryIO) -> bytes | None:
    header = source.read(_LENGTH.size)
    return source.read(_LENGTH.unpack(header)[0]) if len(header) == _LENGTH.size else None


def _give(target: BinaryIO, body: bytes) -> None:
    target.write(_LENGTH.pack(len(body)) + body)
    target.flush()


def _bound_memory() -> None:
    """Bound the memory to what is used now, and so much more."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115
        most = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def main() -> int:
    """Compile what comes until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seconds = float(sys.argv[1])
    given, outcomes = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no outcome
    body = _take(given)
    if body is None:
        return 0
    vocabulary = Vocabulary(body.decode())
    _bound_memory()
    _give(outcomes, b"")
    while (body := _take(given)) is not None:
        # Whoever waits may have gone: nothing here outlives its time.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        outcome = compile_and_try(vocabulary, _grammar.decode(body))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _give(outcomes, msgspec.msgpack.encode(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
