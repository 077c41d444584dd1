"""From a message to sequences that the scheduler has queued, or a refusal that says why not.

All that may fail of a request comes before anything of it is queued.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from ridgeline.batching.policies import QueueFull, Refusal
from ridgeline.batching.sequence import FinishReason, Sequence, Status
from ridgeline.errors import InputError
from ridgeline.serve.adapters.examined import examined
from ridgeline.serve.cache import SequenceKv
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.embeddings import open_prompts
from ridgeline.serve.engine.looking import Looking, Unseeable
from ridgeline.serve.engine.outcomes import Outcomes
from ridgeline.serve.engine.requests import OpenCompletion, OpenSearch, RequestBooks, request_of
from ridgeline.serve.engine.start import Parts
from ridgeline.serve.messages import (
    Embed,
    Grammar,
    LoadAdapter,
    Sampling,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from ridgeline.serve.sampling.beams import BeamSearch
from ridgeline.serve.sampling.grammar import Grammars, grammars_of
from ridgeline.serve.sampling.logprobs import PromptLogprobs
from ridgeline.serve.sampling.state import Picked, SamplingState, take
from ridgeline.serve.sampling.validate import RequestError, UnknownAdapter, validate
from ridgeline.serve.vision.features import PlacedImage


class Admission:
    """Checks requests, opens them in the engine's books, and queues their sequences."""

    def __init__(
        self,
        config: EngineConfig,
        parts: Parts,
        requests: RequestBooks,
        outcomes: Outcomes,
        clock: Callable[[], float],
    ) -> None:
        self._seed = config.seed
        self._is_cut = config.ranks > 1
        self._keeps_all = config.kept is None
        self._model = parts.loaded
        self._pool = parts.pool
        self._scheduler = parts.scheduler
        self._limits = parts.limits
        self._adapters = parts.adapters
        self._requests = requests
        self._outcomes = outcomes
        self._clock = clock
        self._arriving: list[tuple[OpenCompletion, SequenceKv]] = []
        """Requests from another engine, without room here so far."""
        tower = parts.loaded.tower
        self._looking = None if tower is None else Looking(tower)
        """Requests whose images nobody has looked at."""

    @property
    def has_arriving(self) -> bool:
        """Whether requests wait that the scheduler does not know of."""
        return bool(self._arriving or self._looking)

    def preparation(self, message: ToEngine) -> Callable[[], ToEngine] | None:
        """What of a message may take long, or come to no end: not to be done between two steps.

        Returns:
            Makes of the message the one to be handled, on any thread; it raises what the engine
            would refuse. None: there is nothing to do before.
        """
        match message:
            case LoadAdapter(file=None):
                return partial(_with_file, message)
            case Submit(sampling=Sampling(grammar=Grammar())):
                return self._compilation(message)
        return None

    def submit(self, submit: Submit) -> None:
        """Queue a request for completions. Raises InputError or Refusal."""
        self._check_new(submit.id)
        has_text = self._model.tokenizer is not None
        validate(submit, self._limits, vocab=self._model.vocab, has_text=has_text)
        if submit.handover:
            self._check_whole()
        if submit.images:
            self._let_look(submit)
            return
        self._queue(submit, self._clock())

    def look(self) -> None:
        """Look at one image that waits, and queue its request if it was the last one of it."""
        if not self._looking:
            return
        try:
            seen = self._looking.look()
        except Unseeable as why:
            self._outcomes.refuse(why.request_id, why.error)
            return
        if seen is None:
            return
        try:
            self._queue(seen.submit, seen.arrived, seen.images)
        except Exception as error:
            self._outcomes.refuse(seen.submit.id, error)

    def _let_look(self, submit: Submit) -> None:
        if self._looking is None:
            raise RequestError("this model takes no images", "messages")
        if submit.handover:
            raise RequestError(
                "requests with images are not handed over between engines; serve the model without"
                " --disaggregated",
                "messages",
            )
        if len(self._scheduler.waiting) + len(self._looking) >= self._limits.max_waiting:
            raise QueueFull(f"{self._limits.max_waiting} requests wait already; try again later")
        self._looking.join(submit, self._clock(), self._requests.feature_bytes)

    def _queue(self, submit: Submit, arrived: float, images: tuple[PlacedImage, ...] = ()) -> None:
        index, salt = self._adapter(submit.adapter)
        salt = _salted(salt, submit)
        tokenizer = self._model.tokenizer
        request = request_of(submit, 0, arrived, salt)
        sequence = Sequence(request=request, tokens=list(submit.prompt))
        states = tuple(self._state(submit, place) for place in range(submit.n))
        opened: OpenCompletion | OpenSearch
        if submit.sampling.beams:
            opened = self._search(submit, sequence, arrived)
        else:
            opened = OpenCompletion(submit, sequence, states[0], arrived, states[1:])
            top = submit.sampling.prompt_logprobs
            if top is not None:
                opened.prompt_logprobs = PromptLogprobs(submit.prompt, top, tokenizer)
        self._scheduler.add(sequence, arrived)
        self._requests.add(
            submit.id, sequence, opened, adapter=submit.adapter, index=index, images=images
        )
        if isinstance(opened, OpenCompletion) and opened.prompt_logprobs is not None:
            self._requests.rows_of[sequence] = "all"

    def embed(self, message: Embed) -> None:
        """Queue prompts to embed. Raises InputError or Refusal."""
        for tokens in message.prompts:
            # As a request with one new token, which is what its sequence is to the scheduler.
            asked = Submit(id=message.id, prompt=tokens, sampling=Sampling(max_tokens=1))
            validate(asked, self._limits, vocab=self._model.vocab)
        self._check_new(message.id)
        index, salt = self._adapter(message.adapter)
        now = self._clock()
        added = []
        try:
            for sequence, prompt in open_prompts(message, now, salt):
                self._scheduler.add(sequence, now)
                added.append(sequence)
                self._requests.add(
                    message.id, sequence, prompt, adapter=message.adapter, index=index
                )
                self._requests.rows_of[sequence] = "none"
        except Refusal:
            for sequence in added:
                self._outcomes.drop(sequence, FinishReason.ABORT)
            raise

    def import_kv(self, submit: Submit, kv: SequenceKv) -> None:
        """Go on with a request that another engine has prefilled, as soon as there is room.

        Its Deltas begin after the tokens that came along.

        Raises:
            InputError: The request cannot be served, or the KV does not fit this engine.
            QueueFull: Too many wait already.
        """
        self._check_new(submit.id)
        self._check_whole()
        has_text = self._model.tokenizer is not None
        validate(submit, self._limits, vocab=self._model.vocab, has_text=has_text)
        self._pool.check(kv)
        if len(self._scheduler.waiting) + len(self._arriving) >= self._limits.max_waiting:
            raise QueueFull(f"{self._limits.max_waiting} requests wait already; try again later")
        came = kv.tokens[len(submit.prompt) :]
        if kv.tokens[: len(submit.prompt)] != submit.prompt or not came:
            raise InputError("the KV that came is not that of the request's prompt")
        state = self._state(submit, 0)
        take(state, Picked(came))  # sent by the other engine already
        arrived = self._clock()
        submit = msgspec.structs.replace(submit, handover=False)
        index, salt = self._adapter(submit.adapter)
        request = request_of(submit, 0, arrived, _salted(salt, submit))
        sequence = Sequence(request=request, tokens=list(kv.tokens))
        completion = OpenCompletion(submit, sequence, state, arrived)
        self._requests.add(submit.id, sequence, completion, adapter=submit.adapter, index=index)
        self._arriving.append((completion, kv))

    def adopt(self, now: float) -> None:
        """Let in those whose KV came from elsewhere, in order, as far as there is room."""
        while self._arriving:
            completion, kv = self._arriving[0]
            try:
                if not self._scheduler.adopt(completion.sequence, len(kv.tokens) - 1, now):
                    return
                self._pool.write(completion.sequence.blocks, kv)
            except Exception as error:  # it is this request's alone
                self._outcomes.fail(completion.submit.id, error)
            del self._arriving[0]

    def abort(self, request_id: str) -> None:
        """Forget a request that nobody waits for any more; an unknown one is no error."""
        for completion, _ in self._arriving:
            if completion.submit.id == request_id:
                completion.sequence.status = Status.FINISHED  # the scheduler has never seen it
        self._arriving = [one for one in self._arriving if one[0].submit.id != request_id]
        if self._looking is not None:
            self._looking.leave(request_id)
        self._outcomes.abort(request_id)

    def load_adapter(self, message: LoadAdapter) -> None:
        """Make an adapter known. Raises InputError."""
        if self._is_cut:
            raise InputError("LoRA adapters are not cut over ranks; serve without --tp and --pp")
        file = message.file or examined(message.path)
        self._adapters.load(message.name, file, self._requests.adapters)

    def unload_adapter(self, message: UnloadAdapter) -> None:
        """Forget an adapter that no request uses. Raises InputError."""
        self._check_adapter(message.name)
        self._adapters.unload(message.name, self._requests.adapters)

    def _check_new(self, request_id: str) -> None:
        if request_id in self._requests or request_id in (self._looking or ()):
            raise RequestError(f"a request with the id {request_id} is running already", "id")

    def _check_whole(self) -> None:
        if not self._keeps_all:
            raise RequestError("what --kv-recent keeps is not handed over between engines", "id")

    def _check_adapter(self, name: str) -> None:
        if name not in self._adapters.names:
            known = ", ".join(self._adapters.names) or "none"
            raise UnknownAdapter(f"there is no adapter {name}; loaded: {known}", "adapter")

    def _adapter(self, name: str) -> tuple[int, str]:
        """The index of an adapter, and what separates its cached prefixes; "" is the model."""
        if not name:
            return 0, ""
        self._check_adapter(name)
        index = self._adapters.index(name, self._requests.adapters)
        return index, self._adapters.key(name)

    def _compilation(self, submit: Submit) -> Callable[[], Submit] | None:
        """The compilation of a request's grammar, if that is a new one that could be served."""
        tokenizer, grammar = self._model.tokenizer, submit.sampling.grammar
        assert grammar is not None
        has_text = tokenizer is not None
        try:
            validate(submit, self._limits, vocab=self._model.vocab, has_text=has_text)
        except RequestError:
            return None  # as `submit` will say
        grammars = grammars_of(tokenizer, self._model.vocab, self._model.eos_ids)
        return None if grammars.knows(grammar) else partial(_with_grammar, submit, grammars)

    def _search(self, submit: Submit, sequence: Sequence, arrived: float) -> OpenSearch:
        salt = sequence.request.adapter
        beams = BeamSearch(
            submit,
            sequence,
            eos_ids=() if submit.sampling.ignore_eos else self._model.eos_ids,
            tokenizer=self._model.tokenizer,
            request_of=lambda number: request_of(submit, number, arrived, salt),
        )
        return OpenSearch(beams, sequence, arrived)

    def _state(self, submit: Submit, index: int) -> SamplingState:
        return SamplingState(
            submit,
            index,
            vocab=self._model.vocab,
            eos_ids=self._model.eos_ids,
            tokenizer=self._model.tokenizer,
            engine_seed=self._seed,
        )


def _salted(key: str, submit: Submit) -> str:
    """What separates the cached prefixes of a request: its adapter's key, and its own salt."""
    return f"{key}\0{submit.cache_salt}" if submit.cache_salt else key


def _with_file(message: LoadAdapter) -> LoadAdapter:
    return msgspec.structs.replace(message, file=examined(message.path))


def _with_grammar(submit: Submit, grammars: Grammars) -> Submit:
    assert submit.sampling.grammar is not None
    grammars.compile(submit.sampling.grammar)
    return submit
