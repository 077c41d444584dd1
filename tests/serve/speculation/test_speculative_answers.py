"""Answers of the engine with drafts are those without, and drafts are accepted."""

from __future__ import annotations

import argparse
import inspect
import typing
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Grammar, Sampling, Submit
from ridgeline.serve.speculation.train_heads import HeadTraining, train_heads

LIBRARY = str(Path(__file__).parents[3] / "examples/models/library")
PROMPTS = (
    "import os\nimport sys\n\n\ndef main():\n",
    'class Reader:\n    """Reads',
    "for name in names:\n    for name in names:\n    for",
)
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer", "maximum": 99999}}}'


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Trained for a moment."""
    folder = tmp_path_factory.mktemp("heads")
    text = folder / "text.py"
    modules = (argparse, inspect, typing)  # the model was trained on text like this
    text.write_text("\n".join(inspect.getsource(one) for one in modules))
    settings = HeadTraining(
        model=LIBRARY, text=str(text), num_heads=3, steps=60, batch=4, seq=64, learning_rate=3e-3
    )
    train_heads(settings, folder)
    return str(folder)


def answers(
    speculation: SpeculationConfig | None, **asked: Any
) -> tuple[dict[str, tuple[int, ...]], Any]:
    tokenizer = AutoTokenizer.from_pretrained(LIBRARY)
    config = EngineConfig(
        model=LIBRARY,
        device="cpu",
        dtype="fp32",
        threads=1,
        kv_bytes=2**24,
        max_length=160,
        max_tokens_per_step=64,
        max_sequences=8,
        speculation=speculation,
        debug=True,
    )
    engine = ServingEngine(config)
    for at, prompt in enumerate(PROMPTS):
        tokens = tuple(tokenizer.encode(prompt))
        sampling = Sampling(**{"max_tokens": 60, **asked})
        engine.handle(Submit(id=str(at), prompt=tokens, sampling=sampling))
    found: dict[str, tuple[int, ...]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta)
            found[message.id] = found.get(message.id, ()) + message.tokens
    return found, engine.stats()


ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.2},
]
GUIDED: dict[str, Any] = {
    "temperature": 0.0,
    "grammar": Grammar(kind="json_schema", text=SCHEMA),
}


@pytest.fixture(scope="module")
def plain() -> list[dict[str, tuple[int, ...]]]:
    """Answers without drafts, one set for each of `ASKED`."""
    return [answers(None, **asked)[0] for asked in ASKED]


def drafting(kind: Any, request: pytest.FixtureRequest) -> SpeculationConfig:
    # Heads are trained for those who use them.
    path = (
        request.getfixturevalue("heads")
        if kind in ("heads", "tree")
        else {"ngram": "", "draft": LIBRARY}[kind]
    )
    tree = 12 if kind == "tree" else None
    named = "heads" if kind == "tree" else kind
    return SpeculationConfig(kind=named, path=path, num_drafts=3, tree=tree, always=True)


@pytest.mark.sweep("ngram")
@pytest.mark.parametrize("kind", ["ngram", "draft", "heads", "tree"])
def test_greedy_answers_are_token_by_token_the_same(
    kind: Any, plain: list[dict[str, tuple[int, ...]]], request: pytest.FixtureRequest
) -> None:
    speculation = drafting(kind, request)
    for asked, wanted in zip(ASKED, plain, strict=True):
        drafted, stats = answers(speculation, **asked)
        assert drafted == wanted
        if asked is ASKED[0]:
            share = stats.accepted_tokens / stats.drafted_tokens
            # Its own twin is always right; the heads learnt for a moment only.
            least = {"draft": 0.99, "ngram": 0.2, "heads": 0.005, "tree": 0.02}[kind]
            assert share >= least


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ngram", "draft", "heads", "tree"])
def test_drafts_keep_to_a_grammar(kind: Any, request: pytest.FixtureRequest) -> None:
    wanted, _ = answers(None, **GUIDED)
    assert answers(drafting(kind, request), **GUIDED)[0] == wanted


def test_seeded_answers_are_the_same_with_n_grams() -> None:
    plain, _ = answers(None, seed=3, temperature=0.8, top_p=0.9)
    speculation = SpeculationConfig(kind="ngram", num_drafts=4, always=True)
    drafted, stats = answers(speculation, seed=3, temperature=0.8, top_p=0.9)
    assert drafted == plain
    assert stats.accepted_tokens > 0
