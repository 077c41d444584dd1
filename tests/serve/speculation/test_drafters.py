"""Drafters on models that were really trained: what they guess is what their logits say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ridgeline.batching.sequence import Request, Sequence
from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import Sampling, Submit
from ridgeline.serve.model.load import load
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.speculation.draft_model import DraftModel
from ridgeline.serve.speculation.heads import DraftHeads, HeadDrafter, HeadFacts, read_heads
from ridgeline.serve.speculation.train_heads import (
    PROGRESS,
    HeadTraining,
    Progress,
    accuracy,
    train_heads,
)

LIBRARY = str(Path(__file__).parents[3] / "examples/models/library")
TEXT = '''import os
import sys


def read_lines(path):
    """Return the lines of a file."""
    with open(path) as file:
        return [line.rstrip() for line in file]


class Reader:
    def __init__(self, name):
        self.name = name

    def close(self):
        """Close the file."""
        self.file.close()
'''


@pytest.fixture(scope="module")
def plain() -> Any:
    return AutoModelForCausalLM.from_pretrained(LIBRARY).eval()


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load(EngineConfig(model=LIBRARY, device="cpu", dtype="fp32"))


def state_of(prompt: tuple[int, ...], **asked: Any) -> SamplingState:
    submit = Submit(id="a", prompt=prompt, sampling=Sampling(**{"max_tokens": 100, **asked}))
    return SamplingState(submit, 0, vocab=2048, eos_ids=(1,), tokenizer=None)


def sequence_of(tokens: list[int]) -> Sequence:
    request = Request(id="a", prompt=tuple(tokens), max_tokens=100, arrival=0.0)
    return Sequence(request=request, tokens=list(tokens))


def drafter_of(loaded: Any, **changed: Any) -> DraftModel:
    sizes = {"vocab": 2048, "num_drafts": 3, "num_blocks": 64, "block_size": 4}
    sizes |= {"max_sequences": 4, "max_tokens_per_step": 16}
    return DraftModel(loaded, **{**sizes, **changed})


def greedy(plain: Any, tokens: list[int], count: int) -> tuple[int, ...]:
    with torch.inference_mode():
        for _ in range(count):
            tokens = [*tokens, int(plain(torch.tensor([tokens])).logits[0, -1].argmax())]
    return tuple(tokens[-count:])


def test_a_draft_model_guesses_its_own_greedy_tokens_after_any_history(
    plain: Any, loaded: Any
) -> None:
    drafter = drafter_of(loaded)
    text = AutoTokenizer.from_pretrained(LIBRARY).encode(TEXT)
    long, short = sequence_of(text[:40]), sequence_of(text[50:53])
    states = [state_of(one.request.prompt, temperature=0.0) for one in (long, short)]
    # What the target makes of the guesses: takes all, some or none of them, and adds its own.
    for taken in (3, 0, 1, 2, 0, 3):
        found = drafter.propose([long, short], states, None)
        drafter.check()
        for sequence, proposal in zip((long, short), found, strict=True):
            assert proposal.tokens == greedy(plain, sequence.tokens, 3)
            assert proposal.probabilities is None
            sequence.tokens += [*proposal.tokens[:taken], 77]
    drafter.forget(long)
    drafter.forget(short)
    drafter.check()
    again = sequence_of(long.tokens)
    state = state_of(again.request.prompt, temperature=0.0)
    assert drafter.propose([again], [state], None)[0].tokens == greedy(plain, again.tokens, 3)


def test_drawn_drafts_come_with_what_they_were_drawn_from(plain: Any, loaded: Any) -> None:
    text = AutoTokenizer.from_pretrained(LIBRARY).encode(TEXT)[:30]
    state = state_of(tuple(text), seed=4, temperature=0.8, top_k=20)
    (found,) = drafter_of(loaded).propose([sequence_of(text)], [state], None)
    assert found.probabilities is not None
    tokens = list(text)
    for draft, given in zip(found.tokens, found.probabilities, strict=True):
        with torch.inference_mode():
            logits = plain(torch.tensor([tokens])).logits[0, -1] / 0.8
        wanted = logits.masked_fill(logits < logits.topk(20).values[-1], -torch.inf).softmax(-1)
        torch.testing.assert_close(given, wanted, atol=1e-4, rtol=1e-3)
        assert given[draft] > 0
        tokens.append(draft)


def test_without_room_there_are_no_drafts_and_nothing_leaks(loaded: Any) -> None:
    drafter = drafter_of(loaded, num_blocks=4)
    fits, too_long = sequence_of([5] * 10), sequence_of([6] * 40)
    states = [state_of(one.request.prompt, temperature=0.0) for one in (fits, too_long)]
    first, second = drafter.propose([fits, too_long], states, None)
    assert len(first.tokens) == 3
    assert second.tokens == ()
    fits.tokens += [7] * 30
    assert drafter.propose([fits], states[:1], None)[0].tokens == ()
    drafter.check()


def test_a_draft_model_of_another_vocabulary_is_refused(loaded: Any) -> None:
    with pytest.raises(InputError, match="same vocabulary"):
        drafter_of(loaded, vocab=32000)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.py"
    path.write_text(TEXT * 40)
    return path


@pytest.mark.slow
def test_trained_heads_guess_better_than_untrained_ones_and_are_read_back(
    plain: Any, text_file: Path, tmp_path: Path
) -> None:
    settings = HeadTraining(
        model=LIBRARY, text=str(text_file), num_heads=2, steps=40, batch=4, seq=48
    )
    losses: list[float] = []
    facts = train_heads(settings, tmp_path / "heads", lambda one: losses.append(one.loss))
    assert losses[-1] < 0.8 * losses[0]
    heads = read_heads(tmp_path / "heads")
    assert heads.facts == facts
    assert facts.steps == 40
    tokens = AutoTokenizer.from_pretrained(LIBRARY).encode(TEXT * 2)[:96]
    rows = torch.tensor(tokens).view(2, 48)
    trained = accuracy(plain, heads, rows)
    untrained = accuracy(plain, DraftHeads(facts), rows)
    assert trained[0][0] > untrained[0][0] + 0.1  # the likeliest guess of the first head

    drafter = HeadDrafter(
        heads, plain.get_output_embeddings(), hidden=128, vocab=2048, num_drafts=2
    )
    with torch.inference_mode():
        hidden = plain.model(rows).last_hidden_state[:, -1]
    sequences = [sequence_of(row) for row in rows.tolist()]
    states = [
        state_of(sequences[0].request.prompt, temperature=0.0),
        state_of(sequences[1].request.prompt, seed=1),
    ]
    certain, drawn = drafter.propose(sequences, states, hidden)
    logits = plain.get_output_embeddings()(heads(hidden))
    assert certain.tokens == tuple(logits[:, 0].argmax(-1).tolist())
    assert certain.probabilities is None
    torch.testing.assert_close(drawn.probabilities, logits[:, 1].softmax(-1))
    assert drafter.memory()[0].bytes == sum(4 * one.numel() for one in heads.parameters())


def test_an_interrupted_training_of_heads_ends_where_the_whole_one_does(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline.serve.speculation.train_heads.SAVE_EVERY", 3)
    settings = HeadTraining(
        model=LIBRARY, text=str(text_file), num_heads=1, steps=8, batch=2, seq=32
    )
    train_heads(settings, tmp_path / "whole")

    def interrupt(one: Progress) -> None:
        if one.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_heads(settings, tmp_path / "parts", interrupt)
    assert (tmp_path / "parts" / PROGRESS).exists()
    with pytest.raises(InputError, match="other settings"):
        train_heads(HeadTraining(model=LIBRARY, text=str(text_file), seq=32), tmp_path / "parts")
    steps: list[int] = []
    train_heads(settings, tmp_path / "parts", lambda one: steps.append(one.step))
    assert steps == [4, 5, 6, 7, 8]
    assert not (tmp_path / "parts" / PROGRESS).exists()
    parts, whole = read_heads(tmp_path / "parts"), read_heads(tmp_path / "whole")
    for one, other in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_heads_that_do_not_fit_are_refused(tmp_path: Path, plain: Any) -> None:
    with pytest.raises(InputError, match="no draft heads"):
        read_heads(tmp_path)
    heads = DraftHeads(HeadFacts(model="m", hidden=64, vocab=2048, num_heads=2))
    output = plain.get_output_embeddings()
    with pytest.raises(InputError, match="trained for m"):
        HeadDrafter(heads, output, hidden=128, vocab=2048, num_drafts=2)
    with pytest.raises(InputError, match="2 draft heads"):
        HeadDrafter(heads, output, hidden=64, vocab=2048, num_drafts=3)


@pytest.mark.parametrize(("text", "seq"), [("too short", 64), (None, 64), (TEXT, 8)])
def test_text_that_cannot_be_trained_on_is_refused(
    tmp_path: Path, text: str | None, seq: int
) -> None:
    path = tmp_path / "text.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError):
        train_heads(
            HeadTraining(model=LIBRARY, text=str(path), seq=seq, num_heads=8), tmp_path / "out"
        )
