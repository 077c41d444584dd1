"""The command that starts a run under Ray Train: `ray_entry.py` with what it has to know."""

from __future__ import annotations

from ridgeline.launch.job import Job


def ray_entry_command(job: Job) -> list[str]:
    """Words of the command, to be run on any node of the Ray cluster."""
    words = [job.cluster.run.python, "-m", "ridgeline.launch.ray_entry", "--name", job.name]
    words += ["--workers", str(job.num_nodes * job.ranks_per_node)]
    words += ["--restarts", str(job.cluster.run.restarts)]
    if job.cluster.nodes.devices:
        words.append("--gpu")
    for key, value in sorted(job.environment.items()):
        words += ["--env", f"{key}={value}"]
    return [*words, "--", *job.worker, job.folder]
