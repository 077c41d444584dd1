"""A mistyped key of any file is answered with the key that was meant."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ridgeline.cli.main import run
from ridgeline.records.mistyped import meant
from ridgeline.records.recipe import Recipe

START = '[model]\nconfig = "gpt2"\n[data]\npath = "text"\nseq = 64\n'
RATES = "[optimizer]\nlearning_rate = 1e-3\nfinal_learning_rate = 1e-4\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (START + RATES.replace("learning_rate =", "learning_rat =", 1), "`learning_rate`?"),
        (START + RATES + "[adaptr]\nrank = 8\n", "did you mean `adapter`?"),
        (START + RATES + "[adapter]\nrnk = 8\n", "did you mean `rank`?"),
        (START + '[[data.sources]]\npth = "x"\n' + RATES, "did you mean `path`?"),
        (START + RATES + "[adapter]\ncolour = 8\n", "known here: alpha, dropout, kind, rank,"),
    ],
)
def test_the_recipe_names_the_key_that_was_meant(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    assert run(["train", str(path)]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_a_word_that_is_none_of_a_list_names_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = "predict training --model Llama-3-8B --cluster 8xH100 --global-batch 8 --seq 2048"
    for option, said in (
        ("--precision fp4", "use bf16, fp16, fp32, fp8"),
        ("--zero 4", "0, 1, 2, 3"),
    ):
        assert run([*asked.split(), *option.split()]) == 2
        assert said in capsys.readouterr().err


def test_a_cluster_file_does_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.toml").write_text(START + RATES)
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("[node]\ndevices = 2\n")
    asked = ["launch", str(tmp_path / "recipe.toml"), "--on", "slurm", "--cluster", str(cluster)]
    assert run(asked) == 2
    assert "`node`; did you mean `nodes`?" in capsys.readouterr().err


def test_other_complaints_are_left_as_they_are() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"model": 1}, Recipe)
    assert meant(caught.value, Recipe) == ""
