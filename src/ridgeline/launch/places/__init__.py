"""The places where a recipe runs: what would be started there, starting it, asking, ending.

    hosts.py        this machine, or machines over ssh; the run lives as long as the launcher
    slurm.py        a Slurm cluster, through sbatch, squeue and scancel
    ray.py          a Ray cluster that stands already, through its job server
    kubernetes.py   JobSet, TrainJob and KubeRay's RayJob, through an API server

Each file has the shape of `RunPlace`; what is the same everywhere is here. What may not enter: what
one place alone knows.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from ridgeline.errors import InputError, RidgelineError
from ridgeline.launch.job import LaunchJob
from ridgeline.launch.merge import LogLine, LogReader
from ridgeline.launch.places import hosts, kubernetes, ray, slurm
from ridgeline.launch.remembered import Remembered, launcher_lives
from ridgeline.records.launched_run import LaunchedRun, Place, RunStatus, State

_ENDED: tuple[State, ...] = ("done", "failed", "cancelled", "lost")
_POLL_SECONDS = 1.0


class RunPlace(Protocol):
    """The shape of a place's module."""

    def render(self, job: LaunchJob, place: Place, path: Path | None) -> str:
        """Render what would be started as text that can be run or applied by hand.

        Raises:
            InputError: The cluster file (`path`, for the message) lacks a key.
        """

    def recover(self, run: LaunchedRun, remembered: Remembered) -> LaunchedRun | None:
        """Finish or undo a submission whose launcher died; None: there is no such run any more."""

    def status(self, run: LaunchedRun) -> RunStatus:
        """How the run stands."""

    def cancel(self, run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
        """End the run and what belongs to it; checkpoints stay."""

    def open_log(self, run: LaunchedRun, remembered: Remembered) -> LogReader:
        """Open the log of all ranks."""


class BatchPlace(RunPlace, Protocol):
    """The shape of a place that takes a run and goes on without its launcher."""

    def submit(
        self, job: LaunchJob, run: LaunchedRun, remembered: Remembered, path: Path | None
    ) -> LaunchedRun:
        """Hand the run over and remember it; what fails leaves nothing behind.

        Raises:
            InputError: A key is missing, or the place refuses the run.
        """


def _place(place: Place, address: str) -> RunPlace:
    return hosts if place in ("local", "torchrun") else _batch_place(place, address)


def _batch_place(place: Place, address: str) -> BatchPlace:
    if place == "slurm":
        return slurm
    return ray if address else kubernetes


def _place_of(run: LaunchedRun) -> RunPlace:
    return _place(run.place, run.address)


def _address(job: LaunchJob, place: Place) -> str:
    return job.cluster.ray.address if place == "ray" else ""


def written(job: LaunchJob, place: Place, path: Path | None) -> str:
    """Render what `--dry-run` prints: the exact lines, file or manifest, without a cluster.

    Raises:
        InputError: The cluster file (`path`, for the message) lacks a key.
    """
    return _place(place, _address(job, place)).render(job, place, path)


def _new_run(job: LaunchJob, place: Place) -> LaunchedRun:
    """The record of a run that is about to be started."""
    address = _address(job, place)
    on_kubernetes = _place(place, address) is kubernetes
    return LaunchedRun(
        name=job.name,
        place=place,
        phase="submitting",
        folder=job.folder,
        created_seconds=time.time(),
        launcher_host=socket.gethostname(),
        launcher_pid=os.getpid(),
        ranks=job.num_nodes * job.ranks_per_node,
        ranks_per_node=job.ranks_per_node,
        address=address,
        namespace=job.cluster.kubernetes.namespace if on_kubernetes else "",
        context=job.cluster.kubernetes.context if on_kubernetes else "",
    )


def refuse_twins(job: LaunchJob, remembered: Remembered) -> None:
    """A name that is in use by a run that has not ended is no name for another.

    Raises:
        InputError: There is such a run.
    """
    for run in remembered.all():
        if run.name != job.name:
            continue
        current = recovered(run, remembered)
        if current is not None and status(current).state not in _ENDED:
            raise InputError(
                f"a run {job.name!r} on {run.place} has not ended; `ridgeline launch cancel"
                f" {job.name}` ends it, --name gives this one another name"
            )


def run_here(
    job: LaunchJob,
    place: Place,
    remembered: Remembered,
    on_line: Callable[[LogLine], None],
    watch: Callable[[], None] = lambda: None,
) -> LaunchedRun:
    """Run on this machine or over ssh, to the end; the run lives as long as this process.

    Raises:
        ChildDied: It failed; the message has the first error.
        Interrupted: Ctrl-C.
    """
    commands = hosts.host_commands(job, local=place == "local")
    run = remembered.write(_new_run(job, place))
    run = remembered.change(run, phase="submitted")
    logs = remembered.folder / run.name
    for stale in logs.glob("*.log"):
        stale.unlink()
    outcome = "failed: the launcher itself failed"
    try:
        hosts.run_on_hosts(job, commands, logs, on_line, watch)
        outcome = "done"
    except RidgelineError as error:
        outcome = "cancelled" if error.exit_code == 130 else f"failed: {error}"
        raise
    finally:
        run = remembered.change(run, phase="ended", outcome=outcome)
    return run


def submit(job: LaunchJob, place: Place, path: Path | None, remembered: Remembered) -> LaunchedRun:
    """Hand the run to Slurm, Kubernetes or Ray.

    Raises:
        InputError: A key is missing, or the place refuses the run.
    """
    where = _batch_place(place, _address(job, place))
    return where.submit(job, _new_run(job, place), remembered, path)


def recovered(run: LaunchedRun, remembered: Remembered) -> LaunchedRun | None:
    """The run, after a submission that its launcher did not live to finish; None: it is no more."""
    if run.phase != "submitting" or launcher_lives(run):
        return run
    return _place_of(run).recover(run, remembered)


def find(name: str, remembered: Remembered) -> LaunchedRun:
    """The run of that name, its submission finished or undone if its launcher died.

    Raises:
        InputError: There is none.
    """
    run = recovered(remembered.read(name), remembered)
    if run is None:
        raise InputError(f"{name}: its launch was cut short before anything ran; launch it again")
    return run


def status(run: LaunchedRun) -> RunStatus:
    """How the run stands."""
    if run.phase == "cancelled":
        return RunStatus(name=run.name, place=run.place, state="cancelled")
    return _place_of(run).status(run)


def cancel(run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """End the run and what belongs to it; checkpoints stay."""
    return _place_of(run).cancel(run, remembered)


def log_lines(run: LaunchedRun, remembered: Remembered, *, following: bool) -> Iterator[LogLine]:
    """Lines of all ranks, ordered by time; with `following`, until the run has ended."""
    read = _place_of(run).open_log(run, remembered)
    while True:
        over = not following or status(remembered.read(run.name)).state in _ENDED
        yield from read(over=over)
        if over:
            return
        time.sleep(_POLL_SECONDS)
