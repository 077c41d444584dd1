"""The torchrun line of a node (torch.distributed.run, elastic agents, c10d rendezvous).

Nodes meet at HOST:PORT under the run's name. Workers that fail are started again up to
`run.restarts` times; a node that leaves or joins does not count. Output of every rank goes to
files and, with `[rank3]:` before each line, to the node's own output.
https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from ridgeline.launch.job import Job

JOIN_SECONDS = 900
"""Nodes wait so long for each other (torch's default is 600): a pod may have an image to pull."""


def torchrun_command(
    job: Job, *, host: str | None, is_host: str = "", log_folder: str = ""
) -> list[str]:
    """Words of the command.

    Args:
        job: What is launched.
        host: Where the nodes meet; None: this is the only node.
        is_host: `true` or `false` (or shell that says so): whether this node is that one; empty:
            torchrun finds out by name and address.
        log_folder: Where the ranks' output is kept beside being shown; empty: only shown.
    """
    words = [job.cluster.run.python, "-m", "torch.distributed.run"]
    if host is None:
        words += ["--standalone", "--nnodes", "1"]
    else:
        nodes = str(job.num_nodes)
        if job.min_nodes < job.num_nodes:
            nodes = f"{job.min_nodes}:{job.num_nodes}"
        conf = f"join_timeout={JOIN_SECONDS}" + (f",is_host={is_host}" if is_host else "")
        words += ["--nnodes", nodes, "--rdzv-backend", "c10d"]
        words += ["--rdzv-endpoint", f"{host}:{job.cluster.run.port}", "--rdzv-id", job.name]
        words += ["--rdzv-conf", conf]
    words += ["--nproc-per-node", str(job.ranks_per_node)]
    words += ["--max-restarts", str(job.cluster.run.restarts)]
    words += ["--shutdown-timeout", str(max(1, job.cluster.run.grace_seconds - 10))]
    words += ["--log-dir", log_folder] if log_folder else []
    words += ["--tee", "3"]
    return [*words, *job.worker, job.folder]
