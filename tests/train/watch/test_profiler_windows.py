"""Windows are written for the steps that were asked for, and `ridgeline trace` reads them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from ridgeline.trace.load import load_traces
from ridgeline.trace.time.steps import step_times
from ridgeline.train.watch.phases import Phases
from ridgeline.train.watch.profiler_windows import ProfilerWindows

CPU = torch.device("cpu")


def train(windows: ProfilerWindows, steps: int, ask_at: int | None = None) -> None:
    layer = torch.nn.Linear(128, 128)
    optimizer = torch.optim.SGD(layer.parameters())
    phases = Phases(CPU)
    for step in range(steps):
        with windows.around(step):
            with phases.phase("forward"):
                loss = layer(torch.ones(64, 128)).sum()
            with phases.phase("backward"):
                loss.backward()
            with phases.phase("optimizer"):
                optimizer.step()
        if step == ask_at:
            os.kill(os.getpid(), signal.SIGUSR1)
    windows.close()


def test_chosen_steps_are_written_and_neighbours_share_a_file(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    train(ProfilerWindows(tmp_path, (2, 3, 6), 1, CPU), 8)
    assert signal.getsignal(signal.SIGUSR1) == before
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["rank1-step2.pt.trace.json.gz", "rank1-step6.pt.trace.json.gz"]
    first, second = (load_traces([str(tmp_path / name)])[0] for name in names)
    assert first.rank == second.rank == 1
    assert [step.number for step in step_times(first).steps] == [2, 3]
    assert [step.number for step in step_times(second).steps] == [6]
    phases = step_times(second).steps[0].phases_us
    assert min(phases["forward"], phases["backward"], phases["optimizer"]) > 0


def test_a_signal_asks_for_the_next_step(tmp_path: Path) -> None:
    train(ProfilerWindows(tmp_path, (), 0, CPU), 6, ask_at=3)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0-step4.pt.trace.json.gz"]


def test_every_so_manieth_step_is_traced_and_the_newest_windows_stay(tmp_path: Path) -> None:
    for _ in range(2):  # the second start finds the first one's files
        train(ProfilerWindows(tmp_path, (4,), 0, CPU, every=2, keep=2), 9)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "rank0-step4.pt.trace.json.gz",  # asked for by its number: it stays
            "rank0-step6.pt.trace.json.gz",
            "rank0-step8.pt.trace.json.gz",
        ]


def test_a_window_that_is_open_when_the_run_ends_is_written(tmp_path: Path) -> None:
    train(ProfilerWindows(tmp_path, (4, 5, 6), 0, CPU), 5)
    trace = load_traces([str(tmp_path)])[0]
    assert [step.number for step in step_times(trace).steps] == [4]


def test_nothing_is_written_unasked(tmp_path: Path) -> None:
    train(ProfilerWindows(tmp_path / "traces", (), 0, CPU), 3)
    assert not (tmp_path / "traces").exists()
