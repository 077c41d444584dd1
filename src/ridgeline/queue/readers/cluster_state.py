"""A cluster's state from files: what kubectl or Slurm prints, or tables of pods and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.queue.doctor.state import LiveCluster
from ridgeline.queue.readers.dcgm import used_by_job, used_by_pod
from ridgeline.queue.readers.kubectl import KUBECTL_CURE, cluster_of, kube_objects
from ridgeline.queue.readers.pod_table import read_pod_table
from ridgeline.queue.readers.slurm_printed import is_slurm
from ridgeline.queue.readers.slurm_state import read_slurm_state
from ridgeline.records.input_file import read_text, without_collection


def read_cluster_state(
    paths: Sequence[Path], *, nodes: Path | None = None, dcgm: Path | None = None
) -> LiveCluster:
    """Read the state of one cluster.

    Args:
        paths: Files of `kubectl get ... -o json`, of sinfo, squeue and sacct, or one table of pods
            (CSV).
        nodes: The table of nodes that belongs to a table of pods.
        dcgm: Utilisation of GPUs by pod or job, as DCGM's exporter gives it, in CSV.

    Raises:
        InputError: A file is neither, or says what cannot be; which, and where in it.
    """
    tables = [path for path in paths if path.suffix == ".csv"]
    if tables:
        if len(paths) > 1:
            raise InputError(f"{tables[0]}: give one table of pods, or files of kubectl alone")
        if nodes is None:
            raise InputError(f"{tables[0]}: a table of pods needs its nodes: --cluster NODES.csv")
        state = read_pod_table(tables[0], nodes)
    elif nodes is not None:
        raise InputError(
            f"--cluster {nodes}: only for a table of pods; kubectl and sinfo tell the nodes"
        )
    elif any(is_slurm(read_text(path, cure=KUBECTL_CURE)) for path in paths):
        state = read_slurm_state(paths)
        used = {} if dcgm is None else used_by_job(dcgm, state)
        return replace(state, used_share=used)
    else:
        with without_collection():
            found = [one for path in paths for one in kube_objects(path)]
            state = cluster_of(found, where=", ".join(str(path) for path in paths))
    if not any(node.num_gpus or node.slices for node in state.nodes):
        raise InputError(f"{paths[0]}: no node with a GPU; {KUBECTL_CURE}")
    if dcgm is None:
        return state
    return replace(state, used_share=used_by_pod(dcgm, {pod.name for pod in state.pods}))
