"""Beam search over the scheduler's forks gives what transformers gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.policies import Limits
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import Request, Sequence
from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.sampling.beams import BeamSearch

EOS = 1
VOCAB = 24


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.4,
        bos_token_id=0,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    return LlamaForCausalLM(config).eval()


def request_of(submit: Submit, index: int) -> Request:
    return Request(
        id=f"{submit.id}/{index}",
        prompt=submit.prompt,
        max_tokens=submit.sampling.max_tokens,
        arrival=0.0,
    )


@torch.inference_mode()
def run(model: Any, submits: list[Submit], scheduler: Scheduler) -> dict[str, BeamSearch]:
    """All searches to their ends; logits come from whole sequences, so nothing hides in a cache."""
    searches = {}
    for submit in submits:
        sequence = Sequence(request=request_of(submit, 0), tokens=list(submit.prompt))
        scheduler.add(sequence, 0.0)
        searches[submit.id] = BeamSearch(
            submit,
            sequence,
            eos_ids=(EOS,),
            tokenizer=None,
            request_of=lambda index, submit=submit: request_of(submit, index),
        )
    for now in range(1000):
        if not scheduler.has_work:
            return searches
        step = scheduler.schedule(float(now))
        rows: dict[Sequence, Tensor] = {}
        for one in step.slices:
            if one.samples:
                rows[one.sequence] = model(torch.tensor([one.sequence.tokens])).logits[0, -1]
        given: dict[Sequence, int] = {}
        for search in searches.values():
            given |= search.score({one: rows[one] for one in search.sequences if one in rows})
        assert set(given) == set(rows)
        sampled = [[given[one.sequence]] if one.samples else [] for one in step.slices]
        scheduler.complete(step, sampled, float(now))
        for search in searches.values():
            if not search.done or search.sequences:
                search.settle(scheduler, float(now))
        scheduler.check()
    raise AssertionError("the searches do not end")


def expected(model: Any, submit: Submit) -> tuple[list[tuple[int, ...]], list[float]]:
    asked = submit.sampling
    out = model.generate(
        torch.tensor([submit.prompt]),
        attention_mask=torch.ones(1, len(submit.prompt), dtype=torch.int64),
        num_beams=asked.beams,
        num_return_sequences=submit.n,
        max_new_tokens=asked.max_tokens,
        length_penalty=asked.length_penalty,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    answers = []
    for row in out.sequences.tolist():
        tokens = row[len(submit.prompt) :]
        if EOS in tokens:
            tokens = tokens[: tokens.index(EOS) + 1]
        answers.append(tuple(tokens))
    return answers, out.sequences_scores.tolist()


def submit_of(
    name: str, prompt: tuple[int, ...], beams: int, penalty: float, tokens: int = 12
) -> Submit:
    sampling = Sampling(temperature=0.0, beams=beams, length_penalty=penalty, max_tokens=tokens)
    return Submit(id=name, prompt=prompt, sampling=sampling, n=min(beams, 3))


def ranked(submit: Submit, delta: Delta) -> float:
    assert delta.cumulative_logprob is not None
    return delta.cumulative_logprob / len(delta.tokens) ** submit.sampling.length_penalty


@pytest.mark.sweep("16")
@pytest.mark.parametrize("num_blocks", [200, 16])
def test_answers_and_scores_are_those_of_transformers(model: Any, num_blocks: int) -> None:
    submits = [
        submit_of(f"{beams}/{penalty}/{len(prompt)}", prompt, beams, penalty)
        for prompt in ((5, 6, 7), (9, 2, 9, 4, 4, 3))
        for beams, penalty in ((2, 1.0), (4, 1.0), (4, 0.0), (3, 2.0), (5, -1.0))
    ]
    cache = BlockCache(num_blocks, 4)
    scheduler = Scheduler(Limits(max_length=40, max_sequences=12), cache)
    searches = run(model, submits, scheduler)
    if num_blocks == 16:
        assert scheduler.counters.preemptions > 0
    assert cache.num_free == num_blocks
    ends = set()
    for submit in submits:
        answers, scores = expected(model, submit)
        deltas = searches[submit.id].deltas()
        assert [delta.tokens for delta in deltas] == answers
        assert [ranked(submit, delta) for delta in deltas] == pytest.approx(scores, abs=1e-4)
        ends |= {delta.finish_reason for delta in deltas}
        assert all((delta.finish_reason == "stop") == (delta.tokens[-1] == EOS) for delta in deltas)
    assert ends == {"stop", "length"}
