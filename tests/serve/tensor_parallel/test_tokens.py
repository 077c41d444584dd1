"""A model cut over several processes: the tokens of one process, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.engine.workloads import (
    LIBRARY,
    VOCAB,
    answers,
    finished,
    greedy,
    plain_greedy,
    tiny_engine,
    write_tiny_llama,
)
from tests.serve.model.tiny_families import FITTING, OWN_ATTENTION, WITH_STATES, tiny
from tests.warm_scripts import start_rank_warm

from ridgeline.serve.config import SpeculationConfig
from ridgeline.serve.engine import ranks
from ridgeline.serve.engine.engine import ServingEngine

pytestmark = pytest.mark.multiprocess
LAYERS, WIDTH, HEADS, HEAD = 2, 32, 2, 8
CUT = sorted(
    {*FITTING}
    - {*WITH_STATES, *OWN_ATTENTION}
    - {"gpt2", "opt", "gpt_oss", "deepseek_v2", "glm4_moe_lite"}
)
"""The families that transformers has a plan for which is carried out."""
PROMPTS = {
    "cold": list(range(5, 45)),
    "warm": [*range(5, 41), 7, 8],  # shares blocks with the first
    "repeats": [9, 10, 11] * 6,
    "short": [3],
    "other": [50 - i for i in range(25)],
}


@contextmanager
def running(folder: Path, **changes: Any) -> Iterator[ServingEngine]:
    engine = tiny_engine(folder, **changes)
    try:
        yield engine
    finally:
        engine.close()


def tokens_of(engine: ServingEngine, prompts: dict[str, list[int]], count: int = 16) -> Any:
    for name, prompt in prompts.items():
        engine.handle(greedy(name, prompt, count))
    return answers(finished(engine))


def test_two_ranks_give_the_tokens_of_one_and_say_what_they_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "start_rank", start_rank_warm)
    folder = write_tiny_llama(tmp_path)
    settings: dict[str, Any] = {
        "speculation": SpeculationConfig(kind="ngram", always=True),
        "kv_bytes": 16 * 4 * 2 * LAYERS * HEADS * HEAD * 4,  # so little that it preempts
        "max_tokens_per_step": 24,
    }
    with running(folder, **settings) as whole:
        expected = tokens_of(whole, PROMPTS)
        alone = whole.ready.ledger
    with running(folder, tp=2, **settings) as engine:
        assert tokens_of(engine, PROMPTS) == expected
        ledger, stats = engine.ready.ledger, engine.stats()
    assert stats.preemptions
    assert stats.accepted_tokens
    assert stats.prefix_hits
    assert ledger.ranks == 2
    assert (ledger.num_blocks, ledger.bytes_per_token) == (
        alone.num_blocks, alone.bytes_per_token // 2,
    )  # fmt: skip
    kv, weights = ({row.what: row.bytes for row in one.rows} for one in (ledger, alone))
    assert kv["kv blocks"] == weights["kv blocks"] // 2
    assert 0 < stats.collective_seconds < stats.step_seconds
    # Of every token computed: the embedding and two sums a layer; of every row of logits: a half.
    sums = (2 * LAYERS + 1) * WIDTH * 4
    rows = -(-VOCAB // 2) * 4
    computed, left = divmod(stats.collective_bytes, sums)
    assert computed >= sum(map(len, PROMPTS.values()))
    assert left % 4 == 0
    assert any((stats.collective_bytes - n * rows) % sums == 0 for n in range(1, 500))


@pytest.mark.slow
@pytest.mark.parametrize("family", CUT)
def test_every_family_with_a_plan_gives_the_tokens_of_the_plain_model(
    tmp_path: Path, family: str
) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    with running(tmp_path, tp=2) as engine:
        found = tokens_of(engine, PROMPTS)
    for name, prompt in PROMPTS.items():
        assert found[name, 0] == plain_greedy(model, prompt, 16), (family, name)


@pytest.mark.slow
def test_four_ranks_share_words_that_four_does_not_divide(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, num_key_value_heads=4, tie_word_embeddings=True)
    with running(folder) as whole:
        expected = tokens_of(whole, PROMPTS)
    with running(folder, tp=4) as engine:
        assert tokens_of(engine, PROMPTS) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bf16"},
        {"kv_dtype": "int8"},
        {"speculation": SpeculationConfig(kind="draft", path=str(LIBRARY), always=True)},
    ],
    ids=str,
)
def test_what_is_rounded_otherwise_still_answers_alike(changes: dict[str, Any]) -> None:
    """Sums in another order and keys rounded may turn some words over; most they do not."""
    prompts = {"a": list(range(5, 45)), "b": list(range(300, 330))}
    with running(LIBRARY, **changes) as whole:
        expected = tokens_of(whole, prompts)
    with running(LIBRARY, tp=2, **changes) as engine:
        found = tokens_of(engine, prompts)
    same = [a == b for key in expected for a, b in zip(expected[key], found[key], strict=True)]
    assert torch.tensor(same).float().mean() >= (1.0 if "speculation" in changes else 0.5)
