"""Larger micro-batches in scripts that accumulate gradients: the same steps, fewer backwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.techniques.profiles import faulty, replaced

from ridgeline.cli.main import run
from ridgeline.techniques import options_of, technique

MICRO_BATCH = technique("micro-batch")
FAULTY = faulty()["micro-batch"]
HEAD = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
made = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(1600, 16, generator=made), torch.randn(1600, 1, generator=made))
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12)), nn.Linear(16, 1))
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
backwards, steps = 0, 0
while steps < STEPS:
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y) / ACCUMULATION
        loss.backward()
        backwards += 1
        if backwards % ACCUMULATION == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == STEPS:
                break
weight = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
print(backwards, len(x), f"{weight:.6f}")
"""
BY_ARGUMENTS = HEAD + """
parser = argparse.ArgumentParser()
parser.add_argument("--grad-accum-steps", type=int, default=8)
parser.add_argument("--batch_size", type=int, default=4)
args = parser.parse_args()
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
ACCUMULATION, STEPS = args.grad_accum_steps, 20
""" + LOOP  # fmt: skip
BY_CONSTANTS = HEAD + """
ACCUMULATION, BATCH, STEPS = 8, 4, 20


def batches():
    order = torch.randperm(1600)
    for first in range(0, 1600, BATCH):
        yield data[order[first : first + BATCH]]


class loader:
    def __iter__(self):
        return batches()


loader = loader()
""" + LOOP  # fmt: skip
BY_LOADER = HEAD + """
loader = DataLoader(data, batch_size=4, shuffle=True)
ACCUMULATION, STEPS = 8, 20
""" + LOOP  # fmt: skip
MEANT_OTHERWISE = BY_ARGUMENTS.replace("/ ACCUMULATION", "/ 8").replace(
    "STEPS = args.grad_accum_steps, 20", "STEPS = args.grad_accum_steps, 4000"
)
"""The loss is divided by a number of its own, so fewer micro-batches make a smaller gradient."""


@pytest.mark.usefixtures("warm")
@pytest.mark.sweep("arguments")
@pytest.mark.parametrize(
    ("script", "steps", "batch"),
    [
        (BY_ARGUMENTS, "arguments:grad_accum_steps", "arguments:batch_size"),
        (BY_CONSTANTS, "constants:ACCUMULATION", "constants:BATCH"),
        (BY_LOADER, "constants:ACCUMULATION", "loader:train.py:12"),
    ],
    ids=["arguments", "constants", "loader"],
)
def test_the_same_steps_are_made_of_fewer_and_larger_micro_batches(
    script: str,
    steps: str,
    batch: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)
    Path("nothing.toml").write_text("")
    Path("stack.toml").write_text(
        "[[technique]]\nname = 'micro-batch'\n[technique.options]\nfactor = 4\nmicro_batches = 8\n"
        f"samples = 4\nsteps = '{steps}'\nbatch = '{batch}'\n"
    )
    said = {}
    for stack in ("nothing.toml", "stack.toml"):
        assert run(["run", "--stack", stack, "--", "train.py"]) == 0
        said[stack] = capfd.readouterr().out.split()
    assert said["nothing.toml"][:2] == ["160", "4"]
    assert said["stack.toml"][:2] == ["40", "16"]
    assert float(said["stack.toml"][2]) == pytest.approx(float(said["nothing.toml"][2]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_the_profile_holds_the_sizes_that_the_script_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BY_ARGUMENTS)
    assert run(["doctor", "--json", "--steps", "8", "--", str(script), "--batch_size=5"]) == 0
    settings = json.loads(capsys.readouterr().out)["profile"]["settings"]
    assert settings["backwards_per_step"] == 8
    assert settings["stated_sizes"]["arguments:batch_size"] == 5
    assert settings["stated_sizes"]["arguments:grad_accum_steps"] == 8


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("script", "kept"),
    [(BY_ARGUMENTS.replace(", 20", ", 4000"), True), (MEANT_OTHERWISE, False)],
    ids=["right", "meant otherwise"],
)
def test_tune_keeps_what_trains_the_same_and_nothing_else(
    script: str, kept: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    words = ["tune", "--only", "micro-batch", "--budget", "90", "--out", str(tmp_path / "out")]
    assert run([*words, "--json", "--", str(path)]) == 0
    ledger = json.loads(capsys.readouterr().out)
    added = [row for row in ledger["rows"] if row["stage"] == "add"]
    assert [row for row in added if row["kept"]] == (added[:1] if kept else []), added
    if kept:
        assert added[0]["options"]["factor"] == 8
        assert added[0]["multiplier"] > 1.5
    else:
        assert [row for row in added if "part by" in row["verification"]], added


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backwards_per_step": 1.0}, "each step is one backward"),
        ({"backwards_per_step": 3.4}, "steps have different numbers of backwards"),
        ({"stated_sizes": {"arguments:batch_size": 8}}, "no number of the script says that 4"),
        ({"stated_sizes": {"arguments:accum_steps": 4}}, "no number of the script says how large"),
    ],
)
def test_a_script_that_does_not_say_both_numbers_is_left_alone(
    changes: dict[str, object], reason: str
) -> None:
    settings = replace(FAULTY.profile.settings, **changes)
    given = replaced(FAULTY, settings=settings, loaders=[])
    assert MICRO_BATCH.applies(given).reason.startswith(reason)


def test_batch_norm_is_not_given_other_batches() -> None:
    models = [replace(one, has_batch_norm=True) for one in FAULTY.profile.models]
    assert MICRO_BATCH.applies(replaced(FAULTY, models=models)).reason.startswith("batch norm")


def test_no_larger_micro_batch_than_memory_holds_is_tried() -> None:
    memory = replace(FAULTY.profile.memory, activations_bytes=1 << 30)
    tight = replaced(FAULTY, memory=memory, peak_memory_bytes=2 << 30)
    factors = [
        [
            one["factor"]
            for one in options_of(MICRO_BATCH, replaced(tight, device_memory_bytes=size))
        ]
        for size in (64 << 30, 4 << 30)
    ]
    assert factors == [[4, 2], [2]]
    assert not MICRO_BATCH.applies(replaced(tight, device_memory_bytes=3 << 30)).ok


def test_masks_of_dropout_make_it_a_statistical_matter() -> None:
    models = [replace(one, has_dropout=True) for one in FAULTY.profile.models]
    for options in options_of(MICRO_BATCH, replaced(FAULTY, models=models)):
        assert MICRO_BATCH.CARD.equivalence_of(options) == "statistical"
