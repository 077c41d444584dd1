"""Another program's configuration in place of a recipe is called that, and what to do is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cli.main import run

FILES = {
    "DeepSpeed": '{"train_batch_size": 8, "fp16": {"enabled": true}, "zero_optimization": {}}',
    "axolotl": "base_model: some/model\n# a comment\ndatasets:\n  - path: d\nsequence_len: 2048\n",
    "LLaMA-Factory": "### model\nmodel_name_or_path: some/model\n\nstage: sft\n",
    "torchtitan": '[job]\ndump_folder = "./outputs"\n[training]\nseq_len = 8192\n',
    "torchtune": "model:\n  _component_: m\ntokenizer:\n  _component_: t\ncheckpointer:\n  a: b\n",
    "accelerate": "compute_environment: LOCAL_MACHINE\nnum_processes: 8\n",
    "transformers' Trainer": '{"output_dir": "out", "per_device_train_batch_size": 4}',
    "NeMo": "name: gpt\ntrainer:\n  devices: 8\nexp_manager:\n  x: y\nmodel:\n  mcore: true\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_configuration_of_another_program_is_called_that(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.conf"
    path.write_text(FILES[name])
    assert run(["train", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ridgeline: {path}: is a configuration of {name}; ")
    assert said.count("\n") == 1
    assert "plan training --write" in said


def test_other_files_are_pointed_to_their_command_and_recipes_keep_their_own_complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given"
    for text, words in (
        ("apiVersion: batch/v1\nkind: Job\n", "launch --check"),
        ('{"model_type": "llama", "hidden_size": 64}', "under model.config"),
        ('[model]\nconfig = "gpt2"\n[trainig]\n', "unknown field `trainig`"),
        ("some: yaml\n", "not TOML"),
    ):
        path.write_text(text)
        assert run(["checklist", "training", "--recipe", str(path)]) == 2
        assert words in capsys.readouterr().err
