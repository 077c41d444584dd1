"""Goodput that `cost/` predicts, against runs that are killed at random moments.

    OMP_NUM_THREADS=1 python -m bench.goodput [--runs 200] [--json FILE]

A small real job: a process that takes real optimizer steps of a few milliseconds and saves model
and optimizer through `train/checkpoint/store.py` (fsync, checksums, rename). Its parent sends
SIGKILL after a time drawn from an exponential distribution and starts it again at once, from the
last checkpoint, until all steps are done. Starts are forks of a process that has torch imported,
so that a start costs milliseconds and 200 runs fit in minutes.

The prediction (Daly, equation 20, in `cost/checkpoint_interval.py`) takes step, stall and restart
times from runs that nobody kills, made in between. What it is compared with is what
`train/survive/goodput.py` makes of the event logs of the killed ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from ridgeline.cost.checkpoint_interval import daly_interval_seconds, goodput
from ridgeline.train.checkpoint.store import Manifest, Store, sum_of
from ridgeline.train.survive.events import EventLog, read_events
from ridgeline.train.survive.goodput import account

STEPS = 120
INTERVALS = (10, 40)
"""Steps between checkpoints: too few, and near the best."""
MTBF_SECONDS = 0.3
_CALIBRATE_EVERY = 10
_WIDTH = 128
_BATCH = 384


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of runs that nobody kills; means."""

    step_seconds: float
    checkpoint_seconds: float
    restart_seconds: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One interval."""

    interval_steps: int
    runs: int
    failures_per_run: float
    costs: Costs
    best_interval_seconds: float
    predicted: float
    measured: float
    shares: dict[str, float]


def job(folder: Path, interval: int, steps: int) -> None:
    """One start: from the last checkpoint to the last step."""
    log = EventLog(folder, every_seconds=0.0)
    log.write("started")
    torch.manual_seed(0)
    model, optimizer = built()
    store, step = Store(folder), 0
    store.sweep()
    for found in store.whole()[:1]:
        state = torch.load(found.path / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = found.step
    log.write("ready", step)
    data = torch.randn(_BATCH, _WIDTH)
    while step < steps:
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        log.step(step)
        if step % interval == 0:
            with log.during("checkpoint", step):
                save(store, step, model, optimizer)
    log.write("finished", step)


def built() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model and its optimizer."""
    model = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def import_all() -> None:
    """What torch imports when it is first needed, before there are children that need it."""
    model, optimizer = built()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "state.pt"
        torch.save(optimizer.state_dict(), path)
        torch.load(path)


def save(store: Store, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Whole or not at all."""
    store.begin(step)
    path = store.place(step)
    with (path / "state.pt").open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    files = {"state.pt": sum_of(path / "state.pt")}
    manifest = Manifest(
        step=step, tokens=0, number=step, world=1, time=time.time(), recipe={}, files=files
    )
    store.seal(path, manifest)
    store.retain(1, 0)


def start(folder: Path, interval: int, steps: int, patience_seconds: float | None) -> bool:
    """Start the job and kill it when the patience is over; whether it finished."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            job(folder, interval, steps)
            code = 0
        finally:
            os._exit(code)
    handle = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    ended = poll.poll(None if patience_seconds is None else patience_seconds * 1e3)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(handle)
    if ended and status:
        raise RuntimeError(f"the job itself failed: {status}")
    return bool(ended)


def disturbed(folder: Path, interval: int, chance: random.Random) -> int:
    """One run to its end; how often it was killed."""
    failures = 0
    while not start(folder, interval, STEPS, chance.expovariate(1.0 / MTBF_SECONDS)):
        failures += 1
    return failures


def calibrated(folder: Path, interval: int) -> tuple[float, float, float]:
    """Seconds of a step, of a checkpoint, of a restart, with nobody killing."""
    # Half-way, then again from there: the second start is a restart.
    start(folder, interval, STEPS // 2 // interval * interval, None)
    forked = time.time()
    start(folder, interval, STEPS, None)
    found, events = account(read_events(folder)), read_events(folder)
    ready = [event.time for event in events if event.kind == "ready"]
    saves = sum(event.kind == "checkpoint" for event in events)
    step = found.productive_seconds / STEPS
    return step, found.checkpoint_seconds / max(1, saves), ready[-1] - forked


def measure(interval: int, runs: int, chance: random.Random) -> Row:
    """All runs at one interval."""
    failures, logs, costs = 0, [], []
    for run in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if run % _CALIBRATE_EVERY == 0:
                costs.append(calibrated(folder, interval))
                shutil.rmtree(folder)
                folder.mkdir()
            failures += disturbed(folder, interval, chance)
            logs.append(account(read_events(folder)))
    step, checkpoint, restart = (fmean(column) for column in zip(*costs, strict=True))
    wall = sum(log.wall_seconds - log.starting_seconds for log in logs)
    names = ("productive", "lost", "checkpoint", "restart", "finishing")
    return Row(
        interval_steps=interval,
        runs=runs,
        failures_per_run=failures / runs,
        costs=Costs(step_seconds=step, checkpoint_seconds=checkpoint, restart_seconds=restart),
        best_interval_seconds=daly_interval_seconds(checkpoint, MTBF_SECONDS),
        predicted=goodput(interval * step, checkpoint, MTBF_SECONDS, restart),
        measured=sum(log.productive_seconds for log in logs) / wall,
        shares={
            name: sum(getattr(log, f"{name}_seconds") for log in logs) / wall for name in names
        },
    )


def table(rows: list[Row]) -> str:
    """As docs/results/goodput.md has it."""
    head = (
        "| steps between saves | runs | kills per run | step | save | restart | goodput predicted"
        " | measured | off by | lost | saving | restarting |"
    )
    lines = [head, "| --- " * head.count(" | ") + "| --- |"]
    for row in rows:
        costs = row.costs
        lines.append(
            f"| {row.interval_steps} | {row.runs} | {row.failures_per_run:.2f}"
            f" | {costs.step_seconds * 1e3:.2f} ms | {costs.checkpoint_seconds * 1e3:.1f} ms"
            f" | {costs.restart_seconds * 1e3:.1f} ms | {row.predicted:.3f} | {row.measured:.3f}"
            f" | {row.predicted / row.measured - 1.0:+.1%} | {row.shares['lost']:.1%}"
            f" | {row.shares['checkpoint']:.1%} | {row.shares['restart']:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    import_all()
    chance = random.Random(wanted.seed)
    rows = [measure(interval, wanted.runs // len(INTERVALS), chance) for interval in INTERVALS]
    sys.stdout.write(table(rows) + "\n")
    if wanted.json:
        wanted.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
