"""Trees of an EAGLE head's guesses: the surest there are, and answers that are the model's own."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.speculation.test_sampled_distribution import SIZES, VOCAB, disturbed
from tests.serve.speculation.test_speculative_answers import LIBRARY
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ridgeline.cli.main import run
from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.speculation.eagle import EagleHead
from ridgeline.serve.speculation.eagle3 import Eagle3Head
from ridgeline.serve.speculation.eagle_facts import EagleFacts
from ridgeline.serve.speculation.published_eagle import read_eagle
from ridgeline.serve.speculation.train_eagle import eagle_agreement

PROMPTS = ((3, 1, 4, 1), (2, 0, 2, 4, 1, 3), (1,), (4, 4, 0))
DEPTH, NODES = 3, 6


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=VOCAB, initializer_range=0.25, eos_token_id=None, **SIZES)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def write_head(folder: Path, form: str) -> Path:
    facts: dict[str, Any] = {
        "model": "m", "hidden": 16, "vocab": VOCAB, "heads": 2, "kv_heads": 2, "head_dim": 8,
        "intermediate": 16,
    }  # fmt: skip
    if form == "eagle":
        disturbed(EagleHead(EagleFacts(**facts)), 0.4).save(folder)
        return folder
    third = EagleFacts(**facts, draft_vocab=VOCAB - 1, layers_read=(0, 1, 2))
    head = disturbed(Eagle3Head(third), 0.4)
    head.d2t += 1
    head.save(folder)
    return folder


def engine_of(model: Path, asked: SpeculationConfig | None) -> ServingEngine:
    return ServingEngine(
        EngineConfig(
            model=str(model), device="cpu", dtype="fp32", threads=1, max_length=64, block_size=4,
            kv_bytes=2**22, max_sequences=3, speculation=asked, debug=True,
        )
    )  # fmt: skip


def answered(engine: ServingEngine, **given: Any) -> dict[str, tuple[int, ...]]:
    for at, prompt in enumerate(PROMPTS):
        sampling = Sampling(**({"max_tokens": 24, "temperature": 0.0} | given))
        engine.handle(Submit(id=str(at), prompt=prompt, sampling=sampling))
    found: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta), message
            found[message.id] = found.get(message.id, ()) + message.tokens
    return found


def eagle_tree(head: Path) -> SpeculationConfig:
    return SpeculationConfig(
        kind="eagle", path=str(head), num_drafts=DEPTH, tree=NODES, always=True
    )


@pytest.mark.sweep("eagle3")
@pytest.mark.parametrize("form", ["eagle", "eagle3"])
def test_answers_are_those_without_guesses_and_some_guesses_hold(
    form: str, model: Path, tmp_path: Path
) -> None:
    head = write_head(tmp_path / "head", form)
    for given in ({}, {"temperature": 0.9, "seed": 7}):
        plain = engine_of(model, None)
        wanted = answered(plain, **given)
        engine = engine_of(model, eagle_tree(head))
        assert answered(engine, **given) == wanted
        stats = engine.stats()
        assert stats.accepted_tokens > 0.1 * stats.draft_rounds
        assert stats.steps < plain.stats().steps
        assert engine.scheduler.cache.usage == 0.0


def test_the_nodes_are_the_surest_of_all_ways_computed_on_the_whole_text(
    model: Path, tmp_path: Path
) -> None:
    """After every round, whichever way held: what the head reads are the model's own states."""
    folder = write_head(tmp_path / "head", "eagle")
    engine = engine_of(model, eagle_tree(folder))
    whole, head = AutoModelForCausalLM.from_pretrained(model).eval(), read_eagle(folder)
    embedding = whole.get_input_embeddings()
    assert engine._speculating is not None
    propose, compared = engine._speculating.drafter.propose, 0

    def chances(tokens: tuple[int, ...], way: tuple[int, ...]) -> torch.Tensor:
        """log q of each token behind a way."""
        states = whole.model(torch.tensor([tokens[:-1]])).last_hidden_state
        for more in range(len(way) + 1):
            text = torch.tensor([(*tokens, *way[:more])[1:]])
            ahead = head(embedding(text), states)[:, -1:]
            states = torch.cat((states, ahead), dim=1)
        return whole.lm_head(ahead)[0, -1].log_softmax(-1)  # type: ignore[no-any-return]

    def checked(sequences: Any, states: Any, hidden: Any) -> Any:
        nonlocal compared
        found = propose(sequences, states, hidden)
        for sequence, proposal in zip(sequences, found, strict=True):
            if compared == 6 or not proposal.tokens:
                continue
            compared += 1
            tokens = tuple(sequence.tokens)
            sure = {(): 0.0}
            for depth in range(DEPTH):
                for way in itertools.product(range(VOCAB), repeat=depth):
                    behind = chances(tokens, way) + sure[way]
                    sure |= {(*way, token): float(behind[token]) for token in range(VOCAB)}
            del sure[()]
            ways: list[tuple[int, ...]] = []
            for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
                ways.append((*(ways[parent] if parent >= 0 else ()), token))
            best = sorted(sure.values(), reverse=True)[:NODES]
            assert [sure[way] for way in ways] == pytest.approx(best, abs=1e-4)
        return found

    engine._speculating.drafter.propose = checked  # type: ignore[method-assign]
    with torch.inference_mode():
        answered(engine, max_tokens=10)
    assert compared == 6


def test_the_command_takes_a_tree_and_says_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = EagleFacts(
        model="m", hidden=128, vocab=2048, heads=4, kv_heads=2, head_dim=32, intermediate=64
    )
    EagleHead(facts).save(tmp_path)
    asked = ["generate", LIBRARY, "--prompt", "import", "--max-tokens", "6", "--device", "cpu"]
    asked += ["--dtype", "fp32", "--speculative", f"eagle:{tmp_path}", "--json"]
    asked += ["--speculate-always", "--draft-tree"]
    assert run([*asked, "5", "--num-drafts", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["draft_rounds"] > 0
    ledger = {row["what"]: row["note"] for row in found["memory"]}
    assert ledger["eagle head"] == "a tree of 5 guesses, at most 2 deep"
    assert run([*asked, "64"]) == 2
    assert "a tree has 1 to 63 guesses" in capsys.readouterr().err


def test_what_a_head_says_of_its_guesses_is_counted_on_chains_of_its_own(
    model: Path, tmp_path: Path
) -> None:
    """Place by place, as the drafter goes on, against the head on the whole text each time."""
    whole = AutoModelForCausalLM.from_pretrained(model).eval()
    head = read_eagle(write_head(tmp_path / "head", "eagle"))
    text = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(4))

    def logits(of: Any, states: torch.Tensor) -> torch.Tensor:
        return of.lm_head(states)  # type: ignore[no-any-return]

    with torch.inference_mode():
        states = whole.model(text).last_hidden_state
        found = eagle_agreement(whole, head, text, states, logits, 3)
        own, embedding = whole.lm_head(states).argmax(-1), whole.get_input_embeddings()
        for depth, shares in enumerate(found, start=1):
            right = torch.zeros(3)
            for row in range(2):
                for at in range(9 - depth):
                    seen = states[row : row + 1, : at + 1]
                    for more in range(depth):
                        ahead = head(embedding(text[row : row + 1, 1 : at + more + 2]), seen)
                        seen = torch.cat((seen, ahead[:, -1:]), dim=1)
                    guesses = whole.lm_head(seen[0, -1]).topk(3).indices
                    right += guesses == own[row, at + depth]
            torch.testing.assert_close(shares, right / (2 * (9 - depth)))
    assert len(found) == 4
