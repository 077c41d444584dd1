"""A run on a Ray cluster that stands already, through its job server (`ray.job_submission`)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra, RidgelineError
from ridgeline.launch.cluster_file import needed
from ridgeline.launch.job import RECIPE, LaunchJob
from ridgeline.launch.merge import LogReader, WholeLog, read_lines
from ridgeline.launch.ray_entry import ray_entry_command
from ridgeline.launch.remembered import Remembered
from ridgeline.records.launched_run import LaunchedRun, Place, RunStatus, State

_STATES: dict[str, State] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "done",
    "FAILED": "failed",
    "STOPPED": "cancelled",
}


def render(job: LaunchJob, place: Place, path: Path | None) -> str:  # noqa: ARG001
    """Render the line that submits the run by hand.

    Raises:
        InputError: The cluster file (`path`, for the message) lacks a key.
    """
    needed(job.cluster, path, {"run.folder": "a folder that every node sees, for checkpoints"})
    address = shlex.quote(job.cluster.ray.address)
    line = shlex.quote(_entry_line(job))
    return f"ray job submit --address {address} --submission-id {job.name} -- sh -c {line}\n"


def _entry_line(job: LaunchJob) -> str:
    """Shell that the job server runs: write the recipe, start the entry."""
    folder = shlex.quote(job.folder)
    return (
        f"mkdir -p {folder} && printf %s {shlex.quote(job.recipe_text)} > {folder}/{RECIPE}"
        f" && exec {shlex.join(ray_entry_command(job))}"
    )


def submit(
    job: LaunchJob, run: LaunchedRun, remembered: Remembered, path: Path | None
) -> LaunchedRun:
    """Hand the run to the job server; its name is the run's."""
    render(job, "ray", path)  # complains before anything is remembered
    run = remembered.write(run)
    try:
        client = _client(run.address)
        try:
            client.submit_job(entrypoint=_entry_line(job), submission_id=job.name)
        except (RuntimeError, ValueError) as error:
            raise RidgelineError(f"{run.address}: {error}") from None
    except RidgelineError:
        remembered.forget(run)
        raise
    return remembered.change(run, phase="submitted", job_id=job.name)


def recover(run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """Take the run for submitted: Ray knows it by its own name, and says so if it does not."""
    return remembered.change(run, phase="submitted", job_id=run.name)


def status(run: LaunchedRun) -> RunStatus:
    """How the run stands, as the job server says."""
    info = _client(run.address).get_job_info(run.job_id)
    state = _STATES[str(getattr(info.status, "value", info.status))]
    return RunStatus(name=run.name, place="ray", state=state, why=info.message or "")


def cancel(run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """Stop the job on the cluster."""
    _client(run.address).stop_job(run.job_id)
    return remembered.change(run, phase="cancelled")


def open_log(run: LaunchedRun, remembered: Remembered) -> LogReader:  # noqa: ARG001
    """Open the job's log, which the job server hands out whole."""
    return WholeLog(
        lambda: list(read_lines(_client(run.address).get_job_logs(run.job_id).splitlines(), node=0))
    )


def _client(address: str) -> Any:
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        raise InputError(f"ray.address {address}: {' '.join(str(error).split())}") from None
