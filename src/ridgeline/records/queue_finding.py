"""What is wrong with a cluster of GPUs: `ridgeline queue doctor`. Losses are in GPUs."""

from __future__ import annotations

from ridgeline.records.finite import Computed


class SimulatedWorth(Computed, frozen=True, kw_only=True):
    """What a cure is worth: the cluster played on from this moment, without it and with it."""

    horizon_seconds: float
    """How long it is played on; GPUs at work are means over that time."""
    working_gpus: float
    """GPUs of jobs that compute, as it is."""
    cured_working_gpus: float
    gain_low: float
    """The difference of the two, at the 10th percentile of the drawings."""
    gain_high: float
    """The difference at the 90th percentile; equal to `gain_low` where nothing was drawn."""
    waiting_jobs: int
    """Jobs that wait, or would if the cure let them in."""
    started_jobs: float
    """The mean number of them that start within that time, as it is."""
    cured_started_jobs: float
    longest_wait_seconds: float
    """With which those count that wait longer, or never start."""
    mean_wait_seconds: float
    """Their mean wait from now on, as it is."""
    cured_mean_wait_seconds: float
    drawings: int
    """How many times it was played; 1: no run has ended from which times could be drawn."""
    assumed: str
    """What nobody knows and was assumed, as a clause."""


class QueueFinding(Computed, frozen=True, kw_only=True):
    """One cause of GPUs that do no work or not the work that waits; the costliest stands first."""

    cause: str
    """Stable name in kebab case; one rule owns one cause."""
    lost_gpus: float
    """GPUs that the cause keeps from work, as `counted` says."""
    counted: str
    """How the loss was counted, as a clause."""
    confidence: float
    """How sure the rule is, from 0 to 1, that this is the cause."""
    summary: str
    """One sentence for a person, with its most telling number."""
    evidence: dict[str, float | int | str]
    """The numbers behind it; units live in the keys."""
    where: list[str]
    """Pods, workloads or nodes, the costliest first."""
    cure: str
    """What to do, in one sentence."""
    setting: str
    """The cure as a manifest or setting in YAML; of Slurm, lines of slurm.conf or commands."""
    worth: SimulatedWorth | None = None
    """What the simulator gives for the cure; None: nothing, as `not_simulated` says."""
    not_simulated: str = ""
    """Why the worth was not simulated, as a clause; empty: it was."""


class QueueDiagnosis(Computed, frozen=True, kw_only=True):
    """A cluster at one moment, and what is wrong with it."""

    source: str
    nodes: int
    """Nodes that have GPUs, whole or in slices."""
    gpus: int
    """Whole GPUs that can be allocated."""
    slices: int
    """MIG slices that can be, of GPUs that are split and not among `gpus`."""
    allocated_gpus: int
    allocated_slices: int
    waiting_pods: int
    """Pods with GPUs or MIG slices that wait for a node."""
    waiting_gpus: int
    waiting_slices: int
    findings: list[QueueFinding]
    notes: list[str]
    """What the state does not tell, and which rules could therefore not be asked."""
