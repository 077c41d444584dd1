"""Training without a barrier: where synchronous loses to a slow worker, where staleness loses.

    python bench/asynchronous.py

One problem (a network on clouds of points), four workers. First one of them sleeps: loss after the
same seconds, with and without the barrier. Then none does, and the learning rate is near what a
single worker bears at the most: loss after the same gradients, one at a time (nothing is stale),
without a barrier at the plain rate, and at the staleness-aware one. Losses are over held-out
points; the seconds are of this machine, with whatever else it does. A minute on two cores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (as everywhere)

from ridgeline import AsynchronousRun, AsynchronousSettings, train_asynchronously
from ridgeline.cost.asynchronous import asynchronous_forecast, stable_rate

WORKERS = 4
SECONDS = 8.0


@dataclass(frozen=True)
class Rings:
    """A point's class is its distance from the centre."""

    slow_worker: int = -1
    work_seconds: float = 0.02
    slow_seconds: float = 0.2

    def model(self) -> nn.Module:
        """A small network with fixed first weights."""
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 3))

    def loss(self, model: nn.Module, worker: int, step: int) -> Tensor:
        """The mean over 64 points that this worker alone draws."""
        time.sleep(self.slow_seconds if worker == self.slow_worker else self.work_seconds)
        points, classes = rings(1 + 10_000 * worker + step)
        return F.cross_entropy(model(points), classes)


def rings(seed: int, count: int = 64) -> tuple[Tensor, Tensor]:
    """Points in the plane, and the ring that each lies in."""
    draw = torch.Generator().manual_seed(seed)
    points = 1.5 * torch.randn(count, 2, generator=draw)
    return points, (points.norm(dim=1) > 1.0).long() + (points.norm(dim=1) > 2.0).long()


def held_out(found: AsynchronousRun) -> float:
    """The loss over points that no worker saw."""
    points, classes = rings(0, 4000)
    with torch.no_grad():
        return float(F.cross_entropy(found.model(points), classes))


def row(name: str, found: AsynchronousRun) -> None:
    """One line of the table."""
    late = f"{found.mean_staleness:.1f} (worst {found.worst_staleness})"
    counts = f"{found.gradients:6d} {found.updates:6d} {found.dropped:5d}"
    print(f"{name:34s} {held_out(found):8.4f}  {counts}  {late:18s} {found.seconds:6.1f} s")


def main() -> None:
    """Print both halves."""
    print(f"{'':34s} {'loss':>8s}  {'grads':>6s} {'upd.':>6s} {'drop':>5s}  staleness")
    slow = Rings(slow_worker=3)
    times = [slow.work_seconds] * (WORKERS - 1) + [slow.slow_seconds]
    foretold = asynchronous_forecast(times)
    print(
        f"one slow worker, {SECONDS:g} s; foretold {foretold.throughput_ratio:.2f}x the gradients"
    )
    for rule in ("synchronous", "wait", "drop"):
        settings = AsynchronousSettings(workers=WORKERS, rule=rule, learning_rate=0.5)
        found = train_asynchronously(slow, settings, gradients=10**6, most_seconds=SECONDS)
        row(f"  {rule}", found)
    even = Rings(work_seconds=0.0)
    stable = stable_rate(WORKERS - 1)
    print(f"a rate of 1, 400 gradients; {WORKERS - 1} updates late {stable:.2f} of it are stable")
    for name, workers, power in (
        ("  one worker, nothing stale", 1, 0.0),
        ("  four workers, plain rate", WORKERS, 0.0),
        ("  four workers, staleness-aware", WORKERS, 1.0),
    ):
        settings = AsynchronousSettings(
            workers=workers, rule="drop", learning_rate=1.0, staleness_power=power
        )
        row(name, train_asynchronously(even, settings, gradients=400))


if __name__ == "__main__":
    main()
