"""A recipe with `run.kernels = "fused"`: the same course, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train.small_run import write_small_run
from transformers import AutoModelForCausalLM, LlamaConfig

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.records.recipe_file import read_recipe
from ridgeline.train.build import use_fused_kernels

FUSED = '[run]\nsteps = 2\nkernels = "fused"\n'


@pytest.mark.slow
def test_without_a_gpu_it_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = write_small_run(tmp_path, FUSED)
    code = run(["train", str(place / "recipe.toml"), "--out", str(place / "out")])
    assert code == 2
    assert 'run.kernels "fused" needs a GPU' in capfd.readouterr().err.replace("\n", " ")


def test_it_is_refused_beside_compile(tmp_path: Path) -> None:
    place = write_small_run(tmp_path, FUSED)
    path = place / "recipe.toml"
    path.write_text(path.read_text().replace("compiled = false", "compiled = true"))
    with pytest.raises(InputError, match="compiled = false"):
        read_recipe(path)


def test_a_model_goes_through_the_kernels_with_its_loss_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = read_recipe(write_small_run(tmp_path, FUSED) / "recipe.toml")
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=2048,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    )
    tokens = torch.arange(12).view(2, 6)
    before = model(tokens).logits
    monkeypatch.setattr("ridgeline.train.build.takes", lambda _: True)
    found = use_fused_kernels([model], recipe)
    assert dict(found) == {"norms": 3, "gated MLPs": 1, "rotary embeddings": 1}
    after = model(tokens).logits
    assert type(after) is torch.Tensor
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="finds no norm"):
        use_fused_kernels([torch.nn.Linear(2, 2)], recipe)
