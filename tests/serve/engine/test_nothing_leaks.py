"""Random submits and aborts at any time: no block is lost, every token comes in one Delta."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.serve.engine.workloads import VOCAB, finished, tiny_engine, write_tiny_llama
from tests.serve.http.servers import resident_bytes

from ridgeline.batching.sequence import Sequence
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.engine.requests import OpenCompletion
from ridgeline.serve.messages import Abort, Delta, Embed, Embedded, Refused, Sampling, Submit
from ridgeline.serve.sampling.state import SamplingState

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


class Watch:
    """Counts what comes out and complains about what may not."""

    def __init__(self) -> None:
        self.tokens: Counter[tuple[str, int]] = Counter()
        self.ended: dict[tuple[str, int], Delta] = {}
        self.other: dict[str, Any] = {}

    def see(self, messages: list[Any]) -> None:
        for message in messages:
            if not isinstance(message, Delta):
                assert isinstance(message, Embedded | Refused)
                assert message.id not in self.other, "answered twice"
                self.other[message.id] = message
                continue
            key = (message.id, message.index)
            assert key not in self.ended, "something follows the last Delta"
            self.tokens[key] += len(message.tokens)
            if message.finish_reason is not None:
                self.ended[key] = message
                if message.finish_reason != "abort" or message.times.scheduled is not None:
                    assert message.output_tokens == self.tokens[key]


def random_submit(chance: random.Random, name: str, prefixes: list[tuple[int, ...]]) -> Submit:
    tail = tuple(chance.randrange(VOCAB) for _ in range(chance.randrange(1, 9)))
    sampling = Sampling(
        max_tokens=chance.randrange(1, 20),
        temperature=chance.choice((0.0, 1.0)),
        ignore_eos=chance.random() < 0.5,
        seed=chance.randrange(9),
    )
    return Submit(
        id=name,
        prompt=chance.choice(prefixes) + tail,
        sampling=sampling,
        n=chance.choice((1, 1, 1, 3)),
    )


def stormed(engine: ServingEngine, num_events: int, seed: int) -> Watch:
    """Submit, abort, embed and step in random order, then let it end."""
    chance = random.Random(seed)
    watch = Watch()
    prefixes = [tuple(chance.randrange(VOCAB) for _ in range(n)) for n in (0, 6, 17)]
    open_names: list[str] = []
    for event in range(num_events):
        what = chance.random()
        name = f"r{event}"
        if what < 0.30:
            engine.handle(random_submit(chance, name, prefixes))
            open_names.append(name)
        elif what < 0.33:
            engine.handle(Embed(id=name, prompts=((1, 2, 3), tuple(range(1, 20)))))
            open_names.append(name)
        elif what < 0.50 and open_names:
            engine.handle(Abort(id=open_names.pop(chance.randrange(len(open_names)))))
        else:
            engine.step()
        watch.see(engine.take())
    watch.see(finished(engine))
    return watch


def kept() -> Counter[str]:
    """What is left of any request in this process."""
    gc.collect()
    kinds = (Sequence, OpenCompletion, SamplingState, Submit)
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in kinds)


@pytest.mark.sweep("paged")
@pytest.mark.parametrize("layout", ["paged", "contiguous", "dynamic"])
def test_no_block_is_lost_in_a_storm_of_submits_and_aborts(folder: Path, layout: str) -> None:
    engine = tiny_engine(
        folder,
        kv_layout=layout,
        kv_bytes=18 * 4 * BYTES_PER_TOKEN,
        max_sequences=8,
        max_tokens_per_step=16,
        max_length=48,
        max_waiting=10,
    )
    before = kept()  # of other tests in this process
    watch = stormed(engine, 800 if layout == "paged" else 500, seed=3)
    assert engine.stats().cache_usage == 0.0
    assert engine.scheduler.cache.num_free == engine.pool.num_blocks
    assert len(watch.ended) > 50
    assert any(isinstance(one, Refused) and one.status == 429 for one in watch.other.values())
    if layout == "paged":
        assert engine.stats().preemptions > 0
    assert kept() == before
    assert not engine._inputs._rows
    assert not engine._requests.rows_of
    assert not engine._requests.completions


@pytest.mark.slow
def test_no_block_is_lost_in_a_long_storm(folder: Path) -> None:
    engine = tiny_engine(folder, kv_bytes=18 * 4 * BYTES_PER_TOKEN, max_sequences=8, max_waiting=10)
    stormed(engine, 100_000, seed=4)
    assert engine.scheduler.cache.num_free == engine.pool.num_blocks


@pytest.mark.slow
def test_after_a_storm_nothing_of_its_requests_is_in_memory(folder: Path) -> None:
    """Ten thousand events in rounds: what the process holds does not grow with them."""
    engine = tiny_engine(folder, kv_bytes=18 * 4 * BYTES_PER_TOKEN, max_sequences=8, max_waiting=10)
    sizes = []
    for number in range(5):
        stormed(engine, 2000, seed=number)
        engine.scheduler.cache.check([])
        assert engine.scheduler.cache.num_free == engine.pool.num_blocks
        assert kept() == Counter()
        sizes.append(resident_bytes(os.getpid()))
    assert (sizes[-1] - sizes[1]) / 3 < 2**20, sizes
