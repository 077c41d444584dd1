"""The engine: messages in, one step after another, messages out. One thread, no waiting.

    engine = Engine(EngineConfig(model="examples/models/library"))
    engine.handle(Submit(id="a", prompt=(1, 2, 3), sampling=Sampling(temperature=0.0)))
    while engine.has_work:
        engine.step()
        for message in engine.take(): ...

A step: drafts are proposed, the scheduler says which tokens to compute, the model computes them,
tokens are picked, and what became of each answer goes out as one `Delta`.

No request ends the engine: what is wrong with one is refused, and one at which a step fails is
found (`attempt.py`) and ends alone with an error. What ends it is a broken engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from ridgeline.batching.limits import QueueFull, Refusal
from ridgeline.batching.sequence import FinishReason, Sequence, Status, Step, work_of
from ridgeline.errors import InputError
from ridgeline.records.step_log import StepRow
from ridgeline.serve.adapters.examined import examined
from ridgeline.serve.cache.pool import SequenceKv
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.answers import Answer, request_of
from ridgeline.serve.engine.attempt import attempt
from ridgeline.serve.engine.integrity import check
from ridgeline.serve.engine.log import StepLog
from ridgeline.serve.engine.outcomes import Outcomes, Worked, refusal_of
from ridgeline.serve.engine.searches import Search
from ridgeline.serve.engine.start import started
from ridgeline.serve.messages import (
    Abort,
    Done,
    Embed,
    FromEngine,
    Grammar,
    LoadAdapter,
    Ready,
    Refused,
    Sampling,
    Stats,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from ridgeline.serve.sampling.beams import BeamSearch
from ridgeline.serve.sampling.delta import take
from ridgeline.serve.sampling.grammar import Grammars, grammars_of
from ridgeline.serve.sampling.prompt_logprobs import PromptLogprobs
from ridgeline.serve.sampling.sampler import Picked
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.sampling.validate import RequestError, validate

LONGEST_WAIT_SECONDS = 1e-3
"""In an empty step, so that messages are still taken in time."""


class Engine:
    """Runs in one thread, which must be the process's main one on a CPU.

    Raises:
        InputError: The model cannot be served as configured; the line says what to change.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._step_log = None if config.step_log is None else StepLog(config.step_log)
        parts = started(config)
        self.ready: Ready = parts.ready
        self.model = parts.loaded
        self.pool = parts.pool
        self.scheduler = parts.scheduler
        self._limits = parts.limits
        self._cache = parts.cache
        self._adapters = parts.adapters
        self._runner = parts.runner
        self._inputs = parts.inputs
        self._speculating = parts.speculating
        self._outcomes = Outcomes(parts.scheduler, parts.inputs, parts.speculating, clock)
        self._arriving: list[tuple[Answer, SequenceKv]] = []
        """From another engine, without room here so far."""
        self.forward_seconds = 0.0
        """Of the model in the last step; on a GPU only until it was launched."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something, now or a little later."""
        return self.scheduler.has_work or bool(self._arriving)

    def preparation(self, message: ToEngine) -> Callable[[], ToEngine] | None:
        """What of a message may take long, or come to no end: not to be done between two steps.

        Returns:
            Makes of the message the one to be handled, on any thread; it raises what `handle`
            would refuse. None: there is nothing to do before.
        """
        match message:
            case LoadAdapter(file=None):
                return partial(_with_file, message)
            case Submit(sampling=Sampling(grammar=Grammar())):
                return self._compilation(message)
        return None

    def refuse(self, message: ToEngine, error: BaseException) -> None:
        """Let `take` say why a message is not served."""
        if isinstance(error, Refusal | InputError):
            self._outcomes.out.append(refusal_of(message.id, error))
        else:  # unforeseen: it is this message's alone
            self._outcomes.fail(message.id, error)

    def handle(self, message: ToEngine) -> None:
        """Take a message. What is wrong with it comes out of `take` as `Refused`."""
        try:
            match message:
                case Submit():
                    self._submit(message)
                case Abort():
                    self._abort(message.id)
                case Embed():
                    self._embed(message)
                case LoadAdapter():
                    file = message.file or examined(message.path)
                    self._adapters.load(message.name, file, self._outcomes.adapters)
                    self._outcomes.out.append(Done(id=message.id))
                case UnloadAdapter():
                    self._unload(message)
        except Exception as error:
            self.refuse(message, error)

    def take(self) -> list[FromEngine]:
        """What has come out since the last call."""
        out, self._outcomes.out = self._outcomes.out, []
        return out

    def export_kv(self, request_id: str) -> SequenceKv:
        """A copy of the KV of a request that ended with `handover`; its blocks are free again.

        Raises:
            InputError: There is none, or not any more.
        """
        sequence = self._outcomes.handed_over.pop(request_id, None)
        if sequence is None:
            raise InputError(f"no prefilled request {request_id} waits to be handed over")
        kv = self.pool.take_out(sequence.blocks, sequence.tokens)
        self.scheduler.release(sequence)
        return kv

    def import_kv(self, submit: Submit, kv: SequenceKv) -> None:
        """Go on with a request that another engine has prefilled, as soon as there is room.

        Its Deltas begin after the tokens that came along.

        Raises:
            InputError: The request cannot be served, or the KV does not fit this engine.
            QueueFull: Too many wait already.
        """
        if submit.id in self._outcomes.answers or submit.id in self._outcomes.searches:
            raise RequestError(f"a request with the id {submit.id} is running already", "id")
        validate(submit, self._limits, vocab=self.model.vocab, has_text=bool(self.model.tokenizer))
        self.pool.check(kv)
        if len(self.scheduler.waiting) + len(self._arriving) >= self._limits.max_waiting:
            raise QueueFull(f"{self._limits.max_waiting} requests wait already; try again later")
        came = kv.tokens[len(submit.prompt) :]
        if kv.tokens[: len(submit.prompt)] != submit.prompt or not came:
            raise InputError("the KV that came is not that of the request's prompt")
        state = self._state(submit, 0)
        take(state, Picked(came))  # sent by the other engine already
        arrived = self._clock()
        submit = msgspec.structs.replace(submit, handover=False)
        adapter = self._adapters.index(submit.adapter, self._outcomes.adapters)
        request = request_of(submit, 0, arrived, self._adapters.key(submit.adapter))
        sequence = Sequence(request=request, tokens=list(kv.tokens))
        if adapter:
            self._outcomes.adapter_indices[sequence] = adapter
        answer = Answer(submit, sequence, state, arrived)
        self._outcomes.answers.add(answer)
        self._arriving.append((answer, kv))

    def stats(self) -> Stats:
        """State now and counters since the start."""
        counters = self.scheduler.counters
        return Stats(
            at=self._clock(),
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            cache_usage=self._cache.usage,
            steps=counters.steps,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            wasted_tokens=counters.wasted_tokens,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
            speculating=self._speculating is not None and self._speculating.active,
            adapters=self._adapters.names,
        )

    def close(self) -> None:
        """Drop every request and free what can be freed."""
        for request_id in self._outcomes.open_ids:
            self._abort(request_id)
        if self._step_log is not None:
            self._step_log.close()

    @torch.inference_mode()
    def step(self) -> None:
        """Compute one step if there is something to compute now."""
        began = self._clock()
        self._adopt(began)
        if self._speculating is not None:
            self._speculating.propose(self.scheduler.running, self._outcomes.answers.of, began)
        step = self.scheduler.schedule(began)
        for sequence in step.preempted:
            self._inputs.forget(sequence)
        if not step.slices:
            self._wait(began)
            return
        work = None if self._step_log is None else work_of(step)
        self.pool.copy(step.copies)
        found = attempt(
            step,
            self._work,
            request_of=self._outcomes.request_of,
            block_size=self._cache.block_size,
            probe=self._runner.probe,
        )
        num_tokens = sum([self._outcomes.advance(worked) for worked in found.worked])
        for sequence in found.postponed:
            self._outcomes.postpone(sequence)
        for request_id, error in found.failed:
            self._outcomes.fail(request_id, error)
        ended = self._clock()
        seconds = ended - began
        if self._speculating is not None:
            self._speculating.record(step, num_tokens, seconds, ended)
        if self._step_log is not None and work is not None:
            left = len(self.scheduler.running) + len(self.scheduler.waiting)
            self._step_log.add(StepRow(began, seconds, left, work))
        if self._config.debug:
            check(self.scheduler)

    def _work(self, step: Step) -> Worked:
        """Compute a step and pick from it; nothing but the blocks of its own tokens changes."""
        batch = self._inputs.batch(
            step, rows_of=self._outcomes.rows_of, adapters=self._outcomes.adapter_indices
        )
        forward = self._clock()
        computed = self._runner.forward(batch)
        self.forward_seconds = self._clock() - forward
        return self._outcomes.pick(step, computed)

    def _adopt(self, now: float) -> None:
        """Let those in whose KV came from elsewhere, in order, as far as there is room."""
        while self._arriving:
            answer, kv = self._arriving[0]
            try:
                if not self.scheduler.adopt(answer.sequence, len(kv.tokens) - 1, now):
                    return
                self.pool.put_in(answer.sequence.blocks, kv)
            except Exception as error:  # it is this request's alone
                self._outcomes.fail(answer.submit.id, error)
            del self._arriving[0]

    def _compilation(self, submit: Submit) -> Callable[[], Submit] | None:
        """Of its grammar, if that is a new one that could be served."""
        tokenizer, grammar = self.model.tokenizer, submit.sampling.grammar
        assert grammar is not None
        try:
            validate(submit, self._limits, vocab=self.model.vocab, has_text=tokenizer is not None)
        except RequestError:
            return None  # as `handle` will say
        grammars = grammars_of(tokenizer, self.model.vocab, self.model.eos_ids)
        return None if grammars.knows(grammar) else partial(_with_grammar, submit, grammars)

    def _submit(self, submit: Submit) -> None:
        if submit.id in self._outcomes.answers or submit.id in self._outcomes.searches:
            raise RequestError(f"a request with the id {submit.id} is running already", "id")
        tokenizer = self.model.tokenizer
        validate(submit, self._limits, vocab=self.model.vocab, has_text=tokenizer is not None)
        if submit.adapter and submit.adapter not in self._adapters.names:
            self._refuse_adapter(submit)
            return
        busy = self._outcomes.adapters
        adapter = self._adapters.index(submit.adapter, busy)
        arrived = self._clock()
        request = request_of(submit, 0, arrived, self._adapters.key(submit.adapter))
        sequence = Sequence(request=request, tokens=list(submit.prompt))
        # All that may fail comes before anything is queued.
        states = tuple(self._state(submit, index) for index in range(submit.n))
        search = self._search(submit, sequence, arrived) if submit.sampling.beams else None
        answer = Answer(submit, sequence, states[0], arrived, states[1:])
        top = submit.sampling.prompt_logprobs
        if top is not None:
            answer.prompt_logprobs = PromptLogprobs(submit.prompt, top, tokenizer)
        self.scheduler.add(sequence, arrived)
        if adapter:
            self._outcomes.adapter_indices[sequence] = adapter
        if search is not None:
            self._outcomes.searches.add(search)
            return
        if top is not None:
            self._outcomes.rows_of[sequence] = "all"
        self._outcomes.answers.add(answer)

    def _search(self, submit: Submit, sequence: Sequence, arrived: float) -> Search:
        salt = sequence.request.adapter
        beams = BeamSearch(
            submit,
            sequence,
            eos_ids=() if submit.sampling.ignore_eos else self.model.eos_ids,
            tokenizer=self.model.tokenizer,
            request_of=lambda number: request_of(submit, number, arrived, salt),
        )
        return Search(beams, sequence, arrived)

    def _state(self, submit: Submit, index: int) -> SamplingState:
        return SamplingState(
            submit,
            index,
            vocab=self.model.vocab,
            eos_ids=self.model.eos_ids,
            tokenizer=self.model.tokenizer,
            engine_seed=self._config.seed,
        )

    def _abort(self, request_id: str) -> None:
        for answer, _ in self._arriving:
            if answer.submit.id == request_id:
                answer.sequence.status = Status.FINISHED  # the scheduler has never seen it
        self._arriving = [pair for pair in self._arriving if pair[0].submit.id != request_id]
        self._outcomes.abort(request_id)

    def _embed(self, message: Embed) -> None:
        for prompt in message.prompts:
            # As a request with one new token, which is what its sequence is to the scheduler.
            asked = Submit(id=message.id, prompt=prompt, sampling=Sampling(max_tokens=1))
            validate(asked, self._limits, vocab=self.model.vocab)
        if self._outcomes.embeddings.is_open(message.id):
            raise RequestError(f"a request with the id {message.id} is running already", "id")
        if message.adapter and message.adapter not in self._adapters.names:
            self._refuse_adapter(message)
            return
        adapter = self._adapters.index(message.adapter, self._outcomes.adapters)
        now = self._clock()
        added = []
        salt = self._adapters.key(message.adapter)
        try:
            for sequence in self._outcomes.embeddings.open(message, now, salt):
                self.scheduler.add(sequence, now)
                added.append(sequence)
                self._outcomes.rows_of[sequence] = "none"
                if adapter:
                    self._outcomes.adapter_indices[sequence] = adapter
        except Refusal:
            self._outcomes.embeddings.close(message.id)
            for sequence in added:
                self._outcomes.drop(sequence, FinishReason.ABORT)
            raise

    def _unload(self, message: UnloadAdapter) -> None:
        if message.name not in self._adapters.names:
            self._refuse_adapter(message)
            return
        self._adapters.unload(message.name, self._outcomes.adapters)
        self._outcomes.out.append(Done(id=message.id))

    def _wait(self, now: float) -> None:
        """Nothing to compute: only a batch that is not full yet waits, for its time to come."""
        starts_at = self.scheduler.starts_at
        if starts_at is not None:
            time.sleep(min(max(starts_at - now, 0.0), LONGEST_WAIT_SECONDS))

    def _refuse_adapter(self, message: Submit | Embed | UnloadAdapter) -> None:
        name = message.name if isinstance(message, UnloadAdapter) else message.adapter
        known = ", ".join(self._adapters.names) or "none"
        text = f"there is no adapter {name}; loaded: {known}"
        refused = Refused(id=message.id, message=text, status=404, parameter="adapter")
        self._outcomes.out.append(refused)


def _with_file(message: LoadAdapter) -> LoadAdapter:
    return msgspec.structs.replace(message, file=examined(message.path))


def _with_grammar(submit: Submit, grammars: Grammars) -> Submit:
    assert submit.sampling.grammar is not None
    grammars.compile(submit.sampling.grammar)
    return submit
