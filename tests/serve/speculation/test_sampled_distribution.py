"""Answers drawn with drafts follow the model's own distribution, counted through the engine."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.speculation.eagle import EagleHead
from ridgeline.serve.speculation.eagle3 import Eagle3Head
from ridgeline.serve.speculation.eagle_facts import EagleFacts
from ridgeline.serve.speculation.heads import DraftHeads, HeadFacts

VOCAB, LENGTH, ANSWERS = 5, 3, 1500
PROMPT = (3, 1, 4, 1)
TEMPERATURE = 0.8
SIZES: dict[str, int] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        config = LlamaConfig(vocab_size=VOCAB, initializer_range=0.25, eos_token_id=None, **SIZES)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def exact(model: Path) -> dict[tuple[int, ...], float]:
    """The chance of every answer, by enumeration."""
    answers = list(itertools.product(range(VOCAB), repeat=LENGTH))
    texts = torch.tensor([PROMPT + answer for answer in answers])
    with torch.inference_mode():
        logits = LlamaForCausalLM.from_pretrained(model).eval()(texts).logits
    chances = (logits[:, len(PROMPT) - 1 : -1].double() / TEMPERATURE).softmax(-1)
    each = chances.gather(-1, texts[:, len(PROMPT) :, None]).squeeze(-1).prod(-1)
    return dict(zip(answers, each.tolist(), strict=True))


def disturbed(head: Any, spread: float) -> Any:
    """Weights at random: guesses are now right and now wrong."""
    generator = torch.Generator().manual_seed(11)
    for one in head.parameters():
        one.data = spread * torch.randn(one.shape, generator=generator)
    return head


def speculation(kind: str, folder: Path) -> SpeculationConfig:
    path = str(folder)
    if kind in ("eagle", "eagle-tree"):
        facts = EagleFacts(
            model="m", hidden=16, vocab=VOCAB, heads=2, kv_heads=2, head_dim=8, intermediate=16
        )
        disturbed(EagleHead(facts), 0.3).save(folder)
        tree = 6 if kind == "eagle-tree" else None
        return SpeculationConfig(kind="eagle", path=path, num_drafts=2, tree=tree, always=True)
    if kind == "eagle3":
        facts = EagleFacts(
            model="m", hidden=16, vocab=VOCAB, heads=2, kv_heads=2, head_dim=8, intermediate=16,
            draft_vocab=VOCAB - 1, layers_read=(0, 1, 2),
        )  # fmt: skip
        head = disturbed(Eagle3Head(facts), 0.3)
        head.d2t += 1  # all tokens but the first
        head.save(folder)
        return SpeculationConfig(kind="eagle", path=path, num_drafts=2, always=True)
    ranks = ((0.4, 0.3, 0.1), (0.4, 0.3, 0.1))
    heads = HeadFacts(model="m", hidden=16, vocab=VOCAB, num_heads=2, held_out_ranks=ranks)
    disturbed(DraftHeads(heads), 0.3).save(folder)
    tree = 6 if kind == "tree" else None
    return SpeculationConfig(kind="heads", path=path, num_drafts=2, tree=tree, always=True)


def drawn(model: Path, asked: SpeculationConfig) -> tuple[Counter[tuple[int, ...]], Any]:
    engine = ServingEngine(
        EngineConfig(
            model=str(model), device="cpu", dtype="fp32", threads=1, max_length=16, block_size=4,
            kv_bytes=2**22, max_sequences=128, max_waiting=ANSWERS, speculation=asked,
        )
    )  # fmt: skip
    for seed in range(ANSWERS):
        sampling = Sampling(max_tokens=LENGTH, temperature=TEMPERATURE, seed=seed)
        engine.handle(Submit(id=str(seed), prompt=PROMPT, sampling=sampling))
    found: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta), message
            found[message.id] = found.get(message.id, ()) + message.tokens
    return Counter(found.values()), engine.stats()


def distance(counts: Counter[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> float:
    """χ² in standard deviations above its mean (Wilson-Hilferty); rare answers are one class."""
    count = sum(counts.values())
    classes: dict[Any, tuple[int, float]] = {}
    for answer, chance in chances.items():
        name = answer if count * chance >= 5.0 else "rare"
        seen, due = classes.get(name, (0, 0.0))
        classes[name] = seen + counts[answer], due + count * chance
    freedom = len(classes) - 1
    assert freedom > 30
    statistic = sum((seen - due) ** 2 / due for seen, due in classes.values())
    spread = 2 / (9 * freedom)
    return (math.pow(statistic / freedom, 1 / 3) - (1 - spread)) / math.sqrt(spread)


@pytest.mark.sweep("eagle", "tree")
@pytest.mark.parametrize("kind", ["eagle", "eagle-tree", "eagle3", "heads", "tree"])
def test_whole_answers_come_with_the_chances_that_the_model_gives_them(
    kind: str, model: Path, exact: dict[tuple[int, ...], float], tmp_path: Path
) -> None:
    counts, stats = drawn(model, speculation(kind, tmp_path))
    assert sum(counts.values()) == ANSWERS
    assert 0.05 < stats.accepted_tokens / stats.drafted_tokens < 0.95
    assert distance(counts, exact) < 3.7  # seeds are fixed; by chance 1 in 10 000
