"""What the cure of a finding is worth: the cluster is played on as it is, and with the cure.

Both are played with the same times of the same pods, several times where times can be drawn.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.queue.doctor.lasting import Lasting, unit_of
from ridgeline.queue.doctor.played import Continuation, play_on
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead
from ridgeline.queue.doctor.rules import cured_by
from ridgeline.queue.doctor.state import SLURM, LiveCluster
from ridgeline.records.queue_finding import QueueFinding, SimulatedWorth

DRAWINGS = 20
_PODS = 12_000
"""So many pods are played in all drawings together; one drawing is always played."""
_SHORTEST_SECONDS = 3600.0
_LONGEST_WAIT = 4.0
"""Who does not start within so many times the time that is asked about counts with so much."""


def with_worth(finding: QueueFinding, state: LiveCluster, lasting: Lasting) -> QueueFinding:
    """The finding with what its cure is worth, or why nobody can tell."""
    pair = cured_by(finding, state)
    if isinstance(pair, str):
        return _with(finding, None, pair)
    return _with(finding, simulated_worth(pair, state, lasting), "")


def simulated_worth(pair: BeforeAndCured, state: LiveCluster, lasting: Lasting) -> SimulatedWorth:
    """What comes of a cluster as it is, and of the same with a cure.

    Args:
        pair: The two.
        state: The cluster that was read, whose pods' times are drawn.
        lasting: How long they run.
    """
    pods = [pod for pod in state.pods if pod.num_gpus and not pod.done]
    drawings = max(1, min(DRAWINGS, _PODS // max(1, len(pods)))) if lasting.drawn else 1
    # By then half of what runs has ended, and room comes about by itself.
    horizon = max(_SHORTEST_SECONDS, lasting.usual_seconds / 2)
    longest = _LONGEST_WAIT * horizon
    played = [
        [play_on(one, lasts, horizon) for one in pair]
        for seed in range(drawings)
        for lasts in [lasting.drawing(pods, seed)]
    ]
    names = sorted({name for one in pair for name in _waiting(one.state)})
    before, after = zip(*played, strict=True)
    gains = [two.working_gpus - one.working_gpus for one, two in played]
    low, high = np.percentile(gains, [10, 90])
    return SimulatedWorth(
        horizon_seconds=horizon,
        working_gpus=float(np.mean([one.working_gpus for one in before])),
        cured_working_gpus=float(np.mean([one.working_gpus for one in after])),
        gain_low=float(low),
        gain_high=float(high),
        waiting_jobs=len(names),
        started_jobs=_started(before, horizon),
        cured_started_jobs=_started(after, horizon),
        longest_wait_seconds=longest,
        mean_wait_seconds=_mean_wait(before, names, longest),
        cured_mean_wait_seconds=_mean_wait(after, names, longest),
        drawings=drawings,
        assumed=_assumed(pair[0], lasting),
    )


def _assumed(as_it_is: ClusterAhead, lasting: Lasting) -> str:
    placed = "kube-scheduler's default profile places pods"
    if as_it_is.state.scheduler == SLURM:
        placed = "Slurm backfills (EASY, with the times as limits) and fills nodes"
    said = [lasting.assumed, f"as it is, {placed}"]
    if as_it_is.coming:
        said.append("younger pods come on at the pace at which those that run came")
    return "; ".join([*said, "priorities and MIG instances are left out"])


def _waiting(state: LiveCluster) -> list[str]:
    """What waits, by workload of ranks or by pod."""
    return [unit_of(pod) for pod in state.waiting if pod.num_gpus]


def _started(played: tuple[Continuation, ...], horizon: float) -> float:
    starts = [list(one.start_seconds.values()) for one in played]
    return float(np.mean([sum(start < horizon for start in some) for some in starts]))


def _mean_wait(played: tuple[Continuation, ...], names: list[str], longest: float) -> float:
    starts = [one.start_seconds.get(name, longest) for one in played for name in names]
    return float(np.minimum(starts, longest).mean()) if starts else 0.0


def _with(finding: QueueFinding, worth: SimulatedWorth | None, why_not: str) -> QueueFinding:
    return msgspec.structs.replace(finding, worth=worth, not_simulated=why_not)
