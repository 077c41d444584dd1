"""What a rule of ours is, and what it looks at: the pods inside any object.

Where their templates stand, how many pods there will be, what they ask for. A template is found by
its shape (a list of containers), so that kinds which nobody listed are read too; how often it is
made is the product of `replicas`, `parallelism` and `numOfHosts` above it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ridgeline.launch.check.fields import Object, entries, section
from ridgeline.launch.check.verdict import Severity
from ridgeline.records.kube_quantity import parse_quantity

_ACCELERATOR = re.compile(r"(gpu|tpu|gaudi|neuron|mig-|npu)", re.IGNORECASE)
_NOT_DEVICES = ("memory", "cores", "percentage")
_COUNTS = ("replicas", "parallelism", "numOfHosts")
_PATCHES = re.compile(r"runtimePatches|[oO]verrides|\.status\b")
"""Fragments that are laid over a template elsewhere: they are no pods of their own."""

_RESOURCES = ("resources", "resourcesPerNode")

_KUBEFLOW_KINDS = ("MPIJob", "PyTorchJob", "JAXJob", "TFJob", "PaddleJob", "XGBoostJob")
"""Jobs of the operators before TrainJob (kubeflow.org), all of one shape."""
BATCH_KINDS = frozenset(
    {"Job", "JobSet", "TrainJob", "RayJob", "ScaledJob", "CronJob", *_KUBEFLOW_KINDS}
)
RUNTIME_KINDS = frozenset({"TrainingRuntime", "ClusterTrainingRuntime"})
TORCH = re.compile(r"torch|deepspeed|accelerate|nccl|megatron|nemo", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Pods made from one template."""

    path: str
    """Path of the pod's spec."""
    spec: Object
    metadata: Object
    count: int
    holders: tuple[tuple[str, Object], ...] = field(repr=False)
    """Path and value of everything above the spec, the object first."""

    @property
    def containers(self) -> list[tuple[str, Object]]:
        """Path and body of every container, init containers last."""
        return [
            (f"{self.path}.{key}[{index}]", container)
            for key in ("containers", "initContainers")
            for index, container in enumerate(entries(self.spec, key))
        ]

    @property
    def devices(self) -> int:
        """Accelerators of one pod."""
        return sum(devices_of(section(body, "resources")) for _, body in self.containers)

    @property
    def text(self) -> str:
        """Images, commands and variables, to recognise what runs."""
        return " ".join(
            str([body.get(key) for key in ("image", "command", "args", "env")])
            for _, body in self.containers
        )

    def under(self, key: str) -> bool:
        """Whether the template stands below a field of this name."""
        bare = re.sub(r"\[[0-9]+\]", "", self.path)
        return f".{key}." in f".{bare}."


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWorkload:
    """One object with the pods it makes."""

    manifest: Object
    custom: bool
    kind: str
    api_version: str
    pods: tuple[PodSet, ...]
    partners: tuple[Object, ...] = ()
    """The runtime of a TrainJob, or the TrainJobs of a runtime, where they are checked together."""

    @property
    def device_pods(self) -> tuple[PodSet, ...]:
        """Templates that ask for accelerators."""
        return tuple(pod for pod in self.pods if pod.devices > 0)

    @property
    def num_device_pods(self) -> int:
        """Pods with accelerators, all templates together."""
        return sum(pod.count for pod in self.device_pods)

    @property
    def is_training(self) -> bool:
        """Whether it is a job (not a service) that uses accelerators."""
        return self.kind in BATCH_KINDS and bool(self.device_pods)

    @property
    def resource_blocks(self) -> list[tuple[str, Object]]:
        """Path and body of everything with requests or limits, patches and claims included."""
        return list(_blocks(self.manifest, ""))


def read_workload(
    manifest: Object,
    *,
    custom: bool,
    among: Sequence[Object] = (),
) -> PodWorkload:
    """The pods of an object that is checked among others."""
    return PodWorkload(
        manifest=manifest,
        custom=custom,
        kind=str(manifest.get("kind")),
        api_version=str(manifest.get("apiVersion")),
        pods=tuple(_pod_sets(manifest)),
        partners=tuple(other for other in among if _belong_together(manifest, other)),
    )


def _belong_together(first: Object, second: Object) -> bool:
    for job, runtime in ((first, second), (second, first)):
        if job.get("kind") == "TrainJob" and runtime.get("kind") in RUNTIME_KINDS:
            reference = section(section(job, "spec"), "runtimeRef")
            kind = reference.get("kind") or "ClusterTrainingRuntime"
            name = section(runtime, "metadata").get("name")
            return bool(name and (reference.get("name"), kind) == (name, runtime["kind"]))
    return False


def is_patch(path: str) -> bool:
    """Whether a path lies in a fragment that is laid over a template elsewhere."""
    return _PATCHES.search(path) is not None


def is_accelerator(resource: str) -> bool:
    """Whether a resource counts accelerators (not their memory or shares)."""
    name = resource.rpartition("/")[2].lower()
    return bool("/" in resource and _ACCELERATOR.search(name)) and not name.endswith(_NOT_DEVICES)


def devices_of(resources: Object) -> int:
    """Accelerators that a container asks for: its limits, or requests where no limit stands."""
    asked = {**section(resources, "requests"), **section(resources, "limits")}
    amounts = [parse_quantity(value) for key, value in asked.items() if is_accelerator(key)]
    return int(sum((amount or Fraction(0) for amount in amounts), Fraction(0)))


def _pod_sets(manifest: Object) -> Iterator[PodSet]:
    for path, spec, holders in _specs(manifest, "", ()):
        if is_patch(path):
            continue
        count = 1
        for _, holder in holders:
            for key in _COUNTS:
                value = holder.get(key)
                if isinstance(value, int) and not isinstance(value, bool):
                    count *= max(value, 0)
        count *= _nodes(manifest, holders)
        above = holders[-1][1] if holders else {}
        yield PodSet(
            path=path,
            spec=spec,
            metadata=section(above, "metadata"),
            count=count,
            holders=holders,
        )


def _nodes(manifest: Object, holders: tuple[tuple[str, Object], ...]) -> int:
    """A training runtime makes its trainer's pods once per node."""
    policy = section(section(manifest, "spec"), "mlPolicy")
    nodes = policy.get("numNodes") if isinstance(policy, Mapping) else None
    label = "trainer.kubeflow.org/trainjob-ancestor-step"
    for _, holder in holders:
        metadata = holder.get("metadata")
        labels = section(metadata, "labels") if isinstance(metadata, Mapping) else {}
        if isinstance(nodes, int) and labels.get(label) == "trainer":
            return nodes
    return 1


def _blocks(value: Any, path: str) -> Iterator[tuple[str, Object]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _blocks(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            if key in _RESOURCES and isinstance(item, Mapping):
                if any(isinstance(item.get(part), Mapping) for part in ("requests", "limits")):
                    yield below, item
            else:
                yield from _blocks(item, below)


def _specs(
    value: Any,
    path: str,
    holders: tuple[tuple[str, Object], ...],
) -> Iterator[tuple[str, Object, tuple[tuple[str, Object], ...]]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _specs(item, f"{path}[{index}]", holders)
    elif isinstance(value, Mapping):
        containers = value.get("containers")
        if (
            isinstance(containers, list)
            and containers
            and all(isinstance(c, Mapping) and ("name" in c or "image" in c) for c in containers)
        ):
            yield path, value, holders
            return
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            yield from _specs(item, below, (*holders, (path, value)))


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One place where a rule is broken."""

    field: str
    message: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StricterRule:
    """One rule that the API server does not have."""

    name: str
    severity: Severity
    """With `error` the job cannot start; with `warning` it starts, and is likely to waste GPUs."""
    reason: str
    """Why it matters, in one sentence."""
    cure: str
    """What to do, in general."""
    check: Callable[[PodWorkload], Iterable[BrokenRule]]
