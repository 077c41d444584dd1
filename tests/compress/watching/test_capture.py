from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.layers import matrices_of
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.flow import Flow
from ridgeline.compress.watching import capture, lanes
from ridgeline.compress.watching.capture import SAMPLE_ROWS, Gatherer, gather
from ridgeline.compress.watching.sharing import groups_of

_ALL = frozenset({"hessian", "mean_abs", "max_abs", "square_norm", "rows"})


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 700), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_sums_do_not_depend_on_how_inputs_are_cut(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(size, 5, generator=generator) for size in sizes]
    gatherer = Gatherer(_ALL)
    for part in parts:
        gatherer.add(part)
    seen, x = gatherer.seen(), torch.cat(parts).double()
    assert seen.num_tokens == len(x)
    if not len(x):
        return
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(seen.hessian.double(), 2 / len(x) * x.T @ x, **close)
    torch.testing.assert_close(seen.mean_abs.double(), x.abs().mean(0), **close)
    torch.testing.assert_close(seen.max_abs.double(), x.abs().amax(0))
    torch.testing.assert_close(seen.square_norm.double(), x.square().sum(0), **close)
    assert min(len(x), SAMPLE_ROWS) <= len(seen.rows) < 2 * SAMPLE_ROWS
    stride = round(len(x) / len(seen.rows))
    assert torch.equal(seen.rows, x.float()[::stride]) or len(seen.rows) != len(x[::stride])


def test_sums_are_the_same_to_the_bit_in_however_many_parts_chunks_come(
    tiny_model, tokens, monkeypatch
):
    skeleton = ModelSkeleton(CheckpointFiles(tiny_model("llama")))
    flow = Flow(skeleton, tokens)
    block = skeleton.load_block(0)
    matrices = matrices_of(skeleton, 0)
    runs = [lambda row=row: flow.through(block, 0, row) for row in flow.hidden.split(1)]
    flow._arguments[1] = flow._arguments[len(next(flow.chunks()))]
    matmuls = [group.matmuls[0] for group in groups_of(matrices, runs[0])]
    wanted = {matmul: (number, _ALL) for number, matmul in enumerate(matmuls)}
    found = []
    monkeypatch.setattr(capture, "num_lanes", lambda: 2)
    monkeypatch.setattr(lanes, "num_lanes", lambda: 2)
    for parts in (1, 2):  # halves of six would be three each, and not begin with the first lane
        monkeypatch.setattr(capture, "PARTS", parts)
        found.append(gather(runs, matrices, wanted))
    whole, cut = found
    assert len(runs) == 6
    for number in whole:
        assert torch.equal(whole[number].hessian, cut[number].hessian)
        assert torch.equal(whole[number].mean_abs, cut[number].mean_abs)
        assert torch.equal(whole[number].rows, cut[number].rows)


def test_the_inputs_of_every_matrix_are_what_flows_into_its_module(tiny_model, tokens):
    skeleton = ModelSkeleton(CheckpointFiles(tiny_model("llama")))
    flow = Flow(skeleton, tokens)
    block = skeleton.load_block(0)
    matrices = matrices_of(skeleton, 0)
    runs = [lambda chunk=chunk: flow.through(block, 0, chunk) for chunk in flow.chunks()]
    matmuls = [
        (matmul, number)
        for group in groups_of(matrices, runs[0])
        for matmul, number in zip(group.matmuls, group.statistics, strict=True)
    ]
    assert len({number for _, number in matmuls}) == 4
    seen = gather(runs, matrices, {matmul: (number, _ALL) for matmul, number in matmuls})
    for matmul, number in matmuls:
        inputs = []
        module = skeleton.model.get_submodule(matmul[0].name)
        handle = module.register_forward_pre_hook(
            lambda _m, args, into=inputs: into.append(args[0])
        )
        for run in runs:
            run()
        handle.remove()
        x = torch.cat([one.flatten(0, 1) for one in inputs])
        assert seen[number].num_tokens == len(x)
        torch.testing.assert_close(seen[number].max_abs, x.abs().amax(0))


def test_experts_see_only_the_tokens_that_were_sent_to_them(tiny_model, tokens):
    skeleton = ModelSkeleton(CheckpointFiles(tiny_model("mixtral")))
    flow = Flow(skeleton, tokens)
    block = skeleton.load_block(0)
    matrices = matrices_of(skeleton, 0)
    runs = [lambda chunk=chunk: flow.through(block, 0, chunk) for chunk in flow.chunks()]
    experts = {
        matmul: (number, frozenset({"max_abs"}))
        for group in groups_of(matrices, runs[0])
        for matmul, number in zip(group.matmuls, group.statistics, strict=True)
        if matmul[0].name.endswith("w1")
    }
    seen = gather(runs, matrices, experts)
    assert len(seen) == 4
    assert sum(one.num_tokens for one in seen.values()) == 2 * tokens.numel()
