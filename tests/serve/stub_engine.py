"""An engine without a model; it says what the prompt tells it to.

`SAY text` in the prompt: that text, token by token; otherwise it counts. `SLOW`: 20 ms a step.
`DIE`: the process kills itself at the request's second token. `HANG`: its step never ends.
`FILL`: the answer goes on for ever (up to max_tokens). `REST`: nothing follows its first token.
`TALK`: more on stderr than a pipe holds.
An adapter may lie anywhere but at a path `….adapter` where nothing is.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import (
    Abort,
    Delta,
    Done,
    Embed,
    Embedded,
    ForgetPrefixes,
    FromEngine,
    LoadAdapter,
    Logprob,
    MemoryLedger,
    MemoryRow,
    Ready,
    Refused,
    Stats,
    Submit,
    Times,
    ToEngine,
    TokenLogprobs,
    UnloadAdapter,
)

VOCAB, BLOCKS, BLOCK_SIZE = 2048, 64, 16
SLOWER = ("experts as numbers: the stub has none",)
ORDER = re.compile(r"SAY (.*?)(?:\s*END|$)", re.DOTALL)


@dataclass
class Answer:
    submit: Submit
    index: int
    order: str
    to_say: deque[int]
    said: list[int] = field(default_factory=list)
    arrived: float = field(default_factory=time.monotonic)
    first: float | None = None
    text: str = ""


class StubEngine:
    def __init__(self, config: EngineConfig) -> None:
        atexit.register(print, "a library's farewell", file=sys.stderr)
        if config.max_sequences == 13:
            raise InputError("--max-sequences 13 brings bad luck; choose another")
        if config.max_sequences == 14:
            raise RuntimeError("a bug\nover two lines")
        if config.max_sequences == 15:
            os.kill(os.getpid(), signal.SIGKILL)
        for path in config.adapters.values():
            check_adapter(path)
        self._max_waiting = config.max_waiting
        self._tokenizer = Tokenizer.from_file(f"{config.model}/tokenizer.json")
        self._answers: list[Answer] = []
        self._out: list[FromEngine] = []
        self._adapters: tuple[str, ...] = tuple(config.adapters)
        self._steps = self._generated = self._prompt_tokens = 0
        ledger = MemoryLedger(
            rows=(MemoryRow(what="weights", bytes=1000), MemoryRow(what="kv blocks", bytes=2000)),
            total_bytes=3000,
            limit_bytes=4000,
            num_blocks=BLOCKS,
            block_size=BLOCK_SIZE,
            bytes_per_token=2,
            tokens=BLOCKS * BLOCK_SIZE,
            max_length=256,
            largest_concurrency=4.0,
            layers="all in one operator",
        )
        self.ready = Ready(
            model=config.model, ledger=ledger, max_length=256, vocab=VOCAB, adapters=self._adapters,
            slower=SLOWER,
        )  # fmt: skip

    @property
    def has_work(self) -> bool:
        return bool(self._answers)

    def watch(self, lost: Callable[[str], None]) -> None:
        """It has no ranks."""

    def preparation(self, message: ToEngine) -> None:
        """Nothing takes long here."""

    def refuse(self, message: ToEngine, error: BaseException) -> None:
        self._out.append(Refused(id=message.id, message=str(error), status=500))

    def handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._answers = [a for a in self._answers if a.submit.id != message.id]
            case Embed():
                vectors = tuple((float(len(p)), 0.5) for p in message.prompts)
                self._out.append(Embedded(id=message.id, vectors=vectors))
            case LoadAdapter():
                try:
                    check_adapter(message.path)
                except InputError as error:
                    self._out.append(Refused(id=message.id, message=str(error)))
                    return
                self._adapters = (*self._adapters, message.name)
                self._out.append(Done(id=message.id))
            case ForgetPrefixes():
                self._out.append(Done(id=message.id))
            case UnloadAdapter():
                self._adapters = tuple(a for a in self._adapters if a != message.name)
                self._out.append(Done(id=message.id))

    def _submit(self, message: Submit) -> None:
        if len({a.submit.id for a in self._answers}) > self._max_waiting:
            text = "the queue is full; try again later"
            self._out.append(Refused(id=message.id, message=text, status=429))
            return
        if message.sampling.grammar is not None and message.sampling.grammar.text == "(":
            text = "regex: unbalanced parenthesis"
            self._out.append(Refused(id=message.id, message=text, parameter="regex"))
            return
        prompt = self._tokenizer.decode(list(message.prompt), skip_special_tokens=False)
        said = ORDER.search(prompt)
        text = said.group(1) if said else " one two three"
        if "FILL" in prompt:
            text = " a" * message.sampling.max_tokens
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        self._prompt_tokens += len(message.prompt)
        for index in range(message.n):
            self._answers.append(Answer(message, index, prompt, deque(tokens)))

    def step(self) -> None:
        self._steps += 1
        orders = " ".join(answer.order for answer in self._answers)
        if "HANG" in orders:
            time.sleep(1000)
        if "TALK" in orders:
            sys.stderr.write("x" * 2**20)
        if "SLOW" in orders:
            time.sleep(0.02)
        for answer in list(self._answers):
            self._advance(answer)

    def _advance(self, answer: Answer) -> None:
        if "DIE" in answer.order and len(answer.said) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if "REST" in answer.order and answer.said:
            return
        sampling, token = answer.submit.sampling, answer.to_say.popleft()
        answer.said.append(token)
        self._generated += 1
        now = time.monotonic()
        answer.first = answer.first or now
        skips = not sampling.keep_special
        whole = self._tokenizer.decode(answer.said, skip_special_tokens=skips)
        new = whole[len(answer.text) :] if not whole.endswith("�") else ""
        answer.text += new
        length = len(answer.said) >= sampling.max_tokens
        reason = "stop" if not answer.to_say else "length" if length else None
        ended = reason is not None
        delta = Delta(
            id=answer.submit.id,
            index=answer.index,
            tokens=(token,),
            text=new,
            logprobs=()
            if sampling.logprobs is None
            else (self._logprobs(token, sampling.logprobs),),
            prompt_logprobs=self._of_prompt(answer),
            finish_reason=reason,
            prompt_tokens=len(answer.submit.prompt) if ended else 0,
            cached_tokens=3 if ended else 0,
            output_tokens=len(answer.said) if ended else 0,
            times=Times(
                arrived=answer.arrived,
                scheduled=answer.arrived,
                first_token=answer.first,
                finished=now,
            )
            if ended
            else None,
        )
        self._out.append(delta)
        if ended:
            self._answers.remove(answer)

    def _of_prompt(self, answer: Answer) -> tuple[TokenLogprobs, ...]:
        wanted = answer.submit.sampling.prompt_logprobs
        if wanted is None or answer.index or len(answer.said) > 1:
            return ()
        others = answer.submit.prompt[1:]
        return (TokenLogprobs(None, ()), *(self._logprobs(one, wanted) for one in others))

    def _logprobs(self, token: int, count: int) -> TokenLogprobs:
        top = tuple(self._logprob(token + rank, rank) for rank in range(count))
        return TokenLogprobs(self._logprob(token, 0), top)

    def _logprob(self, token: int, rank: int) -> Logprob:
        text = self._tokenizer.decode([token % VOCAB])
        return Logprob(token % VOCAB, text, -0.5 - rank, rank + 1)

    def take(self) -> list[FromEngine]:
        out, self._out = self._out, []
        return out

    def stats(self) -> Stats:
        return Stats(
            at=time.monotonic(),
            running=len(self._answers),
            waiting=0,
            cache_usage=0.25,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generated,
            prefix_queries=0,
            prefix_hits=0,
            preemptions=0,
            wasted_tokens=0,
            adapters=self._adapters,
        )

    def close(self) -> None:
        self._answers.clear()


def check_adapter(path: str) -> None:
    """Of those that are to be there, `….adapter`."""
    if path.endswith(".adapter") and not Path(path).exists():
        raise InputError(f"{path} has no adapter_config.json")
