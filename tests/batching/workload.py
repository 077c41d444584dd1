"""Random life on a scheduler: requests come, stop, are cancelled, forked, drafted, handed over."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from tests.batching.fake_model import VOCAB, FakeModel, entries, entry, following, picked

from ridgeline.batching.policies import Refusal
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import FinishReason, Request, Sequence, Status, Step

STEMS = [[(7 * stem + i * i) % VOCAB for i in range(40)] for stem in range(3)]
"""Beginnings that prompts share."""


@dataclass
class Workload:
    scheduler: Scheduler
    random: Random
    longest_prompt: int = 40
    longest_answer: int = 24
    drafting: bool = True
    now: float = 0.0
    all: list[Sequence] = field(default_factory=list)
    forced: dict[Sequence, set[int]] = field(default_factory=dict)
    """Positions where a fork was given its token."""
    refused: int = 0

    def __post_init__(self) -> None:
        self.model = FakeModel(self.scheduler)

    def live(self) -> list[Sequence]:
        return [*self.scheduler.running, *self.scheduler.waiting]

    def request(self, **more: bool) -> Request:
        draw = self.random
        length = draw.randint(1, self.longest_prompt)
        shared = draw.randint(0, length)
        prompt = draw.choice(STEMS)[:shared]
        prompt = prompt + [draw.randrange(VOCAB) for _ in range(length - len(prompt))]
        return Request(
            id=str(len(self.all)),
            prompt=tuple(prompt),
            max_tokens=draw.randint(1, self.longest_answer),
            arrival=self.now,
            priority=draw.randint(0, 2),
            adapter=draw.choice(("", "", "lora")),
            reuse_prefix=draw.random() < 0.9,
            **more,
        )

    def submit(self) -> None:
        request = self.request(prefill_only=self.random.random() < 0.1)
        sequence = Sequence(request=request, tokens=list(request.prompt))
        try:
            self.scheduler.add(sequence, self.now)
        except Refusal:
            self.refused += 1
        else:
            self.all.append(sequence)

    def adopt(self) -> None:
        request = self.request()
        tokens = [*request.prompt, following(list(request.prompt), request.adapter)]
        sequence = Sequence(request=request, tokens=tokens)
        try:
            taken = self.scheduler.adopt(sequence, len(request.prompt), self.now)
        except Refusal:
            self.refused += 1
            return
        if taken:
            self.all.append(sequence)
            if sequence.status is Status.RUNNING:
                self.model.fill(sequence)

    def end(self) -> None:
        live = self.live()
        if live:
            reason = self.random.choice((FinishReason.ABORT, FinishReason.STOP))
            self.scheduler.finish(self.random.choice(live), reason, self.now)

    def fork(self) -> None:
        live = [one for one in self.live() if not one.request.prefill_only]
        if not live:
            return
        parent = self.random.choice(live)
        old = parent.request
        request = Request(
            id=f"{old.id}'",
            prompt=old.prompt,
            max_tokens=old.max_tokens,
            arrival=self.now,
            priority=old.priority,
            adapter=old.adapter,
            reuse_prefix=old.reuse_prefix,
        )
        last = self.random.randrange(VOCAB) if parent.num_generated else None
        child = self.scheduler.fork(parent, request, self.now, last_token=last)
        self.all.append(child)
        self.forced[child] = set(self.forced.get(parent, ()))
        if last is not None:
            self.forced[child].add(len(child.tokens) - 1)
        if child.status is Status.RUNNING:
            self.model.computed[child] = child.num_computed

    def draft(self) -> None:
        """Guesses, half of them right at each place."""
        for sequence in self.scheduler.running:
            sequence.drafts, sequence.parents = [], ()
            if self.random.random() < 0.5:
                self.draft_tree(sequence)
                continue
            kv = entries(sequence.tokens, sequence.request.adapter)
            context, last = sum(kv), kv[-1]
            for position in range(len(sequence.tokens), len(sequence.tokens) + 3):
                guess = picked(context) if self.random.random() < 0.7 else 0
                sequence.drafts.append(guess)
                last = hash((last, guess, position, 0))
                context += last

    def draft_tree(self, sequence: Sequence) -> None:
        """A tree at random, where a draft often follows a right one, and often is right."""
        kv = entries(sequence.tokens, sequence.request.adapter)
        # After each node: where it stands, the sum of the KV up to it, and its own.
        nodes = [(len(sequence.tokens) - 1, sum(kv), kv[-1])]
        parents: list[int] = []
        for _ in range(self.random.randint(1, 9)):
            parent = self.random.randrange(len(nodes))
            place, context, last = nodes[parent]
            guess = picked(context) if self.random.random() < 0.5 else self.random.randrange(VOCAB)
            last = entry(last, guess, place + 1, sequence.request.adapter)
            nodes.append((place + 1, context + last, last))
            sequence.drafts.append(guess)
            parents.append(parent - 1)
        sequence.parents = tuple(parents)

    def release(self) -> None:
        if self.scheduler.handed_over:
            self.scheduler.release(self.random.choice(self.scheduler.handed_over))

    def event(self) -> None:
        """Anything that can happen, most often a step."""
        draw = self.random.random()
        if draw < 0.55:
            self.step()
        elif draw < 0.75:
            self.submit()
        elif draw < 0.81:
            self.end()
        elif draw < 0.87:
            self.fork()
        elif draw < 0.91:
            self.adopt()
        elif draw < 0.95:
            self.release()
        elif self.drafting:
            self.draft()

    def step(self) -> None:
        self.now += 0.01
        self.model.run(self.now)

    def drain(self) -> None:
        """To the end; every step must compute or make room."""
        for sequence in list(self.scheduler.handed_over):
            self.scheduler.release(sequence)
        steps = 0
        while self.scheduler.has_work:
            self.now += 0.01
            step = self.model.run(self.now)
            starts = self.scheduler.starts_at
            assert step.slices or step.preempted or (starts and starts > self.now), "stuck"
            for sequence in list(self.scheduler.handed_over):
                self.scheduler.release(sequence)
            steps += 1
            assert steps < 40_000, "does not end"

    def check(self) -> None:
        """All that was answered is what the model says alone."""
        for sequence in self.all:
            self.check_tokens(sequence)
        cache = self.scheduler.cache
        self.scheduler.check()
        assert cache.num_free == cache.num_blocks, "blocks leaked"

    def check_tokens(self, sequence: Sequence) -> None:
        assert sequence.status is Status.FINISHED
        kv = entries(sequence.tokens, sequence.request.adapter)
        context = sum(kv[: len(sequence.request.prompt) - 1])
        forced = self.forced.get(sequence, ())
        for position in range(len(sequence.request.prompt), len(sequence.tokens)):
            context += kv[position - 1]
            if position not in forced:
                assert sequence.tokens[position] == picked(context), f"token {position} is wrong"
        if sequence.finish_reason is FinishReason.LENGTH:
            assert len(sequence.tokens) == sequence.most_tokens


@dataclass
class SeveralAtOnce(Workload):
    """As many steps under way as a pipeline has stages, which compute them in order."""

    stages: int = 2
    under_way: deque[tuple[Step, list[list[int]]]] = field(default_factory=deque)

    def event(self) -> None:
        draw = self.random.random()
        if draw < 0.7:
            self.step()
        elif draw < 0.9:
            self.submit()
        else:
            self.end()

    def step(self) -> None:
        self.now += 0.01
        apart = {one.sequence for step, _ in self.under_way for one in step.slices}
        each = max(1, -(-len(self.live()) // self.stages))
        step = self.scheduler.schedule(self.now, apart, each)
        assert not apart & {one.sequence for one in step.slices}, "a sequence is in two steps"
        assert not apart & set(step.preempted), "thrown out of a step under way"
        assert len(step.slices) <= each, "one stage has it all"
        self.model.check(step)
        if step.slices:
            self.under_way.append((step, self.model.compute(step)))
        if self.under_way and (not step.slices or len(self.under_way) == self.stages):
            self.scheduler.complete(*self.under_way.popleft(), self.now)

    def drain(self) -> None:
        steps = 0
        while self.scheduler.has_work or self.under_way:
            self.step()
            for sequence in list(self.scheduler.handed_over):
                self.scheduler.release(sequence)
            steps += 1
            assert steps < 10_000, "does not end"
