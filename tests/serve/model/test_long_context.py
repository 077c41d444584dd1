"""Models with a set of rotary frequencies for long contexts: one set holds for all sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.model.tiny_families import tiny

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit

TRAINED, NEW = 32, 12
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [3.0] * 4,
    "original_max_position_embeddings": TRAINED,
    "rope_theta": 10000.0,
}
SHORT, LONG = tuple(range(5, 10)), tuple(range(5, 55))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=TRAINED)


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("phi3")
    model.save_pretrained(where)
    return where


def answers(folder: Path, *prompts: tuple[int, ...], **given: Any) -> list[list[int]]:
    config = EngineConfig(
        model=str(folder), dtype="fp32", device="cpu", threads=1, kv_bytes=2**20, **given
    )
    engine = ServingEngine(config)
    sampling = Sampling(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.handle(Submit(id=str(number), prompt=prompt, sampling=sampling))
    found: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta)
            found[int(message.id)] += message.tokens
    return found


def of_transformers(model: Any, prompt: tuple[int, ...]) -> list[int]:
    given = torch.tensor([prompt])
    said = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        max_new_tokens=NEW,
        eos_token_id=None,
    )
    found: list[int] = said[0, len(prompt) :].tolist()
    return found


def test_an_answer_is_the_same_alone_and_beside_a_longer_one(model: Any, folder: Path) -> None:
    beside = answers(folder, SHORT, LONG)
    assert beside == [*answers(folder, SHORT), *answers(folder, LONG)]
    assert beside[1] == of_transformers(model, LONG)


def test_with_short_contexts_alone_positions_turn_as_they_were_trained(
    model: Any, folder: Path
) -> None:
    (short,) = answers(folder, SHORT, max_length=TRAINED)
    assert short == of_transformers(model, SHORT)
    assert short != answers(folder, SHORT)[0]


def test_the_start_says_for_which_contexts_positions_turn(folder: Path) -> None:
    config = EngineConfig(model=str(folder), dtype="fp32", device="cpu", kv_bytes=2**20)
    rows = {row.what: row.note for row in ServingEngine(config).ready.ledger.rows}
    assert f"contexts beyond {TRAINED}; --max-length {TRAINED}" in rows["kv blocks"]
