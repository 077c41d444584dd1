"""The file `cluster.toml` says what a place needs to run a job there, and the recipe does not say.

Each table belongs to one place; a place's table may be missing until a run is sent there. A key
that a place cannot do without is asked for by `needed`, which names the key and the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_toml


class ClusterSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file: a mistyped key is an error that names it."""


class NodeSection(ClusterSection, frozen=True, kw_only=True):
    """What one node has; all nodes are alike."""

    device: str = ""
    """The accelerator, as `ridgeline hardware --list` has it: its price is looked up."""
    devices: int = 0
    """Accelerators of a node that a run takes; 0: it trains on the host's cores."""
    ranks: int = 0
    """Processes on a node; 0: one for each accelerator, or one where there is none."""
    cpus: int = 0
    """Cores that a run takes of a node; 0: not asked for (Slurm gives what it likes)."""
    memory_bytes: int = 0
    """Host memory that a run takes of a node; 0: not asked for."""
    shared_memory_bytes: int = 16 * 2**30
    """Size of /dev/shm, where loaders and NCCL pass data between processes."""
    resource: str = "nvidia.com/gpu"
    """What Kubernetes calls the accelerator."""

    @property
    def ranks_per_node(self) -> int:
        """Processes that one node runs."""
        return self.ranks or self.devices or 1


class RunSection(ClusterSection, frozen=True, kw_only=True):
    """How a run is started, wherever that is."""

    folder: str = ""
    """Where runs live, on every node the same: a folder of a shared file system."""
    python: str = "python"
    """The interpreter there that has Ridgeline and torch."""
    port: int = 29400
    """Where the nodes meet, on the first of them."""
    restarts: int = 3
    """Times that the ranks may be started again from the last checkpoint."""
    min_nodes: int = 0
    """Nodes that are enough to go on with after losing some; 0: all are needed."""
    grace_seconds: int = 120
    """From the request to end (preemption, time limit) to the kill: time to save."""


class Ssh(ClusterSection, frozen=True, kw_only=True):
    """Machines that are reached by ssh."""

    hosts: tuple[str, ...] = ()
    """The machines as ssh knows them; the first is where they meet."""
    command: tuple[str, ...] = ("ssh", "-T", "-o", "BatchMode=yes")
    """Program that is followed by HOST and one line for its shell."""
    rendezvous: str = ""
    """Name or address by which the others reach the first host; empty: its name in `hosts`."""


class Slurm(ClusterSection, frozen=True, kw_only=True):
    """The Slurm cluster that a run is sent to."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    """Limit of the job, as Slurm has it: `2-00:00:00`."""
    exclusive: bool = True
    """Take whole nodes, since neighbours on the same switch and memory are the usual stragglers."""
    constraint: str = ""
    reservation: str = ""
    gpu_type: str = ""
    """The TYPE of `--gpus-per-node=TYPE:COUNT`; empty for any."""
    setup: tuple[str, ...] = ()
    """Lines of shell before the run: `module load cuda`, `source venv/bin/activate`."""


class Toleration(ClusterSection, frozen=True, kw_only=True):
    """A taint of nodes that this run may stand."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class Kubernetes(ClusterSection, frozen=True, kw_only=True):
    """The Kubernetes cluster that a run is sent to."""

    image: str = ""
    """Container image with Ridgeline and torch."""
    namespace: str = "default"
    context: str = ""
    """The context of kubeconfig; empty for its current one."""
    kind: Literal["jobset", "trainjob"] = "jobset"
    """The object that is sent: a JobSet, or a Kubeflow TrainJob with a runtime of its own."""
    queue: str = ""
    """Kueue's LocalQueue; needed with `gang = "kueue"`."""
    gang: Literal["kueue", "pod-group"] = "kueue"
    """Who places all pods or none: Kueue with topology-aware scheduling, or the scheduler's own
    PodGroup (Kubernetes 1.36, feature gates GenericWorkload and GangScheduling)."""
    topology: str = ""
    """Node label inside which all pods shall stand, such as `cloud.provider.com/topology-rack`."""
    topology_mode: Literal["required", "preferred"] = "required"
    """What Kueue does otherwise: wait for such a place, or take the next wider one."""
    exclusive_topology: str = ""
    """Node label of which a JobSet takes whole domains for itself; empty: it does not."""
    priority_class: str = ""
    claim: str = ""
    """PersistentVolumeClaim for checkpoints and logs, writable from every node."""
    mount: str = "/ridgeline"
    """Where the claim is mounted; relative paths of the recipe start there."""
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    host_network: bool = False
    """Use the node's own network, as some InfiniBand set-ups want."""
    extra_resources: dict[str, int] = {}
    """Further devices of each pod, such as `"rdma/ib" = 1`."""
    keep_seconds: int = 7 * 86400
    """How long a finished run stays, with its logs."""
    prometheus: str = ""
    """Address inside the cluster, `http://prometheus.monitoring:9090`, where KEDA asks how busy
    servers are."""


class Ray(ClusterSection, frozen=True, kw_only=True):
    """The Ray cluster of a run: one that runs already, or one that KubeRay makes for the run."""

    address: str = ""
    """The dashboard, `http://head:8265`; empty: a RayJob for KubeRay, which takes what
    `[kubernetes]` says."""
    version: str = "2.60.0"
    """The version of Ray in the image; both must agree."""
    head_cpus: int = 4
    head_memory_bytes: int = 16 * 2**30


class ClusterFile(ClusterSection, frozen=True, kw_only=True):
    """The whole of `cluster.toml`, table by table."""

    nodes: NodeSection = NodeSection()
    run: RunSection = RunSection()
    environment: dict[str, str] = {}
    """Variables of every rank: NCCL_SOCKET_IFNAME, NCCL_IB_HCA, GLOO_SOCKET_IFNAME ..."""
    ssh: Ssh = Ssh()
    slurm: Slurm = Slurm()
    kubernetes: Kubernetes = Kubernetes()
    ray: Ray = Ray()

    def __post_init__(self) -> None:
        for name in ("devices", "ranks", "cpus", "memory_bytes", "shared_memory_bytes"):
            if getattr(self.nodes, name) < 0:
                raise InputError(f"nodes.{name} is below 0")
        if not 0 < self.run.port < 65536:
            raise InputError(f"run.port is {self.run.port}; a port lies between 1 and 65535")
        if min(self.run.restarts, self.run.min_nodes) < 0 or self.run.grace_seconds < 1:
            raise InputError("run.restarts and run.min_nodes start at 0, run.grace_seconds at 1")


IMAGE = "the container image with Ridgeline and torch"
"""The purpose of `kubernetes.image`."""
REQUESTS = "pods without them are evicted first"
"""The purpose of `nodes.cpus` and `nodes.memory_bytes` on Kubernetes."""


def read_cluster_file(path: Path) -> ClusterFile:
    """Read the file; a bad one is an InputError that names the file and the key."""
    return read_toml(path, ClusterFile)


def needed(cluster: ClusterFile, path: Path | None, keys: Mapping[str, str]) -> None:
    """Ask for all keys that the place cannot do without and that are not there.

    Args:
        cluster: What was read.
        path: The file, for the message; None: none was given.
        keys: What each is for, by its name as `table.key`; those with one purpose are named
            together.

    Raises:
        InputError: Keys are empty; the message names them, the file, and what they are for.
    """
    missing: dict[str, list[str]] = {}
    for key, why in keys.items():
        table, _, name = key.partition(".")
        if not getattr(getattr(cluster, table), name):
            missing.setdefault(why, []).append(key)
    if missing:
        where = f"{path} lacks" if path else "give --cluster cluster.toml with"
        named = "; ".join(f"{' and '.join(keys)}: {why}" for why, keys in missing.items())
        raise InputError(f"{where} {named}")
