"""Whose kernel multiplies is measured, said, kept, and obeyed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ridgeline.kernels import linear_int8
from ridgeline.records.overwriting import one_command
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import LinearKernel
from ridgeline.serve.weights import choice, kernels_of, shrink
from ridgeline.serve.weights.choice import ROWS, Format, kernel_for
from ridgeline.serve.weights.linears import DenseLinear, Int4Linear, Int8Linear
from ridgeline.serve.weights.torch_linears import TorchInt4Linear, TorchInt8Linear

INT8 = Format("int8", torch.bfloat16)
IDS = torch.arange(24).view(2, 12) * 7 % 97


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine that has not measured yet, and whose measurements take no time."""
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(choice, "SIDE", 128)
    monkeypatch.setattr(choice, "_share_of_a_core", lambda *_began: 1.0)
    choice._kernel_for.cache_clear()
    yield
    choice._kernel_for.cache_clear()


def times(monkeypatch: pytest.MonkeyPatch, ours: float, theirs: float) -> None:
    """Layers take so long from here on."""
    monkeypatch.setattr(
        choice,
        "_seconds",
        lambda layer, _x: theirs if "Torch" in type(layer).__name__ else ours,
    )


def llama() -> Any:
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 112}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=False))
    return model.bfloat16().eval().requires_grad_(requires_grad=False)


@pytest.mark.parametrize(("theirs", "expected"), [(0.5, "torch"), (0.95, "ridgeline")])
def test_torch_is_taken_where_it_is_clearly_faster(
    theirs: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times(monkeypatch, 1.0, theirs)
    found = kernel_for(INT8)
    assert (found.kernel, found.rows) == (expected, ROWS)
    assert found.torch_over_ridgeline == (theirs,) * len(ROWS)


def test_a_choice_is_kept_for_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 1.0, 0.5)
    first = kernel_for(INT8)
    choice._kernel_for.cache_clear()
    times(monkeypatch, 1.0, 2.0)
    assert kernel_for(INT8) == first
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert kernel_for(INT8).kernel == "ridgeline"
    finally:
        torch.set_num_threads(threads)


def test_a_choice_on_a_busy_machine_is_kept_until_weights_are_packed_on_a_quiet_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times(monkeypatch, 1.0, 0.5)
    monkeypatch.setattr(choice, "_share_of_a_core", lambda *_began: 0.5)
    found = kernel_for(INT8)
    assert (found.kernel, found.torch_over_ridgeline) == ("torch", (0.5,) * len(ROWS))
    assert found.provisional
    assert "other programs had the cores" in found.why
    assert len(list(tmp_path.rglob("linear-*.json"))) == 1
    times(monkeypatch, 1.0, 2.0)
    choice._kernel_for.cache_clear()  # another process
    assert kernel_for(INT8) == found
    assert choice.settle(INT8) == found  # as busy as before
    monkeypatch.setattr(choice, "_share_of_a_core", lambda *_began: 0.9)
    settled = choice.settle(INT8)
    assert (settled.kernel, settled.why, settled.provisional) == ("ridgeline", "measured", False)
    choice._kernel_for.cache_clear()
    times(monkeypatch, 1.0, 0.5)
    assert kernel_for(INT8) == choice.settle(INT8) == settled


def test_a_spoilt_file_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 1.0, 0.5)
    first = kernel_for(INT8)
    (kept,) = (tmp_path / "kernels").glob("linear-*.json")
    kept.write_bytes(b"\0" * 10)
    choice._kernel_for.cache_clear()
    assert kernel_for(INT8) == first


def test_real_layers_are_measured() -> None:
    found = kernel_for(INT8)
    assert all(0.001 < ratio < 1000 for ratio in found.torch_over_ridgeline)
    assert found.in_words().startswith("int8 with bfloat16 activations: ")


@pytest.mark.parametrize("weights", ["model", "int8", "int4"])
def test_a_model_on_torch_computes_what_it_computes_on_ours(
    weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(ours: float) -> Any:
        times(monkeypatch, ours, 1.0)
        if weights == "model":  # nn.Linear has no "Torch" in its name
            monkeypatch.setattr(
                choice, "_seconds", lambda layer, _x: 1.0 if type(layer) is nn.Linear else ours
            )
        model = llama()
        shrink(model, EngineConfig(model="tiny", weights=weights, group_size=32))
        return model

    mine = built(0.1)
    choice._kernel_for.cache_clear()
    for kept in (choice.cache_folder() / "kernels").glob("*.json"):
        kept.unlink()
    theirs = built(10.0)
    own = {"model": DenseLinear, "int8": Int8Linear, "int4": Int4Linear}[weights]
    other = {"model": nn.Linear, "int8": TorchInt8Linear, "int4": TorchInt4Linear}[weights]
    kinds = [{type(one) for one in model.modules()} for model in (mine, theirs)]
    assert own in kinds[0] - kinds[1]
    assert other in kinds[1] - kinds[0]
    assert [one.kernel for one in kernels_of(mine)] == ["ridgeline"]
    assert "torch" in {one.kernel for one in kernels_of(theirs)}
    a, b = (model(IDS).logits.float() for model in (mine, theirs))
    assert float((a - b).abs().max()) < 0.03 * float(a.abs().max())


def test_without_kernels_everything_runs_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice.build, "unavailable", lambda: "no C++ compiler is here")
    assert kernel_for(INT8) == LinearKernel(
        weights=INT8.name, kernel="torch", why="no C++ compiler is here"
    )
    model = llama()
    shrink(model, EngineConfig(model="tiny", weights="int8"))
    assert any(isinstance(one, TorchInt8Linear) for one in model.modules())
    levels, scales = linear_int8.quantise_fp8(torch.randn(8, 16))
    assert "dequantised" in choice.only_ridgeline("fp8").why
    assert TorchInt8Linear(levels, scales)(torch.randn(1, 16)).shape == (1, 8)


def test_what_a_command_has_read_of_the_cache_it_may_write_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times(monkeypatch, ours=1.0, theirs=2.0)
    monkeypatch.setattr(choice, "_share_of_a_core", lambda *_began: 0.1)
    assert kernel_for(INT8).provisional
    choice._kernel_for.cache_clear()  # as in a process that starts later
    monkeypatch.setattr(choice, "_share_of_a_core", lambda *_began: 1.0)
    with one_command():
        assert not choice.settle(INT8).provisional
