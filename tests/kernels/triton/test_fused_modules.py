"""A model of transformers whose norms, gates and rotary embeddings are computed in Triton."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from ridgeline.kernels.fused_modules import fuse_modules


def test_a_model_of_transformers_computes_the_same_in_triton(device):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    model = AutoModelForCausalLM.from_config(config).to(device)
    tokens = torch.arange(10, device=device).view(2, 5)

    def run():
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return [loss.detach(), *(one.grad.clone() for one in model.parameters())]

    before = run()
    found, undo = fuse_modules(model)
    assert dict(found) == {"norms": 3, "gated MLPs": 1, "rotary embeddings": 1}
    for one, other in zip(run(), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    undo()
