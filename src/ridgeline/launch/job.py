"""One recipe on one cluster: how many nodes, what runs on each, and what it is called.

Names are RFC 1123 labels that start with a letter (JobSet makes a Service of its name, which
RFC 1035 rules), and short enough that the pods' names, which JobSet derives as
NAME-node-0-INDEX-SUFFIX, stay below 63 characters.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.launch.cluster_file import ClusterFile
from ridgeline.launch.merge import RANK_PREFIX
from ridgeline.records.recipe import Recipe

NAME_LENGTH = 40
JOIN_SECONDS = 900
"""Nodes wait so long for each other (torch's default is 600): a pod may have an image to pull."""
RECIPE = "recipe.toml"
"""What a run's recipe is called in its folder: the rank reads it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """One recipe laid out over the nodes of one cluster. Made by `job_of`."""

    name: str
    recipe: Recipe
    recipe_text: str
    """The recipe as TOML, with the paths that hold on the nodes."""
    cluster: ClusterFile
    num_nodes: int
    ranks_per_node: int
    worker: tuple[str, ...]
    """What a rank runs, after `python`; FOLDER comes behind it."""
    folder: str
    """The folder of this run, on every node."""

    @property
    def min_nodes(self) -> int:
        """Nodes that are enough to go on with."""
        return min(self.cluster.run.min_nodes or self.num_nodes, self.num_nodes)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of every rank: a share of the cores as threads, the cluster file's own."""
        found = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **RANK_PREFIX}
        if self.cluster.nodes.cpus:
            threads = max(1, self.cluster.nodes.cpus // self.ranks_per_node)
            found["OMP_NUM_THREADS"] = str(threads)
        return found | self.cluster.environment


def job_of(
    recipe: Recipe,
    recipe_text: str,
    cluster: ClusterFile,
    *,
    name: str,
    worker: tuple[str, ...],
    folder: str,
) -> LaunchJob:
    """Lay the recipe's ranks out over nodes.

    Raises:
        InputError: The ranks do not fill whole nodes.
    """
    ranks, per_node = recipe.layout.num_devices, cluster.nodes.ranks_per_node
    if cluster.nodes.devices and per_node > cluster.nodes.devices:
        raise InputError(
            f"nodes.ranks is {per_node}, but a node has {cluster.nodes.devices} devices:"
            " a rank needs one of its own"
        )
    per_node = min(per_node, ranks)
    if ranks % per_node:
        raise InputError(
            f"the layout has {ranks} ranks, which do not fill nodes of {per_node}; change the"
            " layout, or nodes.devices in the cluster file"
        )
    return LaunchJob(
        name=name,
        recipe=recipe,
        recipe_text=recipe_text,
        cluster=cluster,
        num_nodes=ranks // per_node,
        ranks_per_node=per_node,
        worker=worker,
        folder=folder,
    )


def run_name(text: str) -> str:
    """A name that every engine takes, derived from the recipe's; a long one keeps its own hash.

    >>> run_name("Llama 7B_v2.toml")
    'llama-7b-v2'
    >>> run_name("7b")
    'run-7b'
    >>> len(run_name("x" * 300))
    40
    """
    stem = text.removesuffix(".toml")
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not name or not name[0].isalpha():
        name = f"run-{name}".strip("-")
    if len(name) > NAME_LENGTH:
        digest = hashlib.sha256(stem.encode()).hexdigest()[:8]
        name = f"{name[: NAME_LENGTH - 9].rstrip('-')}-{digest}"
    return name


def checked_name(text: str) -> str:
    """A name that the user gave.

    Raises:
        InputError: No engine-proof name; the message has the nearest one.
    """
    if text != run_name(text):
        raise InputError(
            f"--name {text!r}: lower-case letters, digits and '-', a letter first, at most"
            f" {NAME_LENGTH}; {run_name(text)!r} would do"
        )
    return text


def run_folder(cluster: ClusterFile, name: str, fallback: Path) -> str:
    """Where a run lives on the nodes: below `run.folder`, or in `fallback`."""
    return f"{cluster.run.folder.rstrip('/')}/{name}" if cluster.run.folder else str(fallback)


def torchrun_command(
    job: LaunchJob, *, host: str | None, is_host: str = "", log_folder: str = ""
) -> list[str]:
    """Write the torchrun line of a node (elastic agents, c10d rendezvous).

    Nodes meet at HOST:PORT under the run's name. Workers that fail are started again up to
    `run.restarts` times; a node that leaves or joins does not count. Output of every rank goes to
    files and, with `[rank3]:` before each line, to the node's own output.
    https://docs.pytorch.org/docs/stable/elastic/run.html

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
