"""A run on a Ray cluster that stands already, through its job server (`ray.job_submission`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from ridgeline.errors import InputError, MissingExtra, RidgelineError
from ridgeline.launch.job import RECIPE, Job
from ridgeline.launch.ray_line import ray_entry_command
from ridgeline.records.launched_run import LaunchedRun, RunStatus, State

_STATES: dict[str, State] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "done",
    "FAILED": "failed",
    "STOPPED": "cancelled",
}


def entry_line(job: Job) -> str:
    """Shell that the job server runs: write the recipe, start the entry."""
    folder = shlex.quote(job.folder)
    return (
        f"mkdir -p {folder} && printf %s {shlex.quote(job.recipe_text)} > {folder}/{RECIPE}"
        f" && exec {shlex.join(ray_entry_command(job))}"
    )


def submit(job: Job) -> None:
    """Hand the run to the job server; its name is the run's."""
    client = _client(job.cluster.ray.address)
    try:
        client.submit_job(entrypoint=entry_line(job), submission_id=job.name)
    except (RuntimeError, ValueError) as error:
        raise RidgelineError(f"{job.cluster.ray.address}: {error}") from None


def status(run: LaunchedRun) -> RunStatus:
    """How the run stands."""
    info = _client(run.address).get_job_info(run.job_id)
    state = _STATES[str(getattr(info.status, "value", info.status))]
    return RunStatus(name=run.name, place="ray", state=state, why=info.message or "")


def logs(run: LaunchedRun) -> Iterator[str]:
    """What the run has said so far."""
    yield from _client(run.address).get_job_logs(run.job_id).splitlines()


def cancel(run: LaunchedRun) -> None:
    """End the run."""
    _client(run.address).stop_job(run.job_id)


def _client(address: str) -> Any:
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        raise InputError(f"ray.address {address}: {' '.join(str(error).split())}") from None
