"""Kernels take the place of modules that they equal, and of no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    Olmo2Config,
    Qwen3Config,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from ridgeline.serve.model.fused import FusedMlp, FusedNorm, fuse

SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def model_of(config: Any, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += torch.randn_like(parameter) * 0.1
    return model


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("config", "replaced"),
    [(LlamaConfig, 7), (Qwen3Config, 11), (GemmaConfig, 7), (Gemma2Config, 11), (Olmo2Config, 11)],
)
def test_a_model_computes_the_same_after(config: Any, replaced: int, dtype: torch.dtype) -> None:
    model = model_of(config(**SHAPE), dtype)
    names = set(model.state_dict())
    tokens = torch.randint(0, 128, (2, 17))
    with torch.inference_mode():
        before = model(tokens).logits
        assert fuse(model) == replaced
        after = model(tokens).logits
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(after, before, rtol=4 * step, atol=8 * step)
    assert set(model.state_dict()) == names
    assert fuse(model) == 0


def test_a_norm_of_states_wider_than_its_weight_computes_the_same_after() -> None:
    model = nn.Sequential(Qwen3RMSNorm(64).bfloat16())
    x = torch.randn(2, 5, 64)
    with torch.inference_mode():
        before = model(x)
        assert fuse(model) == 1
        torch.testing.assert_close(model(x), before)


def test_a_model_without_such_modules_stays_as_it_is() -> None:
    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128)
    model = model_of(config, torch.float32)
    assert fuse(model) == 0


class LlamaRMSNorm(nn.Module):
    """Has the name and the looks, and is another function."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32))
        self.variance_epsilon = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x - x.mean(-1, keepdim=True))


class OddMlp(nn.Module):
    """A gated MLP that clamps."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 48), nn.Linear(32, 48)
        self.down_proj = nn.Linear(48, 32)

    def forward(self, x: Tensor) -> Tensor:
        gate = nn.functional.silu(self.gate_proj(x).clamp(max=0.5))
        return self.down_proj(gate * self.up_proj(x))


def test_names_do_not_count_only_what_is_computed() -> None:
    model = nn.Sequential(LlamaRMSNorm(), OddMlp(), nn.RMSNorm(32, eps=1e-6))
    assert fuse(model) == 1
    assert isinstance(model[0], LlamaRMSNorm)
    assert isinstance(model[1], OddMlp)
    assert isinstance(model[2], FusedNorm)


def test_a_module_that_someone_listens_to_stays() -> None:
    model = nn.Sequential(nn.RMSNorm(32, eps=1e-6))
    model[0].register_forward_hook(lambda *_: None)
    assert fuse(model) == 0


def test_the_linears_of_an_mlp_can_be_swapped_after() -> None:
    model = model_of(LlamaConfig(**SHAPE), torch.float32)
    fuse(model)
    mlp = model.model.layers[0].mlp
    assert isinstance(mlp, FusedMlp)
    mlp.gate_proj = nn.Linear(64, 160)
    assert "model.layers.0.mlp.gate_proj.bias" in model.state_dict()
