"""What comes of each step: tokens are picked, told to the scheduler, and sent to whom they belong.

`pick` may be called again after it has failed: it changes nothing. `advance` changes one request
after the other, and one that fails in it ends alone.

Whose the rows of a step's logits are is in `step_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from torch import Tensor

from ridgeline.batching.policies import QueueFull, Refusal
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import FinishReason, Sequence, Slice, Status, Step
from ridgeline.errors import InputError, in_words
from ridgeline.serve.adapters.adapters import NoRoom
from ridgeline.serve.engine.attempt import NOT_A_FAILURE
from ridgeline.serve.engine.log import log_completion, log_failure
from ridgeline.serve.engine.requests import (
    OpenCompletion,
    OpenSearch,
    RequestBooks,
    last_delta,
    request_of,
    search_deltas,
)
from ridgeline.serve.engine.speculating import Speculating
from ridgeline.serve.engine.step_rows import StepRows, Worked, moves_of_paths, rows_of_step
from ridgeline.serve.messages import Delta, FromEngine, Refused, TokenLogprobs
from ridgeline.serve.model.batch import StepInputs
from ridgeline.serve.model.loaded import ForwardOutput
from ridgeline.serve.sampling.sampler import pick
from ridgeline.serve.sampling.state import Picked, SamplingState, check_finite, take
from ridgeline.serve.sampling.validate import UnknownAdapter

T = TypeVar("T")
Alone = Callable[[str, Callable[[], Any]], Any]
"""Given a request's id and some work of it: what came of it, or None where the request fails."""
LONGEST_REASON = 400
"""Characters of an error that a client is told."""


class Outcomes:
    """Makes of what the model computed what requests are sent, and ends those that are done."""

    def __init__(
        self,
        scheduler: Scheduler,
        inputs: StepInputs,
        speculating: Speculating | None,
        requests: RequestBooks,
        clock: Callable[[], float],
        move: Callable[[list[tuple[int, int]]], None],
    ) -> None:
        self._scheduler = scheduler
        self._inputs = inputs
        self._speculating = speculating
        self._requests = requests
        self._clock = clock
        self._move = move
        self._out: list[FromEngine] = []

    def send(self, message: FromEngine) -> None:
        """Let `take` give this message."""
        self._out.append(message)

    def take(self) -> list[FromEngine]:
        """The messages that have come out since the last call."""
        out, self._out = self._out, []
        return out

    def refuse(self, request_id: str, error: BaseException) -> None:
        """Say why a message is not served."""
        if isinstance(error, Refusal | InputError):
            self._out.append(refusal_of(request_id, error))
        else:  # unforeseen: it is this message's alone
            self.fail(request_id, error)

    def assign(self, step: Step) -> StepRows:
        """Whose the rows of a step's logits will be; to be asked before anything else changes."""
        drafts = self._speculating
        probabilities = {} if drafts is None else drafts.probabilities
        requests = self._requests
        return rows_of_step(step, requests.completions, requests.rows_of, probabilities)

    def pick(self, step: Step, computed: ForwardOutput, rows: StepRows) -> Worked:
        """Pick tokens for all whose the rows are.

        Raises:
            NotFinite: The model gave somebody no numbers.
        """
        if rows.beams:
            check_finite(computed.logits[[row for _, _, row in rows.beams]].amax(-1))
        picked = pick(rows.picked_from(computed.logits), rows.wanted)
        return Worked(step, computed, rows, picked)

    def advance(self, worked: Worked) -> int:
        """Tell the scheduler, send what came of it; returns how many tokens."""
        step, computed, rows = worked.step, worked.computed, worked.rows
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

        for completion, piece, first in rows.prompts:
            alone(completion.submit.id, partial(_add_prompt, completion, piece, first, computed))
        if self._speculating is not None:
            self._keep_states(worked)
        if self._requests.prompts:
            self._embed(step, computed, alone)
        now = self._clock()
        sampled: list[list[int]] = [[] for _ in step.slices]
        deltas: list[tuple[OpenCompletion, SamplingState, Delta]] = []
        for (place, completion), one, found in zip(
            rows.places, rows.wanted, worked.picked, strict=True
        ):
            delta = alone(completion.submit.id, partial(self._take, completion, one.state, found))
            if delta is not None:
                deltas.append((completion, one.state, delta))
                if one.state is completion.state:
                    sampled[place] = list(delta.tokens)
        searches = self._score(rows, computed, sampled, alone) if rows.beams else []
        for request_id, error in failed.items():
            self.fail(request_id, error)
        moves = moves_of_paths(worked, sampled, self._scheduler.cache.block_size)
        if moves:
            self._move(moves)
        self._scheduler.complete(step, sampled, now)
        for search in searches:
            self._settle(search, now)
        # Siblings first: they fork from the completion while it still has its blocks.
        deltas = [one for one in deltas if one[0].submit.id not in failed]
        begin = len(self._out)
        for completion, state, delta in deltas:
            if state is not completion.state:
                self._fork(completion, state, delta)
        for completion, state, delta in deltas:
            if state is completion.state:
                completion.siblings = ()
                self._send(completion, delta)
        if any(delta.prompt_logprobs for _, _, delta in deltas):  # which siblings show, too
            self._out[begin:] = sorted(self._out[begin:], key=_comes_later)
        return sum(len(tokens) for tokens in sampled)

    def fail(self, request_id: str, error: BaseException) -> None:
        """End a request with an error, and forget all that it alone has computed."""
        if not isinstance(error, InputError):
            log_failure(request_id, error)
        now = self._clock()
        for sequence in self._requests.sequences(request_id):
            self._scheduler.discard(sequence, now)
            self._forget(sequence)
        self._out.append(refusal_of(request_id, error))

    def postpone(self, sequence: Sequence) -> None:
        """Let a sequence wait and compute again."""
        self._scheduler.postpone(sequence, self._clock())
        self._inputs.forget(sequence)

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for any more; an unknown one is no error."""
        requests = self._requests
        for sequence in requests.sequences(request_id):
            completion, search = requests.completions.get(sequence), requests.searches.get(sequence)
            if completion is not None:
                self._end(completion, FinishReason.ABORT)
            elif search is not None:
                self._close(search)
            else:
                self.drop(sequence, FinishReason.ABORT)
        if request_id in requests.handed_over:
            self._scheduler.release(requests.handed_over.pop(request_id))

    def drop(self, sequence: Sequence, reason: FinishReason) -> None:
        """Let a sequence go; one that has ended already only leaves our books."""
        self._scheduler.finish(sequence, reason, self._clock())
        self._forget(sequence)

    def _end(
        self, completion: OpenCompletion, reason: FinishReason | None, delta: Delta | None = None
    ) -> None:
        """Free what the completion holds and send its last Delta."""
        assert reason is not None
        submit, sequence, state = completion.submit, completion.sequence, completion.state
        self.drop(sequence, reason)
        if sequence.finish_reason is FinishReason.HANDOVER:
            if reason is FinishReason.HANDOVER:
                self._requests.handed_over[submit.id] = sequence
            else:  # its first token was its last: there is nothing to hand over
                self._scheduler.release(sequence)
        if delta is None:
            state.text.flush()
            delta = Delta(id=submit.id, index=state.index, text=state.text.take())
        delta = msgspec.structs.replace(delta, finish_reason=reason.value)
        delta = last_delta(
            delta, sequence, completion.arrived, detokenise_seconds=state.text.seconds
        )
        log_completion(delta)
        self._out.append(delta)
        for sibling in completion.siblings:  # that never began
            self._out.append(msgspec.structs.replace(delta, index=sibling.index, text=""))

    def _close(self, search: OpenSearch) -> None:
        """Send what a search has found, or that it was aborted, and free what it holds."""
        now = self._clock()
        searches = self._requests.searches
        for sequence in [one for one, owner in searches.items() if owner is search]:
            self.drop(sequence, FinishReason.ABORT)
        for delta in search_deltas(search, now):
            log_completion(delta)
            self._out.append(delta)

    def _take(self, completion: OpenCompletion, state: SamplingState, found: Picked) -> Delta:
        """The Delta of what was picked, now a part of its completion."""
        prompt = self._prompt_logprobs(completion) if state is completion.state else ()
        return take(state, found, prompt_logprobs=prompt)

    def _score(
        self, rows: StepRows, computed: ForwardOutput, sampled: list[list[int]], alone: Alone
    ) -> list[OpenSearch]:
        """Beam searches that this step computed; puts their tokens into `sampled`."""
        logits: dict[OpenSearch, dict[Sequence, Tensor]] = {}
        for _, sequence, row in rows.beams:
            search = self._requests.searches[sequence]
            logits.setdefault(search, {})[sequence] = computed.logits[row]
        given: dict[Sequence, int] = {}
        scored = []
        for search, mine in logits.items():
            found = alone(search.beams.submit.id, partial(search.beams.score, mine))
            if found is not None:
                given |= found
                scored.append(search)
        for place, sequence, _ in rows.beams:
            if sequence in given:
                sampled[place] = [given[sequence]]
        return scored

    def _settle(self, search: OpenSearch, now: float) -> None:
        """Let a search's beams fork and end; send its completions when it is done."""
        requests, submit = self._requests, search.beams.submit
        before = requests.sequences(submit.id)
        index = requests.adapter_indices.get(search.first, 0)
        search.beams.settle(self._scheduler, now)
        after = [] if search.beams.done else search.beams.sequences
        for sequence in after:
            if sequence not in before:
                requests.add(submit.id, sequence, search, adapter=submit.adapter, index=index)
        if search.beams.done:
            self._close(search)
            return
        for sequence in before:
            if sequence not in after:
                self._forget(sequence)

    def _keep_states(self, worked: Worked) -> None:
        """Keep what each completion's last token was picked from, and show states to drafters."""
        assert self._speculating is not None
        rows, computed = worked.rows, worked.computed
        first = 0
        paths: dict[Sequence, tuple[int, ...]] = {}
        for (_, completion), one, found in zip(
            rows.places, rows.wanted, worked.picked, strict=True
        ):
            if one.state is completion.state:
                row = computed.rows[rows.of_logits[first + found.rows[-1]]]
                self._speculating.keep_state(completion.sequence, computed.states[row])
                paths[completion.sequence] = found.rows
            first += 1 + len(one.drafts)
        first = 0
        shown = computed.states if computed.between is None else computed.between
        for piece in worked.step.slices:
            if piece.sequence in self._requests.completions:
                states = shown[first : first + piece.num_tokens]
                if piece.parents:  # the token itself and the way that holds, as a chain's
                    states = states[list(paths.get(piece.sequence, (0,)))]
                self._speculating.show(piece.sequence, piece.start, states)
            first += piece.num_tokens

    def _prompt_logprobs(self, completion: OpenCompletion) -> tuple[TokenLogprobs, ...]:
        """What was asked of the prompt, once, when all of it is computed."""
        if completion.prompt_logprobs is None:
            return ()
        found = completion.prompt_logprobs.take()
        completion.prompt_logprobs = None
        del self._requests.rows_of[completion.sequence]
        return found

    def _embed(self, step: Step, computed: ForwardOutput, alone: Alone) -> None:
        """Take in the hidden states of prompts that are being embedded; end those that are done."""
        first = 0
        for one in step.slices:
            prompt = self._requests.prompts.get(one.sequence)
            if prompt is not None:
                states = computed.states[first : first + one.count]
                if alone(prompt.message.id, partial(prompt.add, one.start, states)):
                    self.drop(one.sequence, FinishReason.STOP)
                    embedded = prompt.embedded()
                    if embedded is not None:
                        self._out.append(embedded)
            first += one.num_tokens

    def _fork(self, first: OpenCompletion, state: SamplingState, delta: Delta) -> None:
        """Begin a further completion with its first token, at the end of the same prompt."""
        submit = first.submit
        request = request_of(submit, state.index, first.arrived, first.sequence.request.adapter)
        now = self._clock()
        child = self._scheduler.fork(first.sequence, request, now, last_token=delta.tokens[-1])
        child.cached_tokens = first.sequence.cached_tokens
        index = self._requests.adapter_indices.get(first.sequence, 0)
        completion = OpenCompletion(submit, child, state, first.arrived)
        self._requests.add(submit.id, child, completion, adapter=submit.adapter, index=index)
        self._send(completion, delta)

    def _send(self, completion: OpenCompletion, delta: Delta) -> None:
        if delta.finish_reason is None and completion.sequence.status is not Status.FINISHED:
            if not self._is_late(completion):
                self._out.append(delta)
                return
            completion.state.text.flush()
            text = delta.text + completion.state.text.take()
            delta = msgspec.structs.replace(delta, text=text, finish_reason="length")
        reason = FinishReason(delta.finish_reason) if delta.finish_reason else None
        self._end(completion, reason or completion.sequence.finish_reason, delta)

    def _is_late(self, completion: OpenCompletion) -> bool:
        """Whether the time that the request gives its completions is over."""
        limit, first = completion.submit.sampling.line_seconds, completion.sequence.first_token_at
        if limit <= 0 or first is None or not completion.state.has_line:
            return False
        return self._clock() - first >= limit

    def _forget(self, sequence: Sequence) -> None:
        """Strike a sequence that has ended out of all books."""
        self._inputs.forget(sequence)
        if self._speculating is not None:
            self._speculating.forget(sequence)
        self._requests.remove(sequence)


def refusal_of(request_id: str, error: BaseException) -> Refused:
    """What a client is told: of its own mistake as such, of ours that it was ours."""
    match error:
        case UnknownAdapter():
            status, text = 404, str(error)
        case QueueFull() | NoRoom():
            status, text = 429, str(error)
        case Refusal() | InputError():
            status, text = 400, str(error)
        case _:
            what = f"{type(error).__name__}: {in_words(error)}"
            status, text = 500, f"the engine failed at this request: {what}"[:LONGEST_REASON]
    parameter = getattr(error, "parameter", None)
    return Refused(id=request_id, message=text, status=status, parameter=parameter)


def _comes_later(message: FromEngine) -> bool:
    """Whether a message waits for those with what was asked of prompts."""
    return not (isinstance(message, Delta) and message.prompt_logprobs)


def _add_prompt(
    completion: OpenCompletion, piece: Slice, first: int, computed: ForwardOutput
) -> None:
    assert completion.prompt_logprobs is not None
    rows = computed.logits[first : first + piece.num_tokens]
    completion.prompt_logprobs.add(rows, piece.start)
