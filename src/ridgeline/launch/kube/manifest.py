"""Everything that one run needs on Kubernetes, as documents in the order of creation.

The last document is the run itself; those before it are owned by it once it exists, so that
deleting the run leaves nothing behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ridgeline.errors import InputError, MissingExtra
from ridgeline.launch.cluster_file import IMAGE, REQUESTS, needed
from ridgeline.launch.job import RECIPE, LaunchJob
from ridgeline.launch.kube.kinds import job_set, metadata, pod_group, ray_job, train_job
from ridgeline.launch.kube.pod import config_map_name

_CONFIG_MAP_BYTES = 1_000_000
"""The server takes 1 MiB for the whole object."""


def manifests(
    job: LaunchJob, *, engine: Literal["kubernetes", "ray"] = "kubernetes", path: Path | None = None
) -> list[dict[str, Any]]:
    """The documents of a run.

    Args:
        job: What is launched.
        engine: Which object runs it: a JobSet or TrainJob, or a RayJob.
        path: The cluster file, for messages.

    Raises:
        InputError: The cluster file lacks a key, or the recipe does not fit a ConfigMap.
    """
    _check(job, path)
    if engine == "ray":
        main = [ray_job(job)]
        num_pods = job.num_nodes + 1
    else:
        main = train_job(job) if job.cluster.kubernetes.kind == "trainjob" else [job_set(job)]
        num_pods = job.num_nodes
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, config_map_name(job)),
        "data": {RECIPE: job.recipe_text},
    }
    controller = {
        "apiGroup": main[-1]["apiVersion"].partition("/")[0],
        "kind": main[-1]["kind"],
        "name": job.name,
    }
    return [config, *pod_group(job, controller, num_pods), *main]


def _check(job: LaunchJob, path: Path | None) -> None:
    cluster = job.cluster
    queue = "Kueue's LocalQueue (or gang = \"pod-group\" for the scheduler's own gangs)"
    keys = {
        "kubernetes.image": IMAGE,
        "kubernetes.claim": "a PersistentVolumeClaim: without one a restarted run has no checkpoint"
        " to resume from",
        **({"kubernetes.queue": queue} if cluster.kubernetes.gang == "kueue" else {}),
        "nodes.cpus": REQUESTS,
        "nodes.memory_bytes": REQUESTS,
    }
    needed(cluster, path, keys)
    if len(job.recipe_text.encode()) > _CONFIG_MAP_BYTES:
        raise InputError(f"the recipe of {job.name} is above {_CONFIG_MAP_BYTES:,} bytes")


def as_yaml(documents: list[dict[str, Any]]) -> str:
    """The documents as `kubectl apply -f` takes them.

    Raises:
        MissingExtra: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise MissingExtra("pyyaml", "kubernetes") from None

    class Readable(yaml.SafeDumper):  # type: ignore[misc]
        """Texts of several lines as blocks, no anchors for what occurs twice."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Readable.add_representer(str, text)
    dumped: str = yaml.dump_all(documents, Dumper=Readable, sort_keys=False, width=100)
    return dumped
