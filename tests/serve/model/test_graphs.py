"""Decode steps in fixed shapes compute what the same steps compute as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ridgeline.kernels.paged_attention import (
    LayerCache,
    PackedTokens,
    paged_attention_reference,
    write_cache_reference,
)
from ridgeline.serve.model.batch import StepBatch
from ridgeline.serve.model.graphs import DecodeGraphs, default_sizes

BLOCK, BLOCKS, HEADS, DIM, VOCAB = 4, 32, 2, 8, 11
CPU = torch.device("cpu")
MAX_CONTEXT = 40


@dataclass(frozen=True, slots=True)
class Computed:
    logits: Tensor
    hidden: Tensor
    layers: int = 1


class OneLayer(nn.Module):
    """Embedding, attention over the cache, head: all that a batch can go wrong in."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HEADS * DIM)
        self.places = nn.Embedding(MAX_CONTEXT, HEADS * DIM)
        self.attention = nn.Linear(HEADS * DIM, 3 * HEADS * DIM)
        self.head = nn.Linear(HEADS * DIM, VOCAB)
        self.seen: list[int] = []

    def forward(self, batch: StepBatch, caches: list[LayerCache]) -> Computed:
        hidden = self.words(batch.tokens) + self.places(batch.positions)
        queries, keys, values = self.attention(hidden).unflatten(-1, (3, HEADS, DIM)).unbind(1)
        write_cache_reference(keys, values, caches[0], batch.packed)
        out = paged_attention_reference(queries, caches[0], batch.packed, scale=0.3)
        hidden = hidden + out.flatten(1)
        self.seen.append(len(batch.tokens))
        return Computed(self.head(hidden[batch.logit_rows]).float(), hidden)


def empty_caches() -> list[LayerCache]:
    shape = (BLOCKS, HEADS, BLOCK, DIM)
    return [LayerCache(torch.zeros(shape), torch.zeros(shape))]


def decode_batch(contexts: list[int], seed: int) -> StepBatch:
    draw = torch.Generator().manual_seed(seed)
    width = -(-max(contexts) // BLOCK)
    blocks = torch.randperm(BLOCKS, generator=draw)
    tables = torch.full((len(contexts), width), 2**30, dtype=torch.int32)
    used, slots = 0, []
    for row, context in enumerate(contexts):
        needed = -(-context // BLOCK)
        tables[row, :needed] = blocks[used : used + needed]
        used += needed
        slots.append(int(tables[row, (context - 1) // BLOCK]) * BLOCK + (context - 1) % BLOCK)
    count = len(contexts)
    return StepBatch(
        tokens=torch.randint(VOCAB, (count,), generator=draw),
        positions=torch.tensor(contexts) - 1,
        packed=PackedTokens(
            query_starts=torch.arange(count + 1, dtype=torch.int32),
            context_lengths=torch.tensor(contexts, dtype=torch.int32),
            block_tables=tables,
            slots=torch.tensor(slots),
            max_queries=1,
            max_context=max(contexts),
        ),
        logit_rows=torch.arange(count),
    )


@pytest.fixture
def model() -> OneLayer:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return OneLayer().requires_grad_(False)


STEPS = [[5, 1, 12], [6, 2, 13, 9, 1], [7], [8, 3], [1], [14, 10, 2, 39]]


def test_padded_steps_give_what_unpadded_steps_give(model: OneLayer) -> None:
    """Over several steps of changing size, caches included."""
    padded, plain = empty_caches(), empty_caches()
    graphs = DecodeGraphs(model, padded, (1, 4, 8), CPU, max_context=MAX_CONTEXT, capture=False)
    for seed, contexts in enumerate(STEPS):
        batch = decode_batch(contexts, seed)
        found, wanted = graphs.run(batch), model(batch, plain)
        assert found is not None
        torch.testing.assert_close(found.logits, wanted.logits)
        torch.testing.assert_close(found.hidden, wanted.hidden)
        torch.testing.assert_close(padded[0].keys, plain[0].keys)
        torch.testing.assert_close(padded[0].values, plain[0].values)


def test_only_the_given_sizes_are_run_and_all_of_them_at_the_start(model: OneLayer) -> None:
    graphs = DecodeGraphs(
        model, empty_caches(), (4, 1), CPU, max_context=MAX_CONTEXT, capture=False
    )
    assert model.seen == [4, 1]
    for contexts in ([3], [3, 4], [3, 4, 5, 6]):
        graphs.run(decode_batch(contexts, 0))
    assert model.seen == [4, 1, 1, 4, 4]


def test_a_compiled_forward_is_compiled_once_a_size(model: OneLayer) -> None:
    """Python's integers and the fixed tensors never change, so no guard fails."""
    compiled = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> object:
        compiled.append(graph)
        return graph.forward

    def forward(batch: StepBatch, _caches: list[LayerCache]) -> Computed:
        hidden = model.words(batch.tokens) + model.places(batch.positions)
        hidden = hidden + batch.packed.slots[:, None] + batch.packed.max_context
        return Computed(model.head(hidden), hidden)

    static = torch.compile(forward, backend=backend, dynamic=False, fullgraph=True)
    graphs = DecodeGraphs(
        static, empty_caches(), (1, 4), CPU, max_context=MAX_CONTEXT, capture=False
    )
    assert len(compiled) == 2
    for seed, contexts in enumerate(STEPS):
        graphs.run(decode_batch(contexts, seed))
    assert len(compiled) == 2
    torch.compiler.reset()


def test_what_is_not_a_plain_decode_step_is_left_to_the_caller(model: OneLayer) -> None:
    graphs = DecodeGraphs(
        model, empty_caches(), (1, 2), CPU, max_context=MAX_CONTEXT, capture=False
    )
    decode = decode_batch([5, 6], 0)
    assert graphs.run(decode) is not None
    others = {
        "too many": decode_batch([5, 6, 7], 0),
        "adapters": replace(decode, adapters=torch.zeros(2, dtype=torch.int64)),
        "logits of some": replace(decode, logit_rows=torch.tensor([1])),
        "prompts": replace(decode, packed=replace(decode.packed, max_queries=2)),
        "too long": replace(decode, packed=replace(decode.packed, max_context=MAX_CONTEXT + 1)),
    }
    for why, batch in others.items():
        assert graphs.run(batch) is None, why


def test_its_bytes_are_those_of_its_tensors(model: OneLayer) -> None:
    graphs = DecodeGraphs(
        model, empty_caches(), (1, 2), CPU, max_context=MAX_CONTEXT, capture=False
    )
    of_two_rows = 2 * (8 + 8 + 4 + 8 + 8) + 3 * 4
    assert graphs.bytes == of_two_rows + 2 * (MAX_CONTEXT // BLOCK) * 4


@pytest.mark.parametrize("largest", [1, 2, 3, 16, 17, 256])
def test_default_sizes_reach_the_largest_in_steps_of_at_most_a_half(largest: int) -> None:
    sizes = default_sizes(largest)
    assert sizes[-1] == largest
    assert all(a < b <= max(2 * a, 1) for a, b in pairwise(sizes))
    assert all(2 * b <= 3 * a for a, b in pairwise(sizes) if a >= 16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kv_dtype", ["model", "int8", "fp8"])
def test_graphs_change_no_greedy_token(tmp_path: Path, kv_dtype: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from ridgeline.serve.config import EngineConfig
    from ridgeline.serve.engine.engine import ServingEngine
    from ridgeline.serve.messages import Delta, Sampling, Submit

    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 512}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape, **heads)).save_pretrained(tmp_path)
    answers = []
    for graphs in (True, False):
        config = EngineConfig(
            model=str(tmp_path),
            device="cuda",
            dtype="fp32",
            kv_dtype=kv_dtype,
            kv_bytes=2**26,
            max_sequences=16,
            graphs=graphs,
        )
        engine = ServingEngine(config)
        tokens: dict[str, list[int]] = {}
        for index in range(5):
            prompt = tuple((7 * index + 3 * at) % 512 for at in range(4 + 9 * index))
            greedy = Sampling(max_tokens=20 + 3 * index, temperature=0.0, ignore_eos=True)
            engine.handle(Submit(id=str(index), prompt=prompt, sampling=greedy))
        while engine.has_work:
            engine.step()
            for message in engine.take():
                assert isinstance(message, Delta)
                tokens.setdefault(message.id, []).extend(message.tokens)
        engine.close()
        answers.append(tokens)
    assert answers[0] == answers[1]
    assert [len(answers[0][str(index)]) for index in range(5)] == [20, 23, 26, 29, 32]
