"""Which tokens of which sequences are computed in the next step.

One step mixes decodes and prompts: every sequence that decodes gets its token first, drafts take
some of what is left, and prompts are computed in chunks that fill the budget (Agrawal et al.,
"Sarathi-Serve", 2403.02310, section 4). When blocks run out, the newest sequence is thrown out and
computes again later (Kwon et al., 2309.06180, section 4.5, recomputation).

It cannot deadlock. A sequence is admitted with blocks for all its tokens, so only decoding asks for
more; whoever asks may throw out everyone newer, so the oldest always goes on; and no sequence may
become longer than the whole cache. Blocks that are held for a handover are outside of this: until
`release`, others may have to wait for them.

    scheduler.add(sequence, now)
    step = scheduler.schedule(now)       # the model computes step.slices
    scheduler.complete(step, sampled, now)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from operator import attrgetter

from ridgeline.batching.blocks import BlockCache, direct_copies
from ridgeline.batching.given_drafts import give_drafts
from ridgeline.batching.invariants import check_books
from ridgeline.batching.pace import StepPace
from ridgeline.batching.policies import Limits, QueueFull, mode, ordering
from ridgeline.batching.sampled_tokens import take_in
from ridgeline.batching.sequence import (
    Counters,
    FinishReason,
    Request,
    Sequence,
    Slice,
    Status,
    Step,
    decodes_of,
)
from ridgeline.errors import InputError

_DRAFTS = attrgetter("drafts")


class Scheduler:
    """Sequences in, steps out. `running` is sorted by who may stay longest."""

    def __init__(self, limits: Limits, cache: BlockCache) -> None:
        if not limits.chunked_prefill and limits.max_tokens_per_step < limits.max_length:
            raise InputError(
                "without chunked prefill a step must hold a whole prompt: raise "
                f"max_tokens_per_step from {limits.max_tokens_per_step} to max_length,"
                f" {limits.max_length}, or more"
            )
        self.limits = limits
        self.cache = cache
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.handed_over: list[Sequence] = []
        """Finished, with blocks that another engine still has to fetch."""
        self.pace: StepPace | None = None
        """Says how many prompt tokens go beside decodes; None: as many as the step holds."""
        self.counters = Counters()
        self._order = ordering(limits.order)
        # Every decode must fit into a step.
        self._most_running = min(limits.max_sequences, limits.max_tokens_per_step)
        self._mode = mode(limits, self._most_running)
        self._next_serial = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def starts_at(self) -> float | None:
        """When to ask again after an empty step though nothing happens; None: no clock decides."""
        return None if self.running else self._mode.starts_at(self.waiting)

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a new sequence.

        Raises:
            QueueFull: `max_waiting` wait already.
            TooLong: Its prompt leaves no room for a completion, ever.
        """
        if len(self.waiting) >= self.limits.max_waiting:
            raise QueueFull(f"{len(self.waiting)} requests wait already; try again later")
        self._set_longest(sequence)
        self._number(sequence)
        if not self._has_all(sequence, now):
            self._enqueue(sequence, now)

    def fork(
        self, parent: Sequence, request: Request, now: float, *, last_token: int | None = None
    ) -> Sequence:
        """Begin a second continuation of the parent's tokens, between `complete` and `schedule`.

        It shares the parent's computed blocks and runs at once where the parent decodes and a seat
        is free; else it waits, and finds what the prefix cache has. It comes back finished where
        the parent's tokens are already as many as `request` allows.

        Args:
            parent: In any state.
            request: Of the child, with the parent's prompt.
            now: Seconds.
            last_token: Instead of the parent's last one (another sample of the same logits).
        """
        assert request.prompt == parent.request.prompt, "a fork continues the same prompt"
        child = Sequence(request=request, tokens=list(parent.tokens), serial=parent.serial)
        self._set_longest(child)
        if last_token is not None:
            assert child.num_generated, "the last token is the prompt's"
            child.tokens[-1] = last_token
        if self._has_all(child, now):
            return child
        decodes = parent.status is Status.RUNNING and parent.num_computed == len(parent.tokens) - 1
        if decodes and self.cache.shares and len(self.running) < self._most_running:
            self.cache.share(parent, child)
            child.first_token_at = parent.first_token_at
            self._start(child, now)
        else:
            self._enqueue(child, now)
        return child

    def adopt(self, sequence: Sequence, num_computed: int, now: float) -> bool:
        """Run a sequence whose first `num_computed` tokens' KV the caller writes into its blocks.

        Returns:
            Whether it was taken; if not, nothing has changed: there is no room now, or someone who
            came earlier waits for it. A sequence with as many tokens as it may have ends at once.

        Raises:
            TooLong: There never will be.
        """
        assert 0 <= num_computed < len(sequence.tokens), "one token is left to compute"
        self._set_longest(sequence)
        if self._has_all(sequence, now):
            return True
        earlier = any(one.request.arrival <= sequence.request.arrival for one in self.waiting)
        if earlier or len(self.running) >= self._most_running:
            return False
        if not self.cache.admit(sequence, [], reserve=len(self.running)):
            return False
        sequence.num_computed = num_computed
        self._number(sequence)
        self.counters.prompt_tokens += len(sequence.request.prompt)
        self._start(sequence, now)
        return True

    def schedule(
        self, now: float, apart: Collection[Sequence] = (), most_slices: int | None = None
    ) -> Step:
        """The next step; without slices where nothing can be computed now.

        A step with slices must be computed: blocks that it fills are known to others already. So
        steps may be under way together as long as they are computed in the order in which they
        were scheduled.

        Args:
            now: Seconds.
            apart: Sequences of steps that were scheduled and are not completed: they stay as they
                are.
            most_slices: The most sequences in it; None: all that there are.
        """
        copies: list[tuple[int, int]] = []
        preempted: list[Sequence] = []
        prompts: list[Sequence] = []
        running = [one for one in self.running if one not in apart] if apart else self.running
        stuck: set[Sequence] = set()
        asking = [one for one in running if one.num_computed >= one.writable]
        for sequence in self.cache.extend_full(asking):
            if sequence.status is not Status.RUNNING:
                continue  # gave way to an older one
            if sequence.num_computed < len(sequence.tokens) - 1:
                prompts.append(sequence)
            elif not self._grow(sequence, copies, preempted, now, apart):
                stuck.add(sequence)
        # What is done for every sequence and step (here and in `take_in`) is most of the cost.
        # Those whose prompt is not computed yet have nothing writable.
        if apart or preempted:
            running = [one for one in self.running if one not in apart]
        decoding = running
        if prompts or stuck or preempted:
            decoding = [one for one in running if one.writable and one not in stuck]
        plain = tuple(decoding[:most_slices])
        slices = decodes_of(plain)
        left = self.limits.max_tokens_per_step - len(slices)
        if preempted:
            prompts = [one for one in prompts if one.status is Status.RUNNING]
        most = None
        if self.pace is not None and slices and (prompts or self.waiting):
            next_ones = self.waiting[: max(0, self._most_running - len(self.running))]
            most = self.pace.tokens_of_prompts(len(slices), prompts, next_ones, self.cache)
        if any(map(_DRAFTS, running)):
            plain = ()
            share = left // 2 if prompts or self.waiting else left
            left -= give_drafts(slices, share, copies, self.cache, self.counters)
        if most is not None:
            left = min(left, most)
        for sequence in prompts:
            if most_slices is None or len(slices) < most_slices:
                left -= self._chunk(sequence, slices, left)
        if self.waiting and left > 0 and not preempted:
            self._admit(slices, left, now, most_slices)
        if slices:
            self.counters.steps += 1
        return Step(tuple(slices), direct_copies(copies), tuple(preempted), plain)

    def complete(self, step: Step, sampled: list[list[int]], now: float) -> None:
        """Take in what a step computed.

        Sequences at their limit end here (LENGTH, or HANDOVER after a prefill); a stop is the
        caller's to see, who calls `finish` afterwards. Sequences that were finished in between are
        passed over.

        Args:
            step: Of the last `schedule`.
            sampled: For each slice, nothing where it does not sample, else the accepted drafts and
                one token more.
            now: Seconds.
        """
        ended = take_in(step, sampled, now, self.cache, self.counters)
        for sequence in ended:
            whole = sequence.most_tokens == self._most_tokens(sequence)
            self.finish(sequence, FinishReason.LENGTH if whole else FinishReason.HANDOVER, now)

    def finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """End a sequence in whatever state it is; one that has ended stays so.

        But a stop that is seen in the last token allowed is a stop: it replaces LENGTH.
        """
        if sequence.status is Status.FINISHED:
            if reason is FinishReason.STOP and sequence.finish_reason is FinishReason.LENGTH:
                self.counters.finished[FinishReason.LENGTH.value] -= 1
                self._end(sequence, reason, now)
            return
        self._remove(sequence)
        if reason is FinishReason.HANDOVER:
            self.handed_over.append(sequence)
        else:
            self.cache.free(sequence)
        self._end(sequence, reason, now)

    def discard(self, sequence: Sequence, now: float) -> None:
        """End a sequence whose part of a step could not be computed.

        Nothing that it alone has computed is found by others, nor what it would have computed.
        """
        if sequence.status is Status.FINISHED:
            return
        self._remove(sequence)
        self.cache.discard(sequence, sequence.num_computed)
        self._end(sequence, FinishReason.ABORT, now)

    def postpone(self, sequence: Sequence, now: float) -> None:
        """Let a running sequence wait and compute again: it shared what was never computed."""
        self._remove(sequence)
        sequence.cached_tokens = sequence.lost_tokens = 0
        self.cache.discard(sequence, sequence.num_computed)
        self._wait_again(sequence, now)

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence that was handed over and fetched."""
        self.handed_over.remove(sequence)
        self.cache.free(sequence)

    def check(self) -> None:
        """Raise AssertionError with what is broken, in the scheduler's books or the cache's."""
        ranks = [self._order.running_rank(one) for one in self.running]
        assert ranks == sorted(ranks), "running sequences are out of order"
        assert len(self.running) <= self._most_running, "more run than may"
        check_books(self.running, self.waiting, self.handed_over, self.cache)

    def _grow(
        self,
        sequence: Sequence,
        copies: list[tuple[int, int]],
        out: list[Sequence],
        now: float,
        apart: Collection[Sequence],
    ) -> bool:
        """Room for one token; the newest give way, in the end the sequence itself.

        Returns:
            False where it has to wait for a newer one that is in a step under way.
        """
        while not self.cache.extend(sequence, sequence.num_computed + 1, copies):
            if apart and self.running[-1] in apart:
                return False
            victim = self.running.pop()
            victim.lost_tokens = victim.num_computed
            self.cache.free(victim)
            self._wait_again(victim, now)
            out.append(victim)
            if victim is sequence:
                break
        return True

    def _wait_again(self, sequence: Sequence, now: float) -> None:
        """Let a sequence wait that ran and holds nothing any more."""
        sequence.num_preemptions += 1
        sequence.drafts, sequence.parents = [], ()
        sequence.status = Status.WAITING
        self._mode.note_preemption()
        self._enqueue(sequence, now)
        self.counters.preemptions += 1

    def _remove(self, sequence: Sequence) -> None:
        """Strike a sequence out of those who run or wait."""
        if sequence.status is Status.RUNNING:
            rank = self._order.running_rank
            place = bisect_left(self.running, rank(sequence), key=rank)
            while self.running[place] is not sequence:  # forks have their parent's rank
                place += 1
            del self.running[place]
        else:
            # By identity: `remove` compares, which takes five times as long.
            self.waiting[:] = [one for one in self.waiting if one is not sequence]

    def _chunk(self, sequence: Sequence, slices: list[Slice], left: int) -> int:
        """Compute as much of a prompt as fits; its blocks may be shared from this step on."""
        start = sequence.num_computed
        count = min(self.cache.room(sequence), left)
        sequence.drafts, sequence.parents = [], ()
        if count > 0:
            # The step writes all keys before it reads any, so who is admitted next may use these.
            self.cache.remember(sequence, start + count)
            slices.append(Slice(sequence, start, count))
        return count

    def _admit(self, slices: list[Slice], left: int, now: float, most_slices: int | None) -> None:
        """Start those who wait, in order, until seats, budget or blocks run out."""
        seats = self._mode.seats(len(self.running), self.waiting, now)
        if most_slices is not None:
            seats = min(seats, most_slices - len(slices))
        if seats > 0 and not self._order.settled:
            self.waiting.sort(key=lambda one: self._order.waiting_rank(one, self.cache))
        while seats > 0 and left > 0 and self.waiting:
            sequence = self.waiting[0]
            known = self.cache.known(sequence)
            missing = len(sequence.tokens) - len(known) * self.cache.block_size
            if missing > left and not self.limits.chunked_prefill:
                return
            # A block for each who runs to grow into: of admitting sooner, most is preempted again.
            if not self.cache.admit(sequence, known, reserve=len(self.running)):
                return
            del self.waiting[0]
            self.counters.note_admission(sequence, looked_up=self.cache.prefix)
            self._start(sequence, now)
            self._mode.note_admission()
            left -= self._chunk(sequence, slices, left)
            seats -= 1

    def _start(self, sequence: Sequence, now: float) -> None:
        sequence.status = Status.RUNNING
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now
        insort(self.running, sequence, key=self._order.running_rank)

    def _enqueue(self, sequence: Sequence, now: float) -> None:
        sequence.queued_at = now
        insort(self.waiting, sequence, key=lambda one: self._order.waiting_rank(one, self.cache))

    def _has_all(self, sequence: Sequence, now: float) -> bool:
        """Whether it came with as many tokens as it may have; if so, it ends."""
        if len(sequence.tokens) < sequence.most_tokens:
            return False
        self._end(sequence, FinishReason.LENGTH, now)
        return True

    def _end(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason
        sequence.finished_at = now
        sequence.drafts, sequence.parents = [], ()
        finished = self.counters.finished
        finished[reason.value] = finished.get(reason.value, 0) + 1

    def _number(self, sequence: Sequence) -> None:
        sequence.serial = self._next_serial
        self._next_serial += 1

    def _set_longest(self, sequence: Sequence) -> None:
        """Set how long it may become.

        Raises:
            TooLong: Not even one token longer than its prompt.
        """
        most, prompt = self._most_tokens(sequence), len(sequence.request.prompt)
        sequence.most_tokens = min(most, prompt + 1) if sequence.request.prefill_only else most

    def _most_tokens(self, sequence: Sequence) -> int:
        return self.limits.most_tokens(sequence.request, self.cache.most_tokens)
