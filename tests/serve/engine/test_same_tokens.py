"""However a workload is cut into steps, blocks and caches: the same greedy tokens, in float32."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.engine.workloads import (
    VOCAB,
    answers,
    finished,
    greedy,
    plain_greedy,
    tiny_engine,
    write_tiny_llama,
)

from ridgeline.serve.engine.engine import ServingEngine

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4
"""Keys and values, layers, heads, head size, float32."""
WAYS: dict[str, dict[str, Any]] = {
    "paged": {},
    "without a prefix cache": {"prefix_cache": False},
    "contiguous": {"kv_layout": "contiguous", "max_length": 64},
    "dynamic": {"kv_layout": "dynamic"},
    "one token of a prompt at a time": {"max_tokens_per_step": 3, "max_sequences": 2},
    "chunks of seven": {"max_tokens_per_step": 7},
    "one sequence at a time": {"max_sequences": 1},
    "room for so little that it preempts": {"kv_bytes": 16 * 4 * BYTES_PER_TOKEN},
    "large blocks": {"block_size": 32},
    "static batches": {"batching": "static", "max_sequences": 3},
}

shared = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)
workloads = st.lists(
    st.tuples(
        st.integers(0, 2), st.lists(st.integers(0, VOCAB - 1), max_size=12), st.integers(1, 14)
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def engines(folder: Path) -> dict[str, ServingEngine]:
    return {name: tiny_engine(folder, **changes) for name, changes in WAYS.items()}


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @cache
    def tokens(prompt: tuple[int, ...], count: int) -> list[int]:
        return plain_greedy(model, list(prompt), count)

    return tokens


@given(st.lists(shared, min_size=3, max_size=3), workloads)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_way_gives_the_tokens_of_the_plain_model(
    engines: dict[str, ServingEngine], plain: Any, beginnings: list[list[int]], workload: Any
) -> None:
    prompts = [beginnings[which] + tail for which, tail, _ in workload]
    counts = [count for _, _, count in workload]
    expected = {
        (str(i), 0): plain(tuple(prompt), count)
        for i, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
    }
    for name, engine in engines.items():
        for i, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            engine.handle(greedy(str(i), prompt, count))
        assert answers(finished(engine)) == expected, name


def test_the_tiny_cache_really_preempts(folder: Path, plain: Any) -> None:
    engine = tiny_engine(folder, kv_bytes=12 * 4 * BYTES_PER_TOKEN)
    prompts = {str(i): [i + 3] * 9 for i in range(4)}
    for name, prompt in prompts.items():
        engine.handle(greedy(name, prompt, 20))
    found = answers(finished(engine))
    assert engine.stats().preemptions > 0
    for name, prompt in prompts.items():
        assert found[name, 0] == plain(tuple(prompt), 20)


def test_a_warm_prefix_is_found_and_changes_nothing(folder: Path, plain: Any) -> None:
    engine = tiny_engine(folder)
    prompt = list(range(5, 45))
    first = answers(finished_after(engine, greedy("cold", prompt, 12)))
    messages = finished_after(engine, greedy("warm", prompt, 12))
    assert messages[-1].cached_tokens == 36  # the block of the last token is computed again
    assert answers(messages)["warm", 0] == first["cold", 0] == plain(tuple(prompt), 12)


def test_int8_and_fp8_caches_keep_most_tokens(folder: Path) -> None:
    prompt = list(range(5, 45))
    exact = answers(finished_after(tiny_engine(folder), greedy("a", prompt, 12)))["a", 0]
    for kind in ("int8", "fp8"):
        engine = tiny_engine(folder, kv_dtype=kind)
        found = answers(finished_after(engine, greedy("a", prompt, 12)))["a", 0]
        assert found[0] == exact[0], kind


def finished_after(engine: ServingEngine, submit: Any) -> Any:
    engine.handle(submit)
    return finished(engine)
