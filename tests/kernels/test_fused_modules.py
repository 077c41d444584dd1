"""Models of transformers through fused kernels: the same outputs and gradients, no more."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM as Models
from transformers import (
    CohereConfig,
    Gemma2Config,
    GemmaConfig,
    GlmConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    NemotronConfig,
    Olmo2Config,
    OlmoConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from ridgeline.kernels.fused_modules import fuse_modules, left_alone

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
NORMS_GATES_TURNS = {
    LlamaConfig: (5, 2, 1),
    MistralConfig: (5, 2, 1),
    Qwen2Config: (5, 2, 1),
    Qwen3Config: (9, 2, 1),
    GemmaConfig: (5, 2, 1),
    Gemma2Config: (9, 2, 1),
    Phi3Config: (5, 2, 1),  # gate and up in one matrix
    GlmConfig: (5, 2, 1),  # the same, and a part of each head turned, its neighbours paired
    CohereConfig: (3, 2, 1),  # neighbours paired, layers beside each other
    GPTNeoXConfig: (5, 0, 1),  # a part of each head turned
    OlmoConfig: (5, 2, 1),  # norms without weights
    Olmo2Config: (9, 2, 1),
    NemotronConfig: (5, 0, 1),  # layer norms with 1 + weight
}
"""Families of models → how many norms, gated MLPs and rotary functions they have."""
_QUICK = (LlamaConfig, Gemma2Config, GlmConfig, NemotronConfig)


def small(config: type, **changes: object) -> nn.Module:
    torch.manual_seed(0)
    return Models.from_config(config(**{**SMALL, **changes}))


def run(model: nn.Module) -> list[torch.Tensor]:
    """Loss, logits and every gradient."""
    tokens = torch.arange(22).view(2, 11) % 61
    model.zero_grad()
    out = model(input_ids=tokens, labels=tokens)
    out.loss.backward()
    return [out.loss.detach(), out.logits.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(one, marks=() if one in _QUICK else pytest.mark.slow)
        for one in NORMS_GATES_TURNS
    ],
    ids=lambda one: one.__name__,
)
def test_a_model_computes_the_same_and_is_put_back(config: type) -> None:
    model = small(config).eval()  # some have dropout by default
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, std=0.3)
    before = run(model)
    found, undo = fuse_modules(model)
    kinds = ("norms", "gated MLPs", "rotary embeddings")
    assert tuple(found[kind] for kind in kinds) == NORMS_GATES_TURNS[config]
    names = {type(node).__name__ for node in _graph(model)}
    assert any("ridgeline_residual_norm" in name for name in names)
    assert any("ridgeline_gated_product" in name for name in names) == bool(found["gated MLPs"])
    assert any("ridgeline_rotary" in name for name in names)
    for one, other in zip(run(model), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    undo()
    assert all(torch.equal(one, other) for one, other in zip(run(model), before, strict=True))


def _graph(model: nn.Module) -> set[object]:
    """Every step of the backward."""
    tokens = torch.arange(6).view(1, 6)
    pending, seen = [model(input_ids=tokens, labels=tokens).loss.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [one for one, _ in node.next_functions]
    return seen


def test_layer_norms_of_torch_are_taken() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    model = Models.from_config(config).eval()
    before = run(model)
    found, undo = fuse_modules(model)
    assert dict(found) == {"norms": 5}
    for one, other in zip(run(model), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    undo()


def test_bfloat16_models_are_taken_and_stay_within_their_roundings() -> None:
    model = small(LlamaConfig).bfloat16()
    before = run(model)
    found, undo = fuse_modules(model)
    assert found["norms"] == 5
    assert found["gated MLPs"] == 2
    torch.testing.assert_close(run(model)[0], before[0], rtol=2e-2, atol=2e-2)
    undo()


@pytest.mark.parametrize(
    ("activation", "kind"), [("gelu", 2), ("gelu_pytorch_tanh", 2), ("silu", 2), ("relu", 0)]
)
def test_activations_are_told_apart_by_what_they_compute(activation: str, kind: int) -> None:
    model = small(LlamaConfig, hidden_act=activation).bfloat16()
    found, undo = fuse_modules(model)
    assert found["gated MLPs"] == kind
    undo()
    model = model.float()
    before = run(model)
    _, undo = fuse_modules(model)
    torch.testing.assert_close(run(model)[1], before[1], rtol=1e-4, atol=1e-5)
    undo()


class RootNorm(nn.Module):
    """As a script writes it: its own names, and weights that say nothing yet."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.gain, self.epsilon = nn.Parameter(torch.zeros(12)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * (1 + self.gain)


class FunctionalLayerNorm(nn.Module):
    """A layer norm whose eps stands in its code, perhaps without a bias."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12))
        self.bias = nn.Parameter(torch.zeros(12)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-6)


class FeedForward(nn.Module):
    """A gated MLP under other names, whose last matrix begins at zero."""

    def __init__(self, *, dropout: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(12, 20, bias=False), nn.Linear(12, 20)
        self.w2 = nn.Linear(20, 12)
        self.dropout, self.scale = nn.Dropout(dropout), scale
        nn.init.zeros_(self.w2.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.w3(x)) * self.w1(x)
        return self.dropout(self.w2(hidden)) * self.scale


@pytest.mark.parametrize(
    "part",
    [
        RootNorm(1e-8),
        RootNorm(3e-3),
        FunctionalLayerNorm(bias=True),
        FunctionalLayerNorm(bias=False),
        FeedForward(),
        FeedForward().bfloat16(),
    ],
    ids=["1e-8", "3e-3", "bias", "no bias", "gate", "gate in bfloat16"],
)
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_what_a_script_writes_itself_is_taken_for_what_it_computes(
    part: nn.Module, scale: float
) -> None:
    part = copy.deepcopy(part)
    model = nn.Sequential(nn.Identity(), part)
    kept = copy.deepcopy(part.state_dict())
    found, undo = fuse_modules(model)
    assert sum(found.values()) == 1
    assert not left_alone(model)
    assert all(torch.equal(one, part.state_dict()[name]) for name, one in kept.items())
    for parameter in part.parameters():
        nn.init.normal_(parameter, mean=0.5, std=0.3)
    dtype = next(part.parameters()).dtype
    x = (scale * torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1))).to(dtype)
    tolerances = {} if dtype == torch.float32 else {"rtol": 4e-2, "atol": 4e-2}
    torch.testing.assert_close(part(x), part.forward(x), **tolerances)
    undo()


def test_parts_that_are_replaced_later_are_the_ones_that_run() -> None:
    part = FeedForward()
    fuse_modules(nn.Sequential(part))
    nn.init.normal_(part.w2.weight)
    part.w3 = nn.Linear(12, 20)
    x = torch.randn(3, 12)
    torch.testing.assert_close(part(x), part.forward(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"scale": 0.5}], ids=str)
def test_a_gate_with_more_in_it_is_left_alone_and_named(
    options: dict[str, float], training: bool
) -> None:
    class ScaledMLP(FeedForward):
        pass

    model = nn.Sequential(ScaledMLP(**options)).train(training)
    state = torch.get_rng_state()
    found, _ = fuse_modules(model)
    assert not found
    assert dict(left_alone(model)) == {"ScaledMLP (computes something else)": 1}
    assert torch.equal(torch.get_rng_state(), state)
    assert all(one.training is training for one in model.modules())


def test_norms_over_batches_are_left_alone_with_their_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(12), nn.InstanceNorm1d(12), nn.GroupNorm(3, 12))
    assert not fuse_modules(model)[0]
    assert model[0].num_batches_tracked == 0


def test_a_norm_over_channels_is_taken_where_they_come_last_and_nowhere_else() -> None:
    norm = nn.GroupNorm(1, 12)
    found, _ = fuse_modules(nn.Sequential(norm))
    assert found["norms"] == 1
    for shape in ((4, 12), (4, 12, 12), (4, 12, 3, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(norm(x), norm.forward(x))


class HalfRMSNorm(nn.Module):
    """A norm by name that computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * self.weight


def test_what_computes_something_else_is_left_alone() -> None:
    model = nn.Sequential(HalfRMSNorm(), nn.BatchNorm1d(8), nn.Linear(8, 8))
    found, _ = fuse_modules(model)
    assert not found


def test_hooks_mixed_dtypes_and_the_scripts_random_numbers_are_respected() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    state = torch.get_rng_state()
    fuse_modules(model)
    assert torch.equal(torch.get_rng_state(), state)
    seen = []
    handle = model[1].register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(3, 8)
    model(x)
    assert seen == [1]
    handle.remove()
    with torch.autocast("cpu", torch.bfloat16):
        wanted = nn.functional.layer_norm(model[0](x), (8,), model[1].weight, model[1].bias)
        assert model(x).dtype == wanted.dtype
        assert torch.equal(model(x), wanted)


def test_copies_and_pickles_carry_nothing_along() -> None:
    model = small(LlamaConfig)
    expected = run(model)
    _, undo = fuse_modules(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert all(part._compiled_call_impl is None for part in other.modules())
    undo()
    assert torch.equal(run(model)[0], expected[0])
