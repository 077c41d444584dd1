"""What comes of each step: tokens are picked, told to the scheduler, and sent to whom they belong.

Everything that is open stands here: answers, beam searches, embeddings, and what each of their
sequences needs beside its tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from torch import Tensor

from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import FinishReason, Sequence, Status
from ridgeline.batching.step import Step
from ridgeline.serve.engine.answers import Answer, Answers, last_delta, request_of
from ridgeline.serve.engine.choice import Choice, choose
from ridgeline.serve.engine.embeddings import Embeddings
from ridgeline.serve.engine.log import log_answer
from ridgeline.serve.engine.searches import Search, Searches, deltas_of
from ridgeline.serve.engine.speculating import Speculating
from ridgeline.serve.engine.step_inputs import Rows, StepInputs
from ridgeline.serve.messages import Delta, FromEngine, TokenLogprobs
from ridgeline.serve.model.loaded import Computed
from ridgeline.serve.sampling.delta import take
from ridgeline.serve.sampling.sampler import Picked, pick
from ridgeline.serve.sampling.state import SamplingState


class Outcomes:
    """Of one engine."""

    def __init__(
        self,
        scheduler: Scheduler,
        inputs: StepInputs,
        speculating: Speculating | None,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._inputs = inputs
        self._speculating = speculating
        self._clock = clock
        self.answers = Answers()
        self.embeddings = Embeddings()
        self.searches = Searches(scheduler)
        self.adapter_indices: dict[Sequence, int] = {}
        """Of sequences that have an adapter."""
        self.rows_of: dict[Sequence, Rows] = {}
        """Sequences that want other logits than their last token's."""
        self.handed_over: dict[str, Sequence] = {}
        """By request: prefilled, for another engine to fetch."""
        self.out: list[FromEngine] = []
        """Not taken yet."""

    @property
    def open_ids(self) -> list[str]:
        """Of all requests under way, and of those that wait to be fetched."""
        answering = {answer.submit.id for answer in self.answers.of.values()}
        embedding, searching = self.embeddings.open_ids(), self.searches.open_ids
        return [*answering, *embedding, *searching, *self.handed_over]

    @property
    def adapters(self) -> set[str]:
        """Names that open requests use."""
        return self.answers.adapters() | self.searches.adapters()

    def advance(self, step: Step, computed: Computed) -> int:
        """Pick tokens, tell the scheduler, send what came of it; returns how many tokens."""
        drafts = self._speculating
        probabilities = {} if drafts is None else drafts.probabilities
        choice = choose(step, self.answers.of, self.rows_of, probabilities)
        for answer, piece, first in choice.prompt_rows:
            assert answer.prompt_logprobs is not None
            rows = computed.logits[first : first + piece.num_tokens]
            answer.prompt_logprobs.add(rows, piece.start)
        picked = pick(choice.picked_from(computed.logits), choice.wanted)
        if drafts is not None:
            self._keep_states(choice, computed, picked)
        self._embedded(step, computed)
        now = self._clock()
        sampled: list[list[int]] = [[] for _ in step.slices]
        deltas: list[tuple[Answer, SamplingState, Delta]] = []
        for (place, answer), one, found in zip(choice.places, choice.wanted, picked, strict=True):
            own = one.state is answer.state
            prompt = self._prompt_logprobs(answer) if own else ()
            delta = take(one.state, found, prompt_logprobs=prompt)
            deltas.append((answer, one.state, delta))
            if own:
                sampled[place] = list(delta.tokens)
        searches = self._scored(choice, computed, sampled)
        self._scheduler.complete(step, sampled, now)
        for search in searches:
            self._settle(search, now)
        # Siblings first: they fork from the answer while it still has its blocks.
        for answer, state, delta in deltas:
            if state is not answer.state:
                self._fork(answer, state, delta)
        for answer, state, delta in deltas:
            if state is answer.state:
                answer.siblings = ()
                self._send(answer, delta)
        return sum(len(tokens) for tokens in sampled)

    def abort(self, request_id: str) -> None:
        """Nobody waits for this request any more; of an unknown one, nothing."""
        for answer in self.answers.of_request(request_id):
            self.end(answer, FinishReason.ABORT)
        self._close_embedding(request_id)
        if request_id in self.searches:
            self.close_search(self.searches.by_id(request_id))
        if request_id in self.handed_over:
            self._scheduler.release(self.handed_over.pop(request_id))

    def end(self, answer: Answer, reason: FinishReason | None, delta: Delta | None = None) -> None:
        """Free what the answer holds and send its last Delta."""
        assert reason is not None
        sequence = answer.sequence
        self.drop(sequence, reason)
        self.answers.remove(answer)
        if sequence.finish_reason is FinishReason.HANDOVER:
            if reason is FinishReason.HANDOVER:
                self.handed_over[answer.submit.id] = sequence
            else:  # its first token was its last: there is nothing to hand over
                self._scheduler.release(sequence)
        if delta is None:
            answer.state.text.flush()
            delta = Delta(id=answer.submit.id, index=answer.index, text=answer.state.text.take())
        delta = msgspec.structs.replace(delta, finish_reason=reason.value)
        delta = last_delta(delta, sequence, answer.arrived)
        log_answer(delta)
        self.out.append(delta)
        for state in answer.siblings:  # that never began
            self.out.append(msgspec.structs.replace(delta, index=state.index, text=""))

    def close_search(self, search: Search) -> None:
        """Send what a search has found, or that it was aborted, and free what it holds."""
        now = self._clock()
        for sequence in self.searches.close(search, now):
            self._leave(sequence)
        for delta in deltas_of(search, now):
            log_answer(delta)
            self.out.append(delta)

    def drop(self, sequence: Sequence, reason: FinishReason) -> None:
        """Let a sequence go; one that has ended already only leaves our books."""
        self._scheduler.finish(sequence, reason, self._clock())
        self._leave(sequence)

    def _scored(self, choice: Choice, computed: Computed, sampled: list[list[int]]) -> list[Search]:
        """Beam searches that this step computed; puts their tokens into `sampled`."""
        rows: dict[Search, dict[Sequence, Tensor]] = {}
        for _, sequence, row in choice.beam_rows:
            rows.setdefault(self.searches[sequence], {})[sequence] = computed.logits[row]
        given: dict[Sequence, int] = {}
        for search, mine in rows.items():
            given |= search.beams.score(mine)
        for place, sequence, _ in choice.beam_rows:
            sampled[place] = [given[sequence]]
        return list(rows)

    def _settle(self, search: Search, now: float) -> None:
        """Let a search's beams fork and end; send its answers when it is done."""
        adapter = self.adapter_indices.get(search.first)
        began, ended = self.searches.settle(search, now)
        for sequence in ended:
            self._leave(sequence)
        if adapter is not None:
            self.adapter_indices |= dict.fromkeys(began, adapter)
        if search.beams.done:
            self.close_search(search)

    def _keep_states(self, choice: Choice, computed: Computed, picked: list[Picked]) -> None:
        """Keep what each answer's last token was picked from."""
        assert self._speculating is not None
        first = 0
        for (_, answer), one, found in zip(choice.places, choice.wanted, picked, strict=True):
            if one.state is answer.state:
                row = computed.rows[choice.rows[first + len(found.tokens) - 1]]
                self._speculating.keep_state(answer.sequence, computed.states[row])
            first += 1 + len(one.drafts)

    def _prompt_logprobs(self, answer: Answer) -> tuple[TokenLogprobs, ...]:
        """Of an answer whose prompt is computed; once."""
        if answer.prompt_logprobs is None:
            return ()
        found = answer.prompt_logprobs.take()
        answer.prompt_logprobs = None
        del self.rows_of[answer.sequence]
        return found

    def _embedded(self, step: Step, computed: Computed) -> None:
        """Take in the hidden states of prompts that are being embedded; end those that are done."""
        first = 0
        for one in step.slices:
            if one.sequence in self.embeddings:
                states = computed.states[first : first + one.count]
                found = self.embeddings.add(one.sequence, one.start, states)
                if one.samples:
                    self.drop(one.sequence, FinishReason.STOP)
                if found is not None:
                    self.out.append(found)
            first += one.num_tokens

    def _close_embedding(self, message_id: str) -> None:
        for sequence in self.embeddings.close(message_id):
            self.drop(sequence, FinishReason.ABORT)

    def _fork(self, first: Answer, state: SamplingState, delta: Delta) -> None:
        """Begin a further answer with its first token, at the end of the same prompt."""
        salt = first.sequence.request.adapter
        request = request_of(first.submit, state.index, first.arrived, salt)
        now = self._clock()
        child = self._scheduler.fork(first.sequence, request, now, last_token=delta.tokens[-1])
        child.cached_tokens = first.sequence.cached_tokens
        adapter = self.adapter_indices.get(first.sequence)
        if adapter:
            self.adapter_indices[child] = adapter
        answer = Answer(first.submit, child, state, first.arrived)
        self.answers.add(answer)
        self._send(answer, delta)

    def _send(self, answer: Answer, delta: Delta) -> None:
        if delta.finish_reason is None and answer.sequence.status is not Status.FINISHED:
            self.out.append(delta)
            return
        reason = FinishReason(delta.finish_reason) if delta.finish_reason else None
        self.end(answer, reason or answer.sequence.finish_reason, delta)

    def _leave(self, sequence: Sequence) -> None:
        """A sequence that has ended is in none of our books."""
        self._inputs.forget(sequence)
        if self._speculating is not None:
            self._speculating.forget(sequence)
        self.adapter_indices.pop(sequence, None)
        self.rows_of.pop(sequence, None)
