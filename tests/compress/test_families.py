"""What is compressed of each kind of family is read back as it was measured, and served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.engine.workloads import answers, finished, greedy, plain_greedy, tiny_engine
from tests.serve.model.tiny_families import VOCAB, tiny
from torch import Tensor

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.evaluate.loaded import load
from ridgeline.compress.flow import Flow
from ridgeline.compress.pruning.report import sparsity
from ridgeline.compress.run import CompressionJob, Staged, stage
from ridgeline.errors import InputError
from ridgeline.records.scheme import Scheme
from ridgeline.records.scheme_names import parse
from ridgeline.serve.weights.compressed import load_compressed

READ_BY_BOTH = (
    "afmoe",  # its router is a linear layer
    "bamba",  # blocks give their activations in a tuple of two
    "deepseek_v3",
    "falcon",  # transformers asks its layers for weights
    "flint",
    "gemma4_text",  # each block is handed embeddings of its own, heads differ in width
    "gpt_neox",
    "hy_v3",  # its shared experts are renamed when they are read
    "jamba",  # blocks of two classes
    "lfm3",
    "mamba",  # a layer whose weight is used by other ways than a layer's
    "nemotron_h",
    "qwen3_moe",
)


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(3, VOCAB, (24, 32), generator=torch.Generator().manual_seed(0))


def staged(family: str, scheme: str, tokens: Tensor, folder: Path) -> Staged:
    tiny(family).save_pretrained(folder / "model")
    job = CompressionJob(
        model=folder / "model", schemes=(parse(scheme),), tokens=tokens, work=folder / "work"
    )
    return stage(job)


@pytest.mark.sweep("mamba", "gemma4_text")
@pytest.mark.parametrize("family", READ_BY_BOTH)
def test_transformers_and_the_server_compute_what_was_measured(
    family: str, tokens: Tensor, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    done = staged(family, "w4a16-gptq-g4", tokens, tmp_path)
    measured: Any = done.emulated()
    done.save(tmp_path / "out")
    engine = tiny_engine(tmp_path / "out", max_length=64)
    prompt = tokens[0, :9].tolist()
    engine.handle(greedy("asked", prompt, 4))
    assert answers(finished(engine))["asked", 0] == plain_greedy(measured, prompt, 4)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(read(tokens[:2]).logits, measured(tokens[:2]).logits)


def test_what_blocks_are_handed_of_each_sequence_flows_into_them(
    tokens: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr("ridgeline.compress.flow.CHUNK_TOKENS", 160)
    tiny("gemma4_text").save_pretrained(tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected: list[Tensor] = []
    for block in whole.model.layers:
        block.register_forward_hook(lambda _m, _a, output: expected.append(output))
    with torch.no_grad():
        whole(tokens)
    skeleton = ModelSkeleton(CheckpointFiles(tmp_path))
    flow = Flow(skeleton, tokens)
    for number in range(len(skeleton.blocks)):
        flow.advance(skeleton.load_block(number), number)
        torch.testing.assert_close(flow.hidden, expected[number], rtol=1e-4, atol=1e-4)


@pytest.mark.sweep("gpt_oss")
@pytest.mark.parametrize("family", ["gpt_oss", "granitemoe", "jetmoe", "llama4_text"])
def test_experts_stored_in_one_tensor_are_rounded_one_by_one(
    family: str, tokens: Tensor, tmp_path: Path
) -> None:
    done = staged(family, "w4a16-gptq-g4", tokens, tmp_path)
    measured: Any = done.emulated()
    (told,) = done.unread()
    done.save(tmp_path / "out")
    experts = [layer for layer in done.layers if "experts" in layer.name or "mlp." in layer.name]
    assert all(layer.error < 0.02 for layer in experts if not layer.notices)
    assert "one by one; `ridgeline serve` and `evaluate` do" in told
    with torch.no_grad():
        expected = measured(tokens[:2]).logits
        for read in (
            load("MODEL", tmp_path / "out", "cpu").model,
            load_compressed(str(tmp_path / "out"), torch.float32),
        ):
            torch.testing.assert_close(read(tokens[:2]).logits, expected)


@pytest.mark.sweep("gpt_oss")
@pytest.mark.parametrize("family", ["gpt_oss", "granitemoe"])
def test_experts_that_are_pruned_stay_in_their_tensor(
    family: str, tokens: Tensor, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    done = staged(family, "wanda-2:4", tokens, tmp_path)
    measured: Any = done.emulated()
    done.save(tmp_path / "out")
    found = sparsity(tmp_path / "out")
    assert found.counts.matrix_zeros == pytest.approx(found.counts.matrix_weights / 2, rel=0.02)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(read(tokens[:2]).logits, measured(tokens[:2]).logits)


@pytest.mark.sweep("in 8 bits")
@pytest.mark.parametrize("left", [(), (parse("w8a16-channel"),)], ids=["as it is", "in 8 bits"])
def test_experts_of_several_formats_are_said_and_read_here(
    left: tuple[Scheme, ...], tokens: Tensor, tmp_path: Path
) -> None:
    """transformers reads all of them by one format, which is others' numbers, or ends."""
    tiny("qwen3_moe").save_pretrained(tmp_path / "model")
    job = CompressionJob(
        model=tmp_path / "model",
        schemes=(parse("w4a16-g4"),),
        work=tmp_path / "work",
        of_layer={
            f"model.layers.3.mlp.experts.{number}.{leaf}_proj": left
            for number in range(4)
            for leaf in ("gate", "up", "down")
        },
    )
    done = stage(job)
    measured: Any = done.emulated()
    (told,) = done.unread()
    done.save(tmp_path / "out")
    assert "reads all experts in one format" in told
    with torch.no_grad():
        read = load("MODEL", tmp_path / "out", "cpu").model(tokens[:2]).logits
        torch.testing.assert_close(read, measured(tokens[:2]).logits)


@pytest.mark.sweep("bamba")
@pytest.mark.parametrize("family", ["gemma4_text", "bamba", "gpt2", "opt", "falcon_mamba"])
def test_a_head_is_fitted_to_what_the_compressed_blocks_give(
    family: str, tokens: Tensor, tmp_path: Path
) -> None:
    """By a scheme for it alone; its error is that of the logits, which float32 tells."""
    model = tiny(family, tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "model")
    (name,) = [name for name, one in model.named_modules() if one is model.get_output_embeddings()]
    job = CompressionJob(
        model=tmp_path / "model",
        schemes=(),
        of_layer={name: (parse("w4a16-gptq-g4"),)},
        tokens=tokens,
        work=tmp_path / "work",
    )
    done = stage(job)
    (layer,) = [layer for layer in done.layers if layer.scheme]
    with torch.no_grad():
        as_given, as_made = model(tokens).logits, done.emulated()(tokens).logits
    lost = (as_made - as_given).square().sum() / as_given.square().sum()
    assert layer.name == name
    assert layer.error == pytest.approx(float(lost), rel=0.05)


def test_routers_stay_as_they_are(tokens: Tensor, tmp_path: Path) -> None:
    done = staged("afmoe", "w8a16-channel", tokens, tmp_path)
    assert any("experts" in layer.name for layer in done.layers)
    assert not any("router" in layer.name for layer in done.layers)


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("glm_moe_dsa", "some read what others give beside their activations"),
        ("gemma3n_text", r"hand on \[4, "),
        ("t5", "have an encoder"),
    ],
)
def test_blocks_that_do_not_follow_one_another_are_refused_in_one_line(
    family: str, why: str, tokens: Tensor, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=why) as refused:
        staged(family, "w4a16-gptq-g4", tokens, tmp_path)
    assert "\n" not in str(refused.value)


def test_what_is_left_out_is_named_as_files_and_as_modules_name_it(
    tokens: Tensor, tmp_path: Path
) -> None:
    tiny("hy_v3").save_pretrained(tmp_path / "model")
    left = {f"model.layers.{number}.mlp.shared_mlp.up_proj": () for number in (1, 2, 3)}
    job = CompressionJob(
        model=tmp_path / "model",
        schemes=(parse("w8a16-channel"),),
        tokens=tokens,
        work=tmp_path / "work",
        of_layer=left,
    )
    stage(job).save(tmp_path / "out")
    about = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert set(left) < set(about["ignore"])
    assert "model.layers.1.mlp.shared_experts.up_proj" in about["ignore"]
    assert not any("gate_proj" in name for name in about["ignore"])


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize(
    ("family", "scheme", "read"),
    [
        ("qwen3_moe", "w4a16-g8", True),
        ("qwen3_moe", "fp8", True),
        ("qwen3_moe", "w8a8", False),
        ("mixtral", "w4a16-g8-asym", False),
        ("olmo_hybrid", "w8a16-channel", False),
    ],
)
def test_what_transformers_cannot_read_is_said(
    family: str, scheme: str, read: bool, tokens: Tensor, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    done = staged(family, scheme, tokens, tmp_path)
    told = done.unread()
    done.save(tmp_path / "out")
    try:
        AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    except RuntimeError:
        assert not read
        assert "does not" in told[0]
    else:
        assert read
        assert not told
