"""What comes of each step: tokens are picked, told to the scheduler, and sent to whom they belong.

Everything that is open stands here: answers, beam searches, embeddings, and what each of their
sequences needs beside its tokens.

`pick` may be called again after it has failed: it changes nothing. `advance` changes one request
after the other, and one that fails in it ends alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
from torch import Tensor

from ridgeline.batching.limits import QueueFull, Refusal
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import FinishReason, Sequence, Slice, Status, Step
from ridgeline.errors import InputError, in_words
from ridgeline.serve.adapters.adapters import NoRoom
from ridgeline.serve.engine.answers import Answer, Answers, last_delta, request_of
from ridgeline.serve.engine.choice import Choice, choose
from ridgeline.serve.engine.embeddings import Embeddings
from ridgeline.serve.engine.halves import NOT_A_FAILURE
from ridgeline.serve.engine.log import log_answer, log_failure
from ridgeline.serve.engine.searches import Search, Searches, deltas_of
from ridgeline.serve.engine.speculating import Speculating
from ridgeline.serve.engine.step_inputs import Rows, StepInputs
from ridgeline.serve.messages import Delta, FromEngine, Refused, TokenLogprobs
from ridgeline.serve.model.loaded import Computed
from ridgeline.serve.sampling.delta import take
from ridgeline.serve.sampling.finite import check_finite
from ridgeline.serve.sampling.sampler import Picked, pick
from ridgeline.serve.sampling.state import SamplingState

T = TypeVar("T")
Alone = Callable[[str, Callable[[], Any]], Any]
"""Given a request's id and some work of it: what came of it, or None where the request fails."""
LONGEST_REASON = 400
"""Characters of an error that a client is told."""


@dataclass(frozen=True, slots=True)
class Worked:
    """A step, or a part of one, that was computed and picked from; nothing has changed yet."""

    step: Step
    computed: Computed
    choice: Choice
    picked: list[Picked]


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
        return self.answers.adapters() | self.searches.adapters() | self.embeddings.adapters()

    def request_of(self, sequence: Sequence) -> str:
        """The id of the request that a sequence belongs to."""
        if sequence in self.answers.of:
            return self.answers.of[sequence].submit.id
        if sequence in self.embeddings:
            return self.embeddings.id_of(sequence)
        return self.searches[sequence].beams.submit.id

    def pick(self, step: Step, computed: Computed) -> Worked:
        """Pick tokens for all in the step.

        Raises:
            NotFinite: The model gave somebody no numbers.
        """
        drafts = self._speculating
        probabilities = {} if drafts is None else drafts.probabilities
        choice = choose(step, self.answers.of, self.rows_of, probabilities)
        if choice.beam_rows:
            check_finite(computed.logits[[row for _, _, row in choice.beam_rows]].amax(-1))
        picked = pick(choice.picked_from(computed.logits), choice.wanted)
        return Worked(step, computed, choice, picked)

    def advance(self, worked: Worked) -> int:
        """Tell the scheduler, send what came of it; returns how many tokens."""
        step, computed, choice = worked.step, worked.computed, worked.choice
        failed: dict[str, BaseException] = {}

        def alone(request_id: str, work: Callable[[], T]) -> T | None:
            """The work of one request; None where it has failed, now or before."""
            if request_id in failed:
                return None
            try:
                return work()
            except NOT_A_FAILURE:
                raise
            except BaseException as error:
                failed[request_id] = error
                return None

        for answer, piece, first in choice.prompt_rows:
            alone(answer.submit.id, partial(_add_prompt, answer, piece, first, computed))
        if self._speculating is not None:
            self._keep_states(worked)
        self._embedded(step, computed, alone)
        now = self._clock()
        sampled: list[list[int]] = [[] for _ in step.slices]
        deltas: list[tuple[Answer, SamplingState, Delta]] = []
        for (place, answer), one, found in zip(
            choice.places, choice.wanted, worked.picked, strict=True
        ):
            delta = alone(answer.submit.id, partial(self._taken, answer, one.state, found))
            if delta is not None:
                deltas.append((answer, one.state, delta))
                if one.state is answer.state:
                    sampled[place] = list(delta.tokens)
        searches = self._scored(choice, computed, sampled, alone)
        for request_id, error in failed.items():
            self.fail(request_id, error)
        self._scheduler.complete(step, sampled, now)
        for search in searches:
            self._settle(search, now)
        # Siblings first: they fork from the answer while it still has its blocks.
        deltas = [one for one in deltas if one[0].submit.id not in failed]
        for answer, state, delta in deltas:
            if state is not answer.state:
                self._fork(answer, state, delta)
        for answer, state, delta in deltas:
            if state is answer.state:
                answer.siblings = ()
                self._send(answer, delta)
        return sum(len(tokens) for tokens in sampled)

    def fail(self, request_id: str, error: BaseException) -> None:
        """End a request with an error, and forget all that it alone has computed."""
        if not isinstance(error, InputError):
            log_failure(request_id, error)
        sequences = self.embeddings.close(request_id)
        for answer in self.answers.of_request(request_id):
            self.answers.remove(answer)
            sequences.append(answer.sequence)
        if request_id in self.searches:
            sequences += self.searches.forget(self.searches.by_id(request_id))
        now = self._clock()
        for sequence in sequences:
            self._scheduler.discard(sequence, now)
            self._leave(sequence)
        self.out.append(refusal_of(request_id, error))

    def postpone(self, sequence: Sequence) -> None:
        """Let it wait and compute again."""
        self._scheduler.postpone(sequence, self._clock())
        self._inputs.forget(sequence)

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

    def _taken(self, answer: Answer, state: SamplingState, found: Picked) -> Delta:
        """What was picked, taken into its answer."""
        prompt = self._prompt_logprobs(answer) if state is answer.state else ()
        return take(state, found, prompt_logprobs=prompt)

    def _scored(
        self, choice: Choice, computed: Computed, sampled: list[list[int]], alone: Alone
    ) -> list[Search]:
        """Beam searches that this step computed; puts their tokens into `sampled`."""
        rows: dict[Search, dict[Sequence, Tensor]] = {}
        for _, sequence, row in choice.beam_rows:
            rows.setdefault(self.searches[sequence], {})[sequence] = computed.logits[row]
        given: dict[Sequence, int] = {}
        scored = []
        for search, mine in rows.items():
            found = alone(search.beams.submit.id, partial(search.beams.score, mine))
            if found is not None:
                given |= found
                scored.append(search)
        for place, sequence, _ in choice.beam_rows:
            if sequence in given:
                sampled[place] = [given[sequence]]
        return scored

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

    def _keep_states(self, worked: Worked) -> None:
        """Keep what each answer's last token was picked from."""
        assert self._speculating is not None
        choice, computed = worked.choice, worked.computed
        first = 0
        for (_, answer), one, found in zip(
            choice.places, choice.wanted, worked.picked, strict=True
        ):
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

    def _embedded(self, step: Step, computed: Computed, alone: Alone) -> None:
        """Take in the hidden states of prompts that are being embedded; end those that are done."""
        first = 0
        for one in step.slices:
            if one.sequence in self.embeddings:
                states = computed.states[first : first + one.count]
                message_id = self.embeddings.id_of(one.sequence)
                found = alone(
                    message_id, partial(self.embeddings.add, one.sequence, one.start, states)
                )
                if one.sequence not in self.embeddings:  # its last token is in
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


def refusal_of(request_id: str, error: BaseException) -> Refused:
    """What a client is told: of its own mistake as such, of ours that it was ours."""
    match error:
        case QueueFull() | NoRoom():
            status, text = 429, str(error)
        case Refusal() | InputError():
            status, text = 400, str(error)
        case _:
            what = f"{type(error).__name__}: {in_words(error)}"
            status, text = 500, f"the engine failed at this request: {what}"[:LONGEST_REASON]
    parameter = getattr(error, "parameter", None)
    return Refused(id=request_id, message=text, status=status, parameter=parameter)


def _add_prompt(answer: Answer, piece: Slice, first: int, computed: Computed) -> None:
    assert answer.prompt_logprobs is not None
    rows = computed.logits[first : first + piece.num_tokens]
    answer.prompt_logprobs.add(rows, piece.start)
