from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.flow import Flow, _Lowered
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.errors import InputError
from ridgeline.kernels.causal_attention import causal_attention
from ridgeline.records.scheme_names import parse


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kind", ["llama", "tied", "gpt2", "opt", "mixtral", "qwen2moe", "gemma3"])
def test_block_by_block_the_activations_are_those_of_the_whole_model(
    tiny_model, tokens, kind, monkeypatch
):
    monkeypatch.setattr("ridgeline.compress.flow.CHUNK_TOKENS", 160)
    path = tiny_model(kind)
    skeleton = ModelSkeleton(CheckpointFiles(path))
    whole = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa").eval()
    expected = []
    for block in whole.get_submodule(skeleton.prefix):
        block.register_forward_hook(lambda _m, _a, output: expected.append(output))
    with torch.no_grad():
        whole(tokens)
    flow = Flow(skeleton, tokens)
    for number in range(len(skeleton.blocks)):
        flow.advance(skeleton.load_block(number), number)
        skeleton.unload_block(number)
        torch.testing.assert_close(flow.hidden, expected[number], rtol=1e-4, atol=1e-4)


def test_a_bfloat16_block_is_handed_rotary_embeddings_as_it_will_be_when_used():
    one, mask = torch.rand(3), torch.tensor([0.0, torch.finfo(torch.float32).min])
    places = torch.arange(3)
    first, second = _Lowered().of([((one, places), {"mask": mask}), ((one,), {})])
    assert first[0][0] is second[0][0]  # blocks that share one still do
    assert torch.equal(first[0][0], one.bfloat16())
    assert first[0][1] is places
    assert torch.isfinite(first[1]["mask"]).all()


def test_only_one_block_and_the_rows_of_the_embedding_that_are_used_are_read(tiny_model, tokens):
    path = tiny_model("llama")
    checkpoint = CheckpointFiles(path)
    skeleton = ModelSkeleton(checkpoint)
    assert checkpoint.read_bytes == 0
    few = tokens[:1, :5]
    Flow(skeleton, few)
    assert checkpoint.read_bytes <= 4 * 32 * (5 + 1)  # rows, and the last norm
    before = checkpoint.read_bytes
    skeleton.load_block(1)
    parameters = sum(parameter.numel() for parameter in skeleton.blocks[1].parameters())
    assert checkpoint.read_bytes - before == 4 * parameters
    assert all(parameter.is_meta for parameter in skeleton.blocks[0].parameters())
    skeleton.unload_block(1)
    assert all(parameter.is_meta for parameter in skeleton.model.parameters())


def test_what_a_model_raises_on_the_way_to_its_blocks_is_said(tiny_model, tokens):
    skeleton = ModelSkeleton(CheckpointFiles(tiny_model("llama")))

    def fails(*_: object, **__: object) -> None:
        raise ValueError("no angles of that kind")

    skeleton.model.model.rotary_emb.forward = fails
    with pytest.raises(InputError, match="block by block") as refused:
        Flow(skeleton, tokens)
    assert "0 of 2 blocks were called, then ValueError: no angles" in str(refused.value)


multiplies_bfloat16 = pytest.mark.skipif(
    not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()),
    reason="this processor does not multiply bfloat16",
)


@multiplies_bfloat16
@pytest.mark.sweep("w4a16-gptq-g16")
@pytest.mark.parametrize("name", ["w4a16-gptq-g16", "w4a16-awq-g16"])
def test_a_bfloat16_model_seen_in_bfloat16_is_rounded_as_well_as_one_seen_in_float32(
    tiny_model, tokens, tmp_path, monkeypatch, name
):
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    errors = []
    for native in (True, False):
        if not native:
            monkeypatch.setattr("ridgeline.compress.flow.computes_in_bfloat16", lambda _: False)
        work = tmp_path / f"work-{native}"
        job = CompressionJob(
            model=tmp_path / "model", schemes=(parse(name),), work=work, tokens=tokens
        )
        staged = stage(job)
        assert ("bfloat16" in staged.calibrated_in) == native
        errors.append(torch.tensor([layer.error for layer in staged.layers]))
    assert not torch.equal(*errors)  # they were computed otherwise
    torch.testing.assert_close(errors[0], errors[1], rtol=0.08, atol=0.0)
    assert float(errors[0].sum()) <= 1.02 * float(errors[1].sum())


@multiplies_bfloat16
@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kind", ["llama", "tied", "gpt2", "opt", "mixtral", "qwen2moe", "gemma3"])
def test_a_bfloat16_block_held_as_it_is_stored_sees_what_one_held_in_float32_does(
    tiny_model, tokens, tmp_path, monkeypatch, kind
):
    monkeypatch.setattr("ridgeline.compress.watching.byte_products.are_faster", lambda: False)
    model = AutoModelForCausalLM.from_pretrained(tiny_model(kind), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    seen = []
    for held in (True, False):
        skeleton = ModelSkeleton(CheckpointFiles(tmp_path / "model"))
        flow = Flow(skeleton, tokens)
        assert flow.in_bfloat16
        for number in range(len(skeleton.blocks)):
            targets = skeleton.block_targets(number) if held else []
            matrices = {name for name in targets if skeleton.value(name).ndim > 1}
            flow.advance(skeleton.load_block(number, matrices), number)
            assert {skeleton.value(name).dtype for name in matrices} <= {torch.bfloat16}
            skeleton.unload_block(number)
        seen.append(flow.hidden)
    assert torch.equal(*seen)


@multiplies_bfloat16
def test_ranges_of_a_cache_are_seen_where_a_kernel_of_ours_computes_attention(
    tiny_model, tokens, tmp_path, monkeypatch
):
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    called = []
    monkeypatch.setattr(
        "ridgeline.compress.watching.attention.causal_attention",
        lambda *given: called.append(given) or causal_attention(*given),
    )
    job = CompressionJob(
        model=tmp_path / "model", schemes=(parse("kvfp8"),), work=tmp_path / "work", tokens=tokens
    )
    stage(job).save(tmp_path / "out")
    assert called
    stored = CheckpointFiles(tmp_path / "out")
    scale = stored.read("model.layers.1.self_attn.k_scale")
    largest = max(keys.abs().amax() for _, keys, _, _ in called[len(called) // 2 :])
    assert float(scale) == pytest.approx(float(largest) / 448.0, rel=0.01)
