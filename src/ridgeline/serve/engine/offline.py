"""The engine without a server: prompts in, completions with their times out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ridgeline.errors import InputError, RidgelineError
from ridgeline.records.served import CacheStatistics, Generated, Generation, MemoryUse
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Refused, Sampling, Submit
from ridgeline.serve.packed.tokenizer import whole_tokenizer


def generate(
    config: EngineConfig,
    prompts: Sequence[str],
    sampling: Sampling,
    *,
    n: int = 1,
    adapter: str = "",
    chat: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Generation:
    """Completions to all prompts, computed together.

    Args:
        config: Of the engine.
        prompts: Text; where the model has no tokenizer, token ids with spaces between.
        sampling: Of every completion.
        n: Completions to each prompt.
        adapter: Name of one of `config.adapters`; empty: none.
        chat: Each prompt is what a user says, put through the model's chat template.
        on_progress: Told what is under way.

    Raises:
        InputError: The model cannot be served, or a prompt cannot be answered as asked.
        RidgelineError: The engine failed at a prompt.
    """
    began = time.monotonic()
    engine = ServingEngine(config)
    try:
        loaded = time.monotonic()
        on_progress(f"loaded {config.model}")
        answers = _answered(engine, prompts, sampling, n=n, adapter=adapter, chat=chat)
        seconds = time.monotonic() - loaded
        return _generation(engine, config, answers, loaded - began, seconds)
    finally:
        engine.close()


def _answered(
    engine: ServingEngine,
    prompts: Sequence[str],
    sampling: Sampling,
    *,
    n: int,
    adapter: str,
    chat: bool,
) -> tuple[Generated, ...]:
    """All completions, by prompt and number."""
    for place, prompt in enumerate(prompts):
        tokens = prompt_tokens(engine.model.tokenizer, prompt, chat=chat)
        engine.handle(Submit(id=str(place), prompt=tokens, sampling=sampling, n=n, adapter=adapter))
    pieces: dict[tuple[str, int], list[Delta]] = {}
    while True:
        for message in engine.take():
            if isinstance(message, Refused):
                kind = InputError if message.status < 500 else RidgelineError
                raise kind(f"prompt {int(message.id) + 1}: {message.message}")
            assert isinstance(message, Delta)
            pieces.setdefault((message.id, message.index), []).append(message)
        if not engine.has_work:
            break
        engine.step()
    return tuple(
        _generated(prompts[int(name)], deltas)
        for (name, _), deltas in sorted(pieces.items(), key=lambda one: (int(one[0][0]), one[0][1]))
    )


def prompt_tokens(tokenizer: object, prompt: str, *, chat: bool) -> tuple[int, ...]:
    """Token ids of a prompt.

    Raises:
        InputError: There is no chat template, or no tokenizer and the prompt is not ids.
    """
    from transformers import PreTrainedTokenizerBase

    tokenizer = whole_tokenizer(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        try:
            return tuple(int(word) for word in prompt.split())
        except ValueError:
            raise InputError(
                "the model has no tokenizer, so --prompt takes token ids, as in --prompt '1 15 9'"
            ) from None
    if not chat:
        return tuple(tokenizer(prompt).input_ids)
    if tokenizer.chat_template is None:
        raise InputError("--chat: the model's tokenizer has no chat template; leave --chat away")
    messages = [{"role": "user", "content": prompt}]
    found = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return tuple(found["input_ids"])


def _generated(prompt: str, deltas: Sequence[Delta]) -> Generated:
    last = deltas[-1]
    times = last.times
    assert times is not None
    assert times.finished is not None
    assert last.finish_reason is not None
    first, count = times.first_token, last.output_tokens
    spread = first is not None and count > 1
    return Generated(
        prompt=prompt,
        index=last.index,
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason,
        prompt_tokens=last.prompt_tokens,
        cached_tokens=last.cached_tokens,
        output_tokens=count,
        num_preemptions=last.num_preemptions,
        ttft_seconds=None if first is None else first - times.arrived,
        tpot_seconds=(times.finished - first) / (count - 1) if spread and first else None,
        total_seconds=times.finished - times.arrived,
    )


def _generation(
    engine: ServingEngine,
    config: EngineConfig,
    answers: tuple[Generated, ...],
    load_seconds: float,
    seconds: float,
) -> Generation:
    stats, ledger = engine.stats(), engine.ready.ledger
    return Generation(
        model=config.model,
        dtype=str(engine.model.dtype).removeprefix("torch."),
        device=engine.model.device.type,
        answers=answers,
        load_seconds=load_seconds,
        seconds=seconds,
        output_tokens_per_second=sum(one.output_tokens for one in answers) / seconds,
        steps=stats.steps,
        draft_rounds=stats.draft_rounds,
        drafted_tokens=stats.drafted_tokens,
        accepted_tokens=stats.accepted_tokens,
        cache=CacheStatistics(
            num_blocks=ledger.num_blocks,
            block_size=ledger.block_size,
            bytes_per_token=ledger.bytes_per_token,
            prefix_queries=stats.prefix_queries,
            prefix_hits=stats.prefix_hits,
            preemptions=stats.preemptions,
            wasted_tokens=stats.wasted_tokens,
        ),
        memory=tuple(
            MemoryUse(what=row.what, bytes=row.bytes, note=row.note) for row in ledger.rows
        ),
    )
