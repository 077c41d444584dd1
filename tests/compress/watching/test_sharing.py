from __future__ import annotations

import pytest
import torch

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.flow import Flow
from ridgeline.compress.watching.sharing import groups_of, stages_of, with_absorbers


def _opened(path, tokens):
    skeleton = ModelSkeleton(CheckpointFiles(path))
    flow = Flow(skeleton, tokens)
    block = skeleton.load_block(0)
    matrices = matrices_of(skeleton, 0)
    chunk = next(flow.chunks()).clone()
    return block, matrices, lambda: flow.through(block, 0, chunk)


def _absorbers(path, tokens):
    """Last part of the first matrix's name → which kind of absorber."""
    block, matrices, run = _opened(path, tokens)
    found = {}
    for group in with_absorbers(block, matrices, run, 8):
        name = next(one for one in group.matrices if not one.kept).name
        absorber = group.absorber
        kind = None
        if absorber is not None:
            kind = "norm" if absorber.rows is None else tuple(absorber.rows.shape)
        found[name.split(".", 3)[-1]] = kind
    return found


def test_a_llama_takes_scales_over_in_norms_values_and_up_projections(tiny_model, tokens):
    assert _absorbers(tiny_model("llama"), tokens) == {
        "self_attn.q_proj": "norm",
        "self_attn.o_proj": (16, 32),  # two heads of values for four of queries
        "mlp.gate_proj": "norm",
        "mlp.down_proj": (64, 32),
    }


def test_a_gelu_lets_no_scale_through_and_a_relu_does(tiny_model, tokens):
    gpt2 = _absorbers(tiny_model("gpt2"), tokens)
    assert gpt2["mlp.c_proj"] is None
    assert gpt2["attn.c_proj"] == (32, 32)  # the last third of the stacked q, k, v
    assert _absorbers(tiny_model("opt"), tokens)["0.fc2"] == (64, 32)


def test_every_expert_and_the_router_share_the_norm(tiny_model, tokens):
    found = _absorbers(tiny_model("mixtral"), tokens)
    assert found["block_sparse_moe.experts.0.w1"] == "norm"
    assert found["block_sparse_moe.experts.3.w2"] == (64, 32)


def test_where_an_expert_was_not_reached_its_norm_stays(tiny_model, tokens):
    block, matrices, run = _opened(tiny_model("mixtral"), tokens[:1, :1])
    groups = with_absorbers(block, matrices, run, 8)
    reached = next(one for one in groups if any(m.name.endswith("w1") for m in one.matrices))
    assert len([one for one in reached.matrices if one.name.endswith("w1")]) == 4
    alone = [one for one in groups if one.absorber is None]
    assert all(matrix.name.endswith("w2") for one in alone for matrix in one.matrices)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral", "gemma3"])
def test_moving_scales_leaves_the_block_as_it_was(tiny_model, tokens, kind):
    block, matrices, run = _opened(tiny_model(kind), tokens)
    weights = {name: value.clone() for name, value in block.state_dict().items()}
    before = run()
    groups = with_absorbers(block, matrices, run, 8)
    for name, value in block.state_dict().items():
        assert torch.equal(value, weights[name])
    generator = torch.Generator().manual_seed(3)
    for group in groups:
        if group.absorber is None:
            continue
        of_channel = torch.rand(int(group.absorber.channels.max()) + 1, generator=generator) + 0.5
        scale = of_channel[group.absorber.channels]
        group.absorber.divide(scale)
        for matrix in group.matrices:
            matrix.weight.mul_(scale)
    torch.testing.assert_close(run(), before, rtol=1e-4, atol=1e-4)


def test_experts_of_one_parameter_are_one_stage(tiny_model, tokens):
    _, matrices, run = _opened(tiny_model("mixtral"), tokens)
    stages = stages_of(groups_of(matrices, run))
    names = [
        [m.name.rsplit(".", 1)[-1] for group in stage for m in group.matrices] for stage in stages
    ]
    assert [set(found) for found in names] == [
        {"q_proj", "k_proj", "v_proj"},
        {"o_proj"},
        {"gate", "w1", "w3"},
        {"w2"},
    ]
