"""The engine runs what `ridgeline compress` writes, with the greedy tokens of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.engine.workloads import (
    VOCAB,
    answers,
    finished,
    greedy,
    plain_greedy,
    tiny_engine,
    write_tiny_llama,
)

from ridgeline.compress.run import CompressionJob, stage
from ridgeline.errors import InputError
from ridgeline.records.scheme_names import parse
from ridgeline.serve.cluster.kv_transfer import KvTransfers, fetch, pack, unpack
from ridgeline.serve.engine.engine import ServingEngine

PARTS = (*(f"self_attn.{part}" for part in "qkvo"), "mlp.gate", "mlp.up", "mlp.down")
SYMMETRIC = ("w8a16-channel", "w4a16-g16", "", "w8a16-g16", "fp8a16", "w3a16-g32", "w4a16-channel")
ANYTHING = ("w8a8", "w4a16-g16", "w8a8-static", "", "w8a16-g16", "fp8a16", "w8a16-channel")
MIXED = {"weights-kv8": SYMMETRIC, "anything": ANYTHING}
NAMES = (*MIXED, "w8a8-static-kvfp8")
PROMPTS = [[5, 9, 2, 40, 41, 42, 43, 44, 45], [7] * 21, list(range(30, 64))]
COUNT = 10


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory that a scheme's name, or one of `MIXED`, leaves of the tiny model."""
    folder = tmp_path_factory.mktemp("compressed")
    given = write_tiny_llama(folder / "given")
    tokens = torch.randint(VOCAB, (8, 64), generator=torch.Generator().manual_seed(4))

    @cache
    def one(name: str) -> Path:
        kinds = MIXED.get(name, (name,))
        cached = ("kv8",) if name.endswith("-kv8") else ()
        of_layer = {
            f"model.layers.{block}.{part}_proj": tuple(
                parse(each) for each in (kinds[(place + 3 * block) % len(kinds)], *cached) if each
            )
            for block in range(2)
            for place, part in enumerate(PARTS)
        }
        job = CompressionJob(
            model=given,
            schemes=tuple(parse(each) for each in (kinds[0], *cached)),
            work=folder / f"{name}.work",
            tokens=tokens,
            of_layer=of_layer,
        )
        stage(job).save(folder / name)
        return folder / name

    return one


@pytest.fixture(scope="module")
def expected(made: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """What transformers, rounding as compressed-tensors does, answers to `PROMPTS`."""
    from transformers import AutoModelForCausalLM

    @cache
    def tokens(name: str) -> list[list[int]]:
        model = AutoModelForCausalLM.from_pretrained(made(name), dtype=torch.float32).eval()
        return [plain_greedy(model, prompt, COUNT) for prompt in PROMPTS]

    return tokens


def served(engine: ServingEngine) -> list[list[int]]:
    for place, prompt in enumerate(PROMPTS):
        engine.handle(greedy(str(place), prompt, COUNT))
    found = answers(finished(engine))
    return [found[str(place), 0] for place in range(len(PROMPTS))]


@pytest.mark.sweep("weights-kv8")
@pytest.mark.parametrize("name", NAMES)
def test_the_engine_gives_the_tokens_of_transformers(
    name: str, made: Callable[[str], Path], expected: Callable[[str], list[list[int]]]
) -> None:
    engine = tiny_engine(made(name))
    assert served(engine) == expected(name)
    in_one = engine.model.direct is not None
    assert in_one == (name != "anything"), "who computes the layers"


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    "way",
    [
        {"prefix_cache": False, "max_tokens_per_step": 7},
        {"kv_layout": "contiguous", "max_length": 64},
        {"kv_layout": "dynamic"},
        {"kv_bytes": 12 * 4 * 2 * 2 * 2 * 8},
        {"block_size": 32, "max_sequences": 1},
    ],
    ids=["chunks", "contiguous", "dynamic", "preempting", "one at a time"],
)
def test_a_cache_of_8_bits_gives_the_same_tokens_whatever_the_blocks(
    way: dict[str, Any],
    made: Callable[[str], Path],
    expected: Callable[[str], list[list[int]]],
) -> None:
    engine = tiny_engine(made("weights-kv8"), **way)
    assert served(engine) == expected("weights-kv8")
    assert served(engine) == expected("weights-kv8"), (
        "and once more, with what the prefix cache kept"
    )
    assert bool(engine.stats().preemptions) == ("kv_bytes" in way)


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize(
    ("name", "stored"), [("weights-kv8", "int8"), ("w8a8-static-kvfp8", "float8_e4m3fn")]
)
def test_a_cache_of_8_bits_takes_a_quarter_of_float32(
    name: str, stored: str, made: Callable[[str], Path]
) -> None:
    ledger = tiny_engine(made(name), kv_bytes=2**16).ready.ledger
    wide = tiny_engine(made("anything"), kv_bytes=2**16).ready.ledger
    assert 4 * ledger.bytes_per_token == wide.bytes_per_token
    assert ledger.num_blocks == 4 * wide.num_blocks
    (row,) = (row for row in ledger.rows if row.what == "kv blocks")
    assert stored in row.note
    by_token = tiny_engine(made(name), kv_bytes=2**16, kv_dtype="int8").ready.ledger
    assert by_token.bytes_per_token == ledger.bytes_per_token + 2 * 2 * 2 * 4


def test_keys_go_to_another_engine_only_where_their_scales_mean_the_same(
    made: Callable[[str], Path], expected: Callable[[str], list[list[int]]], tmp_path: Path
) -> None:
    mine, other = tiny_engine(made("weights-kv8")), tiny_engine(made("weights-kv8"))
    mine.handle(greedy("a", PROMPTS[2], COUNT))
    for _ in range(3):
        mine.step()
    (sequence,) = mine.scheduler.running
    transfers = KvTransfers()
    kv = mine.pool.read(sequence.blocks, sequence.tokens)
    sent = unpack(*fetch(transfers.offer("a", pack(kv), "memory")))
    transfers.close()
    blocks = list(range(len(sequence.blocks), 2 * len(sequence.blocks)))
    other.pool.write(blocks, sent)
    again = other.pool.read(blocks, sequence.tokens)
    for ours, theirs in zip((*kv.keys, *kv.values), (*again.keys, *again.values), strict=True):
        assert torch.equal(ours, theirs)
    for stranger in (
        tiny_engine(copied(made("weights-kv8"), tmp_path / "out", {}, k_scale=torch.ones(1))),
        tiny_engine(made("weights-kv8"), kv_dtype="int8"),
        tiny_engine(made("w8a8-static-kvfp8")),
    ):
        with pytest.raises(InputError, match="do not fit this one's cache"):
            stranger.pool.write(blocks, sent)
        with pytest.raises(InputError, match="do not fit this one's cache"):
            other.pool.write(blocks, stranger.pool.read(sequence.blocks, sequence.tokens))
    assert answers(finished(mine))["a", 0] == expected("weights-kv8")[2]


def copied(directory: Path, to: Path, scheme: dict[str, Any], **tensors: Any) -> Path:
    """The checkpoint with another `kv_cache_scheme`, and tensors by the end of their name."""
    to.mkdir()
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] |= scheme
    (to / "config.json").write_text(json.dumps(config))
    stored = load_file(directory / "model.safetensors")
    for end, tensor in tensors.items():
        name = f"model.layers.1.self_attn.{end}"
        if tensor is None:
            del stored[name]
        else:
            stored[name] = tensor
    save_file(stored, to / "model.safetensors")
    return to


def test_scales_of_each_head_are_used(made: Callable[[str], Path], tmp_path: Path) -> None:
    directory = copied(
        made("weights-kv8"), tmp_path / "out", {}, k_scale=torch.tensor([[[0.5]], [[0.25]]])
    )
    (_, layer) = tiny_engine(directory).pool.layers
    assert layer.key_scales is not None
    assert layer.key_scales.tolist() == [0.5, 0.25]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("scheme", "tensors", "message"),
    [
        ({"num_bits": 4}, {}, "4 bits of type int"),
        ({"dynamic": True}, {}, "dynamic=True"),
        ({"symmetric": False}, {}, "symmetric=False"),
        ({}, {"k_scale": None}, "layer 1 has no k_scale"),
        ({}, {"v_scale": None}, "v_scale is missing"),
        ({}, {"v_scale": torch.ones(3)}, r"v_scale of \[3\]"),
        ({}, {"v_scale": torch.zeros(1)}, "above 0"),
        ({}, {"v_scale": torch.tensor([float("nan")])}, "above 0"),
    ],
    ids=["bits", "dynamic", "affine", "no keys", "no values", "heads", "zero", "nan"],
)
def test_scales_of_a_cache_that_cannot_be_used_are_refused_in_one_line(
    scheme: dict[str, Any],
    tensors: dict[str, Any],
    message: str,
    made: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    directory = copied(made("weights-kv8"), tmp_path / "out", scheme, **tensors)
    with pytest.raises(InputError, match=message) as refusal:
        tiny_engine(directory)
    assert "\n" not in str(refusal.value)
