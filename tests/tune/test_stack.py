"""stack.toml, and running a script with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.tune.stack import StackRow, TechniqueStack, read_stack, run_with_stack, write_stack

STACK = TechniqueStack(
    command=["train.py"],
    torch="2.13.0",
    technique=[
        StackRow(name="fused-optimizer", multiplier=1.2, ci=(1.1, 1.3), verification="rounding"),
        StackRow(name="loader-workers", options={"num_workers": 2}),
    ],
)


def test_a_stack_reads_back_as_it_was_written(tmp_path: Path) -> None:
    write_stack(tmp_path / "stack.toml", STACK)
    assert read_stack(tmp_path / "stack.toml") == STACK


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("technique = 3", "technique"),
        ("[[technique]]\nnam = 'x'", "nam"),
        ("[[technique]]\nname = 'warp-drive'", "known: .*fused-optimizer"),
        ("[[technique]]\nname = 'loader-workers'", "'num_workers' is missing"),
        ("this is not toml", "stack.toml"),
    ],
)
def test_a_bad_stack_names_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "stack.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_stack(path)


def test_a_missing_stack_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ridgeline tune"):
        read_stack(tmp_path / "stack.toml")


SCRIPT = """
import sys
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).mean().backward()
    optimizer.step()
open("fused.txt", "w").write(str(optimizer.param_groups[0]["fused"]))
print("done", *sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_run_applies_the_stack_and_ends_as_the_script_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    write_stack(Path("stack.toml"), TechniqueStack(technique=[StackRow(name="fused-optimizer")]))
    assert run(["run", "--stack", "stack.toml", "--", "train.py", "7", "--x"]) == 7
    assert Path("fused.txt").read_text() == "True"
    assert capfd.readouterr().out == "done 7 --x\n"


NVTX_SCRIPT = """
import sys, torch
notes = []
nvtx = torch.cuda.nvtx
if "--has" in sys.argv:
    nvtx.range_push = lambda name: notes.append(name)
    nvtx.range_pop = lambda: notes.append("pop")
    nvtx.range_start = lambda name: notes.append(name) or name
    nvtx.range_end = lambda name: notes.append(f"end of {name}")
data = torch.utils.data.DataLoader(torch.randn(8, 8), batch_size=4)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters())
for batch in data:
    model(batch).mean().backward()
    optimizer.step()
print(*notes, sep=",")
"""


@pytest.mark.slow
def test_phases_and_steps_of_a_script_become_nvtx_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(NVTX_SCRIPT)
    assert run(["run", "--nvtx", "--", "train.py", "--has"]) == 0
    notes = capfd.readouterr().out.strip().split(",")
    first = notes.index("forward")
    assert notes[first : first + 9] == [
        "forward", "pop", "backward", "pop", "optimizer", "pop", "end of step 0", "step 1", "data",
    ]  # fmt: skip
    assert notes[:2] == ["step 0", "data"]
    phases = [one for one in notes if one in {"forward", "backward", "optimizer", "data"}]
    assert notes.count("pop") == len(phases)
    assert run(["run", "--nvtx", "--", "train.py"]) == 0
    out, err = capfd.readouterr()
    assert out == "\n"
    assert err.count("is built without NVTX; no ranges are made") == 1


def test_a_run_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--", "train.py"]) == 2
    assert "--stack STACK.toml" in capsys.readouterr().err


def test_a_missing_script_is_one_line(tmp_path: Path) -> None:
    write_stack(tmp_path / "stack.toml", STACK)
    with pytest.raises(InputError, match=r"gone\.py: no such script"):
        run_with_stack(["gone.py"], tmp_path / "stack.toml")
