"""One device's memory among several models, before an engine is started; and the file of models."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.serve.http.servers import LIBRARY

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.hardware.machine import Machine, this_machine
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.memory_split import split_memory

MEMORY = 1 << 30


@pytest.fixture(scope="module")
def machine() -> Machine:
    return msgspec.structs.replace(
        this_machine(gpus=[]), memory_bytes=MEMORY, memory_limit_bytes=MEMORY
    )


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Models whose files weigh 100 and 300 MiB, on a disk that stores no zeroes."""
    for name, size in (("small", 100), ("large", 300)):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "model.safetensors").open("wb") as file:
            file.truncate(size << 20)
    return [str(tmp_path / "small"), str(tmp_path / "large")]


def test_what_weights_leave_is_split_evenly_and_shares_are_kept(
    folders: list[str], machine: Machine
) -> None:
    configs = [EngineConfig(model=one, memory_share=0.5) for one in folders]
    small, large = split_memory(configs, [None, None], ["small", "large"], machine)
    assert small.memory_share * 1024 == pytest.approx(100 + (512 - 400) / 2)
    assert large.memory_share * 1024 == pytest.approx(300 + (512 - 400) / 2)
    small, large = split_memory(configs, [0.25, None], ["small", "large"], machine)
    assert (small.memory_share, large.memory_share) == pytest.approx((0.125, 0.375))


def test_models_that_do_not_fit_together_are_refused_before_one_is_started(
    folders: list[str], machine: Machine
) -> None:
    configs = [EngineConfig(model=one, memory_share=0.3) for one in folders]
    with pytest.raises(InputError, match="want small 100 MiB and large 300 MiB, and there are 307"):
        split_memory(configs, [None, None], ["small", "large"], machine)
    rounded = [msgspec.structs.replace(one, weights="int8") for one in configs]
    assert len(split_memory(rounded, [None, None], ["small", "large"], machine)) == 2
    with pytest.raises(InputError, match="share of large: weights and kv_bytes want large 300"):
        split_memory(configs, [None, 0.1], ["small", "large"], machine)


ONE = f'[[models]]\nmodel = "{LIBRARY}"\nname = "one"\n'
STAGE = ONE + '[[pipelines]]\nname = "p"\n[[pipelines.stages]]\nmodel = "one"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = []\n", "models: there is none"),
        (ONE + ONE, "two are called one"),
        (ONE + "share = 1.5\n", "share 1.5: give a part of 1"),
        (ONE + 'share = "much"\n', "share much: give a part of 1"),
        (ONE + "memory_share = 0.5\n", "memory_share is of all models together"),
        (ONE + "speed = 3\n", "model one: speed is no option of an engine"),
        (ONE + 'dtype = "fp3"\n', "model one: --dtype: Invalid enum value fp3"),
        (ONE + 'kv_bytes = "4096TB"\n', "memory: weights and kv_bytes want one"),
        ("[[models]]\nname = 3\n", "models, table 1: wants model = the folder"),
        (ONE + '[[pipelines]]\nname = "p"\nstages = []\n', "pipeline p: has no stages"),
        (
            ONE + '[[pipelines]]\nname = "p"\n[[pipelines.stages]]\nmodel = "two"\n',
            "pipeline p: no model 'two'; there are one",
        ),
        (
            STAGE + 'prompt = "{outpt}, {name}"\n',
            "{outpt} is no place to fill; did you mean {output}",
        ),
        (STAGE + "max_tokens = 0\n", "max_tokens is 0; it must be 1 or more"),
        (STAGE + "temperature = 3\n", "temperature is 3; give 0 to 2"),
    ],
)
def test_a_file_of_models_that_cannot_be_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.toml").write_text(text)
    assert run(["serve", str(tmp_path / "models.toml"), "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert said in err


def test_options_of_one_model_are_refused_beside_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.toml").write_text(ONE)
    assert run(["serve", str(tmp_path / "models.toml"), "--replicas", "2"]) == 2
    assert "--replicas: is of one model" in capsys.readouterr().err
