"""Every command that takes a path: a bad one is one line that names it, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cli.main import COMMANDS, run

LIBRARY = str(Path(__file__).parents[2] / "examples" / "models" / "library")
TRAINING = "--cluster 8xH100 --seq 128 --global-batch 8"
TABLE = (
    "source,model,layers,hidden,heads,vocab,seq,gpu,n_gpus,global_batch,metric_name,metric_value",
    "measured,llama-2-7b,32,4096,32,32000,4096,H100,8,64,step_time_s,9",
)
FLEET = "simulate serving --model llama-2-7b --gpu H100"
WITH_A_PATH = (
    "doctor -- PATH",
    "doctor --trace PATH",
    "tune -- PATH",
    "run --stack PATH -- script.py",
    "compare PATH PATH",
    "trace summary PATH",
    "trace idle PATH",
    "trace kernels PATH",
    "trace overlap PATH",
    "trace communication PATH",
    "trace launch PATH",
    "trace sync PATH",
    "trace steps PATH",
    "trace operators PATH",
    "trace memory PATH",
    "trace critical-path PATH",
    "trace stragglers PATH",
    "trace compare PATH PATH",
    "trace tree PATH",
    "trace stack PATH",
    "trace export PATH --out out.json",
    "trace report PATH --html out.html",
    "roofline PATH --device h100",
    f"predict training --model PATH {TRAINING}",
    f"predict training --model llama-2-7b {TRAINING} --calibrate PATH",
    "predict serving --model PATH --gpu H100 --prompt 8 --answer 8",
    "validate training PATH",
    "validate training table.csv --calibration PATH",
    "validate serving PATH",
    f"plan training --model PATH {TRAINING}",
    "plan serving --model PATH --rate 1",
    "train PATH",
    "launch PATH --on local",
    "launch --check PATH",
    "compress PATH --scheme w8a16 --out out",
    f"compress {LIBRARY} --scheme w8a16 --out out --text PATH",
    "evaluate PATH --text text.txt",
    f"evaluate {LIBRARY} --text PATH",
    f"evaluate {LIBRARY} --text text.txt --reference PATH",
    f"serve {LIBRARY} --api-key-file PATH",
    f"serve {LIBRARY} --manifest PATH",
    "generate PATH --prompt a",
    "bench decode PATH",
    "draft-heads PATH --text text.txt --out out",
    "loadtest http://127.0.0.1:9 --trace PATH",
    f"{FLEET} --trace PATH",
    "simulate serving --steps PATH",
    "explain PATH PATH",
)
READ = (
    "compare PATH PATH",
    "trace summary PATH",
    f"predict training --model llama-2-7b {TRAINING} --calibrate PATH",
    "validate training PATH",
    "validate serving PATH",
    f"serve {LIBRARY} --api-key-file PATH",
    f"serve {LIBRARY} --manifest PATH",
    f"{FLEET} --trace PATH",
    "simulate serving --steps PATH",
    "explain PATH PATH",
)
"""One command for each kind of file that is read."""
WITHOUT = {"hardware", "launch status", "launch logs", "launch cancel"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the other arguments name, and no way to a hub."""
    (tmp_path / "script.py").write_text("")
    (tmp_path / "text.txt").write_text("some words " * 100)
    (tmp_path / "table.csv").write_text("\n".join(TABLE))
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 16)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_no_command_is_missing_here() -> None:
    words = {" ".join(line.split()[:2]) for line in WITH_A_PATH}
    known = words | {line.split()[0] for line in WITH_A_PATH} | WITHOUT
    assert set(COMMANDS) <= known


@pytest.mark.parametrize("line", WITH_A_PATH)
def test_a_missing_path_is_one_line_that_names_it(
    line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _one_line(line, "nowhere.xyz", capsys)


@pytest.mark.parametrize("name", ["folder", "empty", "binary"])
@pytest.mark.parametrize("line", READ)
def test_a_path_to_something_else_is_one_line_that_names_it(
    line: str, name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _one_line(line, name, capsys)


def _one_line(line: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.replace("PATH", name).split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert name in captured.err
    assert "Errno" not in captured.err
    assert "codec" not in captured.err
