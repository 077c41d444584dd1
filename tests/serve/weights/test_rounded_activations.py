"""`--weights w8a8`: activations are rounded where CPU and model allow it, and one is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.engine.workloads import LIBRARY, answers, finished, greedy, tiny_engine

from ridgeline.errors import InputError
from ridgeline.kernels.cpu.compiler import CompilerSettings, settings
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import LinearKernel
from ridgeline.serve.packed import entries
from ridgeline.serve.weights import choice, rounding
from ridgeline.serve.weights.linears import Int8Linear, W8A8Linear
from ridgeline.serve.weights.rounding import as_multiplied
from ridgeline.serve.weights.torch_linears import TorchW8A8Linear

PROMPT = list(range(40, 60))
pytestmark = pytest.mark.skipif(not settings().multiplies_bytes, reason="no products of bytes")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(entries, "LEAST_BYTES", 0)


def engine_of(folder: Path, weights: str) -> ServingEngine:
    return tiny_engine(folder, weights=weights, block_size=16)


def tokens(engine: ServingEngine) -> Any:
    engine.handle(greedy("a", PROMPT, 12))
    return answers(finished(engine))


def kinds(engine: ServingEngine) -> set[type]:
    return {type(one) for one in engine.model.linears().values()}


def with_an_outlier(folder: Path) -> Path:
    """The library model, the same function, with a channel a thousand times as large as others."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(LIBRARY, dtype=torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for norm, readers in (
                (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
            ):
                norm.weight[3] *= 1000.0
                for reader in readers:
                    reader.weight[:, 3] /= 1000.0
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(LIBRARY).save_pretrained(folder)
    return folder


def test_layers_round_but_for_the_head_and_the_ledger_says_what_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = engine_of(LIBRARY, "w8a8")
    assert isinstance(first.model.output_layer, Int8Linear)
    assert kinds(first) == {W8A8Linear, Int8Linear}
    assert first.model.layer_path == "all in one operator"
    again = engine_of(LIBRARY, "w8a8")
    for engine in (first, again):
        [note] = [row.note for row in engine.ready.ledger.rows if "activations too" in row.what]
        told = float(note.partition("logits by ")[2].split()[0])
        assert 0.0 < told < rounding.LARGEST_DIFFERENCE
    assert tokens(again) == tokens(first)
    assert capsys.readouterr().err == ""


def test_layers_on_torchs_operator_round_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = LinearKernel(weights="w8a8", kernel="torch", why="")
    ours = LinearKernel(weights="int8", kernel="ridgeline", why="")
    monkeypatch.setattr(
        choice, "_kernel_for", lambda form, _: torchs if form.kind == "w8a8" else ours
    )
    engine = engine_of(LIBRARY, "w8a8")
    assert kinds(engine) == {TorchW8A8Linear, Int8Linear}
    assert engine.model.layer_path.startswith("one by one: ")
    assert any("rounding moves logits" in row.note for row in engine.ready.ledger.rows)


@pytest.mark.slow
def test_a_model_that_suffers_keeps_its_weights_alone_and_every_start_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_an_outlier(tmp_path / "outlier")
    expected = tokens(engine_of(folder, "int8"))
    for _ in range(2):
        capsys.readouterr()
        engine = engine_of(folder, "w8a8")
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("ridgeline: --weights w8a8: rounded activations move this model's")
        assert line.endswith("weights are held as with int8")
        assert kinds(engine) == {Int8Linear}
        assert tokens(engine) == expected


def test_a_cpu_without_products_of_bytes_holds_weights_as_int8(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = CompilerSettings(compiler=None, target="avx2")
    monkeypatch.setattr(rounding, "settings", lambda: old)
    engine = engine_of(LIBRARY, "w8a8")
    [line] = capsys.readouterr().err.splitlines()
    assert "no products of bytes (VNNI, AMX, dotprod)" in line
    assert kinds(engine) == {Int8Linear}
    assert tokens(engine) == tokens(engine_of(LIBRARY, "int8"))


def test_a_gpu_is_refused_by_name() -> None:
    config = EngineConfig(model=str(LIBRARY), weights="w8a8")
    with pytest.raises(InputError, match="--weights w8a8: rounds activations on CPUs alone"):
        as_multiplied(config, torch.device("cuda"))
