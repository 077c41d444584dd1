"""What a scheduler may keep at once, when it takes someone in, in which order, and what it refuses.

A mode says how many of those who wait may be admitted now, an order which of them, and who stays
when room runs out. Neither touches blocks or tokens: that is `scheduler.py`. The docstring of each
order says who can starve under it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from ridgeline.batching.sequence import Request, Sequence

if TYPE_CHECKING:
    from ridgeline.batching.blocks import BlockCache

Batching = Literal["continuous", "static", "dynamic"]
"""How sequences come and go. continuous: at every step. static: a full batch (or all that wait when
nothing runs) is started together and ends together. dynamic: as static, but a batch starts when it
is full or its oldest request has waited `dynamic_delay_seconds`."""
Order = Literal["fcfs", "priority", "shortest-prompt", "longest-prefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Field for field the flags of `ridgeline serve`."""

    max_tokens_per_step: int = 2048
    """Budget of a mixed step: decodes first, what is left goes to chunks of prompts."""
    max_sequences: int = 256
    """The most sequences that run at once."""
    max_length: int = 4096
    """Tokens of one sequence, prompt and completion."""
    max_waiting: int = 1024
    """The longest queue, beyond which `Scheduler.add` refuses (`QueueFull`)."""
    batching: Batching = "continuous"
    order: Order = "fcfs"
    dynamic_delay_seconds: float = 0.05
    chunked_prefill: bool = True
    """Whether prompts are computed in chunks; off: in one step, or they wait (for comparison)."""

    def most_tokens(self, request: Request, cache_tokens: int) -> int:
        """The longest that a request may become, prompt and completion.

        Args:
            request: Prompt, and how many tokens it asks for.
            cache_tokens: Tokens of one sequence that has the cache to itself.

        Raises:
            TooLong: Not even one token longer than its prompt.
        """
        prompt = len(request.prompt)
        # The last token's KV is never needed.
        most = min(prompt + request.max_tokens, self.max_length, cache_tokens + 1)
        if prompt >= most:
            raise TooLong(
                f"the prompt has {prompt} tokens and at most {most - 1} leave room for an answer"
                f" (max_length {self.max_length}, cache {cache_tokens})"
            )
        return most


class Refusal(ValueError):
    """The request was not taken; the message says why and what to change."""


class QueueFull(Refusal):
    """Too many wait already; the same request may be taken later."""


class TooLong(Refusal):
    """The request can never fit."""


class Mode(Protocol):
    """A way of batching, asked at every step and told of every admission and preemption."""

    def seats(self, running: int, waiting: list[Sequence], now: float, /) -> int:
        """How many may be admitted now."""
        ...

    def note_admission(self) -> None:
        """Note that a seat was taken."""
        ...

    def note_preemption(self) -> None:
        """Note that one who had a seat waits again."""
        ...

    def starts_at(self, waiting: list[Sequence], /) -> float | None:
        """When a batch starts though nobody new comes; None: no clock decides."""
        ...


class Continuous:
    """A seat is free as soon as its sequence ends (continuous batching).

    Yu et al., "Orca" (OSDI 2022), section 3.1, where it is called iteration-level scheduling.
    """

    def __init__(self, most_running: int) -> None:
        self._most = most_running

    def seats(self, running: int, _waiting: list[Sequence], _now: float) -> int:
        """The seats that are empty."""
        return self._most - running

    def note_admission(self) -> None:
        """Seats are counted, not remembered."""

    def note_preemption(self) -> None:
        """Seats are counted, not remembered."""

    def starts_at(self, _waiting: list[Sequence]) -> float | None:
        """None, for no clock decides."""
        return None


class StaticBatches:
    """A batch is chosen when nothing runs, the next one when all of it has ended (static batching).

    Early finishers leave their seats empty. Their blocks are freed, which is kinder than the
    engines of old; what is compared is the waiting. Nobody starves that would not under the order
    in use.
    """

    def __init__(self, most_running: int) -> None:
        self._most = most_running
        self._open = 0

    def seats(self, running: int, waiting: list[Sequence], now: float) -> int:
        """What the present batch has left, or a new batch when nothing runs."""
        if not running and not self._open and self._may_start(waiting, now):
            self._open = min(len(waiting), self._most)
        self._open = min(self._open, len(waiting))
        return min(self._open, self._most - running)

    def note_admission(self) -> None:
        """One fewer of the batch is still to be admitted."""
        self._open -= 1

    def note_preemption(self) -> None:
        """The seat stays its sequence's own."""
        self._open += 1

    def starts_at(self, _waiting: list[Sequence], /) -> float | None:
        """None, for a batch starts at once."""
        return None

    def _may_start(self, waiting: list[Sequence], _now: float, /) -> bool:
        return bool(waiting)


class DynamicBatches(StaticBatches):
    """A static batch that starts only when it is full or its oldest request is old.

    The scheme of servers for models without a sequence to continue (Triton's dynamic batcher).
    """

    def __init__(self, most_running: int, delay_seconds: float) -> None:
        super().__init__(most_running)
        self._delay_seconds = delay_seconds

    def starts_at(self, waiting: list[Sequence], /) -> float | None:
        """When the oldest has waited long enough."""
        arrivals = [one.queued_at for one in waiting if one.queued_at is not None]
        return min(arrivals) + self._delay_seconds if arrivals else None

    def _may_start(self, waiting: list[Sequence], now: float, /) -> bool:
        if len(waiting) >= self._most:
            return True
        start = self.starts_at(waiting)
        return start is not None and now >= start


def mode(limits: Limits, most_running: int) -> Mode:
    """The batching mode of these limits, with a state of its own.

    Raises:
        ValueError: There is none of that name.
    """
    match limits.batching:
        case "continuous":
            return Continuous(most_running)
        case "static":
            return StaticBatches(most_running)
        case "dynamic":
            return DynamicBatches(most_running, limits.dynamic_delay_seconds)
    raise ValueError(
        f"no batching is called {limits.batching!r}; there are {', '.join(get_args(Batching))}"
    )


Rank = tuple[int, ...]
"""A place in a queue: lower goes first, and equal ranks keep their order."""


class Ordering(Protocol):
    """An order without a state: ranks are functions of a sequence."""

    settled: bool
    """Whether the rank of a waiting sequence never changes."""

    def waiting_rank(self, sequence: Sequence, cache: BlockCache, /) -> Rank:
        """A place in the queue: the lowest is admitted next."""
        ...

    def running_rank(self, sequence: Sequence) -> Rank:
        """A place among those that run: the highest is preempted first."""
        ...


class FirstCome:
    """First come, first served: nobody starves, for whoever came before is served before.

    A sequence that was preempted came before all who wait, so it is in front of them again; the
    newest is preempted. The queue never overtakes its head, even where a shorter prompt would fit.
    """

    settled = True

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> Rank:
        """The order of arrival at the scheduler."""
        return (sequence.serial,)

    def running_rank(self, sequence: Sequence) -> Rank:
        """The order of arrival: who came last has the least to lose."""
        return (sequence.serial,)


class Priority:
    """`Request.priority` first, lower before higher; by arrival among equals.

    Low urgency starves for as long as more urgent requests fill the engine: that is what was asked
    for. Whoever runs is only preempted when blocks run out, the least urgent first and of those the
    newest; nobody is thrown out merely because someone more urgent waits.
    """

    settled = True

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> Rank:
        """The priority, then the order of arrival."""
        return (sequence.request.priority, sequence.serial)

    def running_rank(self, sequence: Sequence) -> Rank:
        """The priority, then the order of arrival."""
        return (sequence.request.priority, sequence.serial)


class ShortestPrompt(FirstCome):
    """Short prompts go first: the least mean time to first token, as shortest-job-first has it.

    Long prompts starve while shorter ones keep coming. Preempted sequences go before all others:
    they were given a place already, and each wait costs a computation again.
    """

    def waiting_rank(self, sequence: Sequence, _cache: BlockCache) -> Rank:
        """Preempted sequences, then new ones by the length of their prompt."""
        fresh = sequence.scheduled_at is None
        return (fresh, len(sequence.request.prompt) if fresh else 0, sequence.serial)


class LongestPrefix(FirstCome):
    """Whoever finds most of its prompt in the cache first, before its blocks are overwritten.

    The order of SGLang's `lpm` (Zheng et al., 2312.07104, section 3). Prompts that share nothing
    starve while others that do keep coming. What is known changes with every step, so the queue is
    sorted whenever a seat is free: one look-up per block of every prompt that waits.
    """

    settled = False

    def waiting_rank(self, sequence: Sequence, cache: BlockCache) -> Rank:
        """Preempted sequences, then new ones by the blocks of theirs that are known."""
        fresh = sequence.scheduled_at is None
        return (fresh, -len(cache.known(sequence)) if fresh else 0, sequence.serial)


ORDERS: dict[Order, Ordering] = {
    "fcfs": FirstCome(),
    "priority": Priority(),
    "shortest-prompt": ShortestPrompt(),
    "longest-prefix": LongestPrefix(),
}


def ordering(name: Order) -> Ordering:
    """The order of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in ORDERS:
        raise ValueError(f"no order is called {name!r}; there are {', '.join(get_args(Order))}")
    return ORDERS[name]
