"""Codebooks lie in a file as aqlm's layers have them, and come back through every reader here."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoints.tiny_llama import logits, saved

from ridgeline.cli.main import run
from ridgeline.compress.evaluate.loaded import load
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.compress.saved.whole_model import whole_model
from ridgeline.errors import InputError
from ridgeline.records.scheme_names import parse
from ridgeline.serve.weights import load_compressed


@pytest.fixture(scope="module")
def saved_books(tmp_path_factory):
    """A model in codebooks of two bits, and the same with its weights as numbers."""
    folder = tmp_path_factory.mktemp("aqlm")
    saved(folder / "given")
    tokens = torch.randint(0, 96, (4, 16), generator=torch.Generator().manual_seed(0))
    job = CompressionJob(
        model=folder / "given", schemes=(parse("aqlm2"),), work=folder / "work", tokens=tokens
    )
    staged = stage(job)
    emulated = staged.emulated()
    staged.save(folder / "small")
    return folder / "small", emulated


def test_every_reader_computes_what_was_judged(saved_books):
    path, emulated = saved_books
    expected = logits(emulated)
    for model in (
        load("MODEL", path, "cpu").model,
        whole_model(path, torch.float32).model,
        load_compressed(str(path), torch.float32),
    ):
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)


def test_the_tensors_are_those_of_aqlm(saved_books):
    path, emulated = saved_books
    about = json.loads((path / "config.json").read_text())["quantization_config"]
    tensors = load_file(path / "model.safetensors")
    layer = "model.layers.0.mlp.down_proj"
    codes, books, scales = (tensors[f"{layer}.{part}"] for part in ("codes", "codebooks", "scales"))
    weight = emulated.get_submodule(layer).weight
    outputs, inputs = weight.shape
    assert codes.dtype == torch.int8
    assert codes.shape == (outputs, inputs // about["in_group_size"], about["num_codebooks"])
    assert books.shape == (about["num_codebooks"], 2 ** about["nbits_per_codebook"], 1, 8)
    assert scales.shape == (outputs, 1, 1, 1)
    assert {"lm_head", "lm_head.weight"} <= set(about["linear_weights_not_to_quantize"])
    # aqlm's own reading: codes wrap at 128, sums over books, times the scale of the output.
    places = codes.long() % 2 ** about["nbits_per_codebook"]
    vectors = sum(books[number][places[..., number]] for number in range(about["num_codebooks"]))
    read = (vectors * scales).swapaxes(1, 2).reshape(outputs, inputs)
    torch.testing.assert_close(read, weight.data, rtol=1e-5, atol=1e-6)


def test_books_of_other_sizes_are_refused_by_name(saved_books, tmp_path):
    path, _ = saved_books
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] |= {"num_codebooks": 1, "nbits_per_codebook": 16}
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(config))
    (other / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match="1 codebooks of 16 bits"):
        load_compressed(str(other), torch.float32)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["aqlm2-gptq"], "gptq"),
        (["aqlm2-kv8"], "kv8"),
    ],
)
def test_what_does_not_go_with_codebooks_is_one_line(saved_books, tmp_path, capsys, words, line):
    given = saved_books[0].with_name("given")
    assert run(["compress", str(given), "--scheme", *words, "--out", str(tmp_path / "out")]) == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert line in told


def test_codebooks_after_pruning_are_refused_before_any_work(saved_books, tmp_path):
    given = saved_books[0].with_name("given")
    schemes = (parse("2:4-magnitude"), parse("aqlm2"))
    job = CompressionJob(
        model=given, schemes=schemes, work=tmp_path / "work", tokens=torch.ones(1, 8).long()
    )
    with pytest.raises(InputError, match="keep no weight at zero"):
        stage(job)
    assert not (tmp_path / "work").exists()
