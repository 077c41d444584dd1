"""Text to tokens and back, without holding up the event loop, and what replies say of tokens.

Long texts are tokenised on threads: the Rust tokenizer lets go of Python's lock in `encode_batch`
(not in `encode`). Short ones are not worth the hop: 4,000 characters take about a millisecond.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.http.chat_template import choose_template
from ridgeline.serve.http.image_input import ImageReader
from ridgeline.serve.http.infill import infill_tokens
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.protocol.fields import LOWEST_LOGPROB, SamplingFields
from ridgeline.serve.http.protocol.token_usage import PromptDetails, TokenUsage
from ridgeline.serve.http.reasoning import NONE, choose_marks
from ridgeline.serve.http.tool_families import AUTO, choose_tool_family, special_tokens
from ridgeline.serve.messages import Delta, Logprob, Ready, Submit, TokenLogprobs
from ridgeline.serve.packed.tokenizer import KeptTokenizer, kept_tokenizer, whole_tokenizer
from ridgeline.serve.vision.processor import read_image_processor

SHORT_CHARACTERS = 4000
T = TypeVar("T")


class Tokenizer(Protocol):
    """What is used of transformers' `PreTrainedTokenizerFast`."""

    backend_tokenizer: Any
    chat_template: Any
    special_tokens_map: dict[str, Any]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of some tokens."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        """A conversation as the model's prompt."""


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """Read the tokenizer that a configuration names, or its model's.

    Raises:
        InputError: there is none, or only a slow one.
    """
    option = "" if config.tokenizer is None else "--tokenizer"
    where = config.tokenizer or config.model
    tokenizer = kept_tokenizer(config, light=True)
    if not tokenizer.is_fast:
        text = f"{option} {where}".strip()
        raise InputError(f"{text}: has no fast tokenizer; convert it to tokenizer.json")
    found: Tokenizer = tokenizer
    return found


async def load_images(
    config: EngineConfig, ready: Ready, hosts: tuple[str, ...]
) -> ImageReader | None:
    """What reads the images of an engine's conversations; None: its model takes none.

    Args:
        config: Of the engine.
        ready: What the engine said when it came up.
        hosts: Those that images may be fetched from.

    Raises:
        InputError: The processor beside the model cannot be read.
    """
    if not ready.sees_images:
        return None
    return ImageReader(await asyncio.to_thread(read_image_processor, config), hosts)


class TextTokens:
    """One tokenizer, shared by all requests."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab: int,
        *,
        chat_template: str | None = None,
        reasoning_parser: str = NONE,
        tool_call_parser: str = AUTO,
        images: ImageReader | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.images = images
        """What reads the images of conversations; None: the model takes none."""
        self.vocab = vocab
        """The size of the model's vocabulary: ids from here on are refused."""
        self.template = choose_template(tokenizer.chat_template, chat_template)
        """How conversations are written."""
        self.reasoning_parser, self.thoughts = choose_marks(reasoning_parser, self.template)
        """The family that thoughts are read of, and how it marks them."""
        self.tool_call_parser, self.tool_family = choose_tool_family(
            tool_call_parser, self.template
        )
        """The family whose way of writing tool calls is read."""
        self._whole = None if isinstance(tokenizer, KeptTokenizer) else tokenizer
        # A copy, for a truncation set in the file would cut prompts silently.
        self._backend = copy.deepcopy(tokenizer.backend_tokenizer)
        self._backend.no_truncation()
        self._backend.no_padding()
        self.special_in_calls = special_tokens(self.tool_family.marks, self._backend)
        """Special tokens that text keeps where calls are looked for, as marks are among them."""
        thoughts = () if self.thoughts is None else self.thoughts.marks
        self.special_in_thoughts = special_tokens(thoughts, self._backend)
        """Special tokens that text keeps where thoughts are looked for, as marks are among them."""
        self.thought_ids = self._thought_ids()
        """The tokens that begin and end a thought; None: they are no single tokens."""
        self.infill = infill_tokens(self._backend, vocab)
        """How the model is asked for what stands between two texts; None: it was not trained to."""
        self.tokenise_seconds = 0.0
        """The time that making tokens of texts has taken."""
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="tokenize")

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that are no text."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(one for one, token in added.items() if token.special)

    async def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Token ids of a text; `special`: with the tokens that the tokenizer puts around it."""
        work = functools.partial(self._encode, text, special=special)
        ids, seconds = await self.run(work, len(text))
        self.tokenise_seconds += seconds
        return ids

    async def prompt(self, text: str, *, special: bool, param: str) -> tuple[int, ...]:
        """Token ids of a text, at least one. Raises ApiError where there is none."""
        ids = await self.encode(text, special=special)
        if not ids:
            raise refused(f"{param} has no token", param)
        return ids

    def check(self, tokens: list[int], param: str) -> tuple[int, ...]:
        """Tokens that a client gave."""
        worst = max(tokens, default=0)
        if worst >= self.vocab:
            raise refused(f"{param}: token {worst} is not below {self.vocab}", param)
        return tuple(tokens)

    async def forbidden(self, words: list[str]) -> tuple[tuple[int, ...], ...]:
        """The token sequences of words, as they stand inside a text and behind a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for form in (word, " " + word.lstrip(" ")):
                ids = await self.encode(form, special=False)
                if ids:
                    found[ids] = None
        return tuple(found)

    async def whole_tokenizer(self) -> Any:
        """Transformers' own tokenizer, which renders templates; the first time it is read."""
        if self._whole is None:
            self._whole = await asyncio.to_thread(whole_tokenizer, self.tokenizer)
        return self._whole

    async def decode(self, tokens: tuple[int, ...]) -> str:
        """Text, special tokens kept."""
        work = functools.partial(self.tokenizer.decode, list(tokens), skip_special_tokens=False)
        return await self.run(work, 4 * len(tokens))

    def pieces(self, tokens: tuple[int, ...]) -> list[str]:
        """Each token's text by itself."""
        decode = self.tokenizer.decode
        return [decode([token], skip_special_tokens=False) for token in tokens]

    async def run(self, work: Callable[[], T], characters: int) -> T:
        """Here where it is short, on a thread where it is long."""
        if characters <= SHORT_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """End the threads that tokenise."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _thought_ids(self) -> tuple[int, int] | None:
        if self.thoughts is None:
            return None
        marks = (self.thoughts.open, self.thoughts.close)
        begin, end = (self._backend.token_to_id(mark) for mark in marks)
        if begin is None or end is None or max(begin, end) >= self.vocab:
            return None
        return begin, end

    def _encode(self, text: str, *, special: bool) -> tuple[tuple[int, ...], float]:
        """The ids, and the time that they took."""
        began = perf_counter()
        ids = tuple(self._backend.encode_batch([text], add_special_tokens=special)[0].ids)
        return ids, perf_counter() - began


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of a token at one place of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


def prompt_logprobs_of(
    found: Sequence[TokenLogprobs], wanted: int | None
) -> list[dict[str, PromptLogprob] | None] | UnsetType:
    """By token id for each place of the prompt; its first token has none.

    Args:
        found: What the engine said.
        wanted: How many of the most likely ones beside the prompt's own; None: not asked for.
    """
    if wanted is None:
        return UNSET
    return [
        None
        if one.chosen is None
        else {
            str(entry.token): PromptLogprob(
                logprob=max(entry.logprob, LOWEST_LOGPROB),
                rank=entry.rank,
                decoded_token=entry.text,
            )
            for entry in (*one.top[:wanted], one.chosen)
        }
        for one in found
    ]


def _by_id(one: Logprob) -> Logprob:
    return Logprob(one.token, f"token_id:{one.token}", one.logprob, one.rank)


@dataclass(slots=True)
class TokenReport:
    """The tokens of one request so far, as far as it asks for them."""

    submits: Sequence[Submit]
    ids_wanted: bool
    continuous: bool
    """Whether every chunk says the usage so far."""
    names_by_id: bool = False
    """Whether log-probabilities name tokens by their ids."""
    num_new: int = 0

    @classmethod
    def of(cls, body: SamplingFields, submits: Sequence[Submit]) -> TokenReport:
        """What a request asks for."""
        options = body.stream_options
        return cls(
            submits=submits,
            ids_wanted=bool(body.return_token_ids),
            continuous=body.usage_in_stream and bool(options and options.continuous_usage_stats),
            names_by_id=bool(body.return_tokens_as_token_ids),
        )

    def take(self, delta: Delta) -> None:
        """Count the tokens that came."""
        self.num_new += len(delta.tokens)

    def prompt_ids(self, position: int = 0) -> tuple[int, ...] | UnsetType:
        """The prompt's token ids, where they are asked for."""
        return self.submits[position].prompt if self.ids_wanted else UNSET

    def ids(self, tokens: Sequence[int]) -> tuple[int, ...] | UnsetType:
        """A completion's token ids, where they are asked for."""
        return tuple(tokens) if self.ids_wanted else UNSET

    def named(self, found: Iterable[TokenLogprobs]) -> list[TokenLogprobs]:
        """Log-probabilities whose tokens are called as the request asks for it."""
        if not self.names_by_id:
            return list(found)
        return [
            TokenLogprobs(
                None if one.chosen is None else _by_id(one.chosen),
                tuple(_by_id(top) for top in one.top),
            )
            for one in found
        ]

    def name(self, token: int, text: str) -> str:
        """What a token is called as the request asks for it."""
        return f"token_id:{token}" if self.names_by_id else text

    def usage(self) -> TokenUsage | None:
        """The counts so far, where every chunk has them."""
        if not self.continuous:
            return None
        prompt = sum(len(submit.prompt) for submit in self.submits)
        return TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=self.num_new,
            total_tokens=prompt + self.num_new,
            prompt_tokens_details=PromptDetails(cached_tokens=0),
        )
