"""One pod as Kubernetes describes it: what it asks for, what it belongs to, what became of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.errors import InputError
from ridgeline.queue.doctor.state import OUTLIVED, LivePod, ToldOf
from ridgeline.queue.readers.kube_constraints import constraints_of
from ridgeline.queue.readers.kube_ends import evicted_by, refused_by_kubelet, restarted_often
from ridgeline.queue.readers.kube_sections import mappings_in, section, unix_seconds
from ridgeline.records.kube_quantity import parse_quantity

_GPU = re.compile(
    r"(nvidia|amd)\.com/gpu|nvidia\.com/(gpu\.shared|pgpu)|gpu\.intel\.com/(i915|xe)"
    r"|habana\.(ai|com)/gaudi|google\.com/tpu|aws\.amazon\.com/neuron(device)?"
    r"|huawei\.com/Ascend\d+\w*|cambricon\.com/mlu\d*|(metax-tech|iluvatar|birentech)\.com/gpu"
    r"|hygon\.com/dcu|enflame\.com/gcu|mthreads\.com/gpu|qualcomm\.com/qaic|furiosa\.ai/npu"
    r"|alibabacloud\.com/gpu-count"
)
"""Names under which device plugins count whole accelerators."""
SHARED = "nvidia.com/gpu.shared"
"""Replicas of GPUs that pods share; how many make a GPU, the node's label tells."""
_SLICE = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb(?:\.\w+)?)")

RANKED = {
    "jobset.sigs.k8s.io/jobset-name": "JobSet",
    "training.kubeflow.org/job-name": "training job",
    "trainer.kubeflow.org/trainjob-name": "TrainJob",
    "leaderworkerset.sigs.k8s.io/name": "LeaderWorkerSet",
    "volcano.sh/job-name": "Volcano job",
    "ray.io/cluster": "RayCluster",
    "grove.io/podgang": "PodGang",
    "mpi-job-name": "training job",
    "pytorch-job-name": "training job",
    "tf-job-name": "training job",
}
"""Labels by which pods of one workload of ranks know each other; the last ones are old."""
RANKED_OWNERS = ("MPIJob", "PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")
"""Kinds whose pods are ranks, whatever their labels."""
GANGS = (
    "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name", "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name", "pod-group-name", "yunikorn.apache.org/task-group-name",
)  # fmt: skip
"""Labels or annotations of what starts pods together: coscheduling, Volcano, KAI, YuniKorn."""
_VOLUMES = re.compile(
    r"volume node affinity conflict|didn't match PersistentVolume's node affinity"
    r"|unbound immediate PersistentVolumeClaims|persistentvolumeclaim \"[^\"]*\" not found"
    r"|no available volume zone|exceed max volume count"
    r"|didn't find available persistent volumes to bind"
    r"|using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
)
"""kube-scheduler's words for volumes that keep a pod off nodes (its VolumeBinding, VolumeZone and
NodeVolumeLimits plug-ins)."""
_CLAIMS = re.compile(
    r"(cannot|could not) allocate all claims|resourceclaim[^,]*not found"
    r"|device class \S+ does not exist"
)
"""Its words for devices that no node has as claims want them (its DynamicResources plug-in)."""
_SPREAD = re.compile(r"didn't match pod topology spread constraints")
"""Its words for pods that are to lie evenly (its PodTopologySpread plug-in)."""
_LONGEST_SAID = 200
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
HAMI_MEMORY, HAMI_CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
"""What pods ask for of each GPU that HAMi gives them: MiB, and hundredths of its compute."""
FRACTIONS = {"gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"}
"""Annotations of KAI and Run:ai."""
TOPOLOGIES = tuple(
    f"kueue.x-k8s.io/podset-{kind}" for kind in
    ("required-topology", "preferred-topology", "unconstrained-topology")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claims:
    """What a pod asks for by claims, beside its containers' resources."""

    gpus: int = 0
    slices: Mapping[str, int] = field(default_factory=dict)
    selector: str = ""
    """What a device must be for them; empty: any will do."""


def live_pod(one: dict[str, Any], where: str, claims: Claims = Claims()) -> LivePod:
    """Read one pod as kubectl prints it.

    Raises:
        InputError: What it asks for is no amount.
    """
    spec, status = section(one, "spec"), section(one, "status")
    words = {**section(one, "metadata", "labels"), **section(one, "metadata", "annotations")}
    asked = _asked(spec, where)
    workload, ranks = _workload(one, words)
    conditions = mappings_in(status.get("conditions"))
    wanted = section(spec, "nodeSelector")
    quota = words.get(QUEUE_LABEL) or words.get("kueue.x-k8s.io/cluster-queue-name")
    return LivePod(
        name=name_of(one),
        workload=workload,
        ranks=ranks,
        node=str(spec.get("nodeName") or ""),
        num_gpus=claims.gpus
        + sum(whole(asked[name], name, where) for name in asked if is_gpu(name)),
        shared_gpus=whole(asked.get(SHARED), SHARED, where),
        slices=asked_slices(asked, where) | dict(claims.slices),
        cpu_milli=milli(asked.get("cpu"), "cpu", where),
        memory_bytes=whole(asked.get("memory"), "memory", where),
        others=_others(asked, where),
        host_ports=_host_ports(spec),
        model=str(wanted.get("nvidia.com/gpu.product") or ""),
        labels={str(k): str(v) for k, v in section(one, "metadata", "labels").items()},
        constraints=constraints_of(spec, str(section(one, "metadata").get("namespace") or "")),
        gang=any(name in words for name in GANGS)
        or bool(spec.get("schedulingGroup") or spec.get("workloadRef")),
        group=_group(one, words),
        quota=str(quota or ""),
        topology=any(name in words for name in TOPOLOGIES),
        gated=bool(spec.get("schedulingGates")),
        priority=_priority(spec),
        may_preempt=spec.get("preemptionPolicy") != "Never",
        done=status.get("phase") in ("Succeeded", "Failed"),
        stalled=_stalled(status) or _outlived(spec, status),
        told_of=_told_of(spec, status, claims),
        deleted_seconds=unix_seconds(section(one, "metadata").get("deletionTimestamp")),
        grace_seconds=_grace_seconds(one),
        evicted=evicted_by(status),
        refused=refused_by_kubelet(status),
        created_seconds=unix_seconds(section(one, "metadata").get("creationTimestamp")),
        started_seconds=unix_seconds(status.get("startTime")),
        ended_seconds=_ended(status, conditions),
    )  # fmt: skip


def asks_by_annotation(one: dict[str, Any]) -> bool:
    """Whether a pod asks for a part of a GPU as KAI and Run:ai take it: pods of theirs hold it."""
    return bool(FRACTIONS & section(one, "metadata", "annotations").keys())


def name_of(one: dict[str, Any]) -> str:
    """With the namespace, where there is one."""
    about = section(one, "metadata")
    name = str(about.get("name", ""))
    return f"{about['namespace']}/{name}" if about.get("namespace") else name


def is_gpu(resource: str) -> bool:
    """Whether a resource is counted in whole GPUs."""
    return _GPU.fullmatch(resource) is not None


def asked_slices(amounts: dict[str, Any], where: str) -> dict[str, int]:
    """MIG slices by profile."""
    found = {name: _SLICE.fullmatch(name) for name in amounts}
    return {match[1]: whole(amounts[name], name, where) for name, match in found.items() if match}


def other_resources(amounts: dict[str, Any], where: str) -> dict[str, int]:
    """What is neither cores, memory, a GPU nor a part of one."""
    return {
        name: whole(amount, name, where)
        for name, amount in amounts.items()
        if name not in ("cpu", "memory") and not is_gpu(name) and not _SLICE.fullmatch(name)
    }


def whole(amount: object, name: str, where: str) -> int:
    """An amount as a whole number, rounded up."""
    return _number(amount, name, where, 1)


def amount(found: object, name: str, where: str) -> float:
    """An amount as a number, whatever its unit."""
    return _number(found, name, where, 1000) / 1000.0


def milli(amount: object, name: str, where: str) -> int:
    """An amount in thousandths, rounded up."""
    return _number(amount, name, where, 1000)


def _number(amount: object, name: str, where: str, times: int) -> int:
    value = parse_quantity(amount)
    if value is None or value < 0:
        raise InputError(f"{where}: {name} is {amount!r}, which is no amount of anything")
    return -int(-value * times // 1)


def _asked(spec: dict[str, Any], where: str) -> dict[str, Any]:
    """What the containers ask for together, or the largest that starts before them."""
    at_once: dict[str, Any] = {}
    for one in mappings_in(spec.get("containers")):
        _add(at_once, _requests(one), where, lambda a, b: a + b)
    for one in mappings_in(spec.get("initContainers")):
        stays = one.get("restartPolicy") == "Always"
        _add(at_once, _requests(one), where, (lambda a, b: a + b) if stays else max)
    _add(at_once, section(spec, "overhead"), where, lambda a, b: a + b)
    return at_once


def _requests(container: dict[str, Any]) -> dict[str, Any]:
    """Requests; a limit stands for a request that is not there."""
    return {**section(container, "resources", "limits"),
            **section(container, "resources", "requests")}  # fmt: skip


def _add(
    sums: dict[str, Any], more: dict[str, Any], where: str, join: Callable[[Any, Any], Any]
) -> None:
    for name, amount in more.items():
        value = parse_quantity(amount)
        if value is None or value < 0:
            raise InputError(f"{where}: {name} is {amount!r}, which is no amount of anything")
        sums[name] = float(join(parse_quantity(sums.get(name)) or 0, value))


def _workload(one: dict[str, Any], words: dict[str, Any]) -> tuple[str, bool]:
    """What a pod is a part of, and whether that needs all of its pods to compute."""
    namespace = str(section(one, "metadata").get("namespace") or "")
    for label, kind in RANKED.items():
        if label in words:
            return f"{kind} {namespace}/{words[label]}", True
    if "batch.kubernetes.io/job-completion-index" in words:
        job = words.get("batch.kubernetes.io/job-name") or words.get("job-name") or ""
        return f"Job {namespace}/{job}", True
    owners = section(one, "metadata").get("ownerReferences")
    if isinstance(owners, list) and owners and isinstance(owners[0], dict):
        kind = str(owners[0].get("kind"))
        return f"{kind} {namespace}/{owners[0].get('name')}", kind in RANKED_OWNERS
    return f"Pod {name_of(one)}", False


def _group(one: dict[str, Any], words: dict[str, Any]) -> str:
    """The group that a pod is started with, by its name after its namespace; empty: none."""
    own = section(one, "spec", "schedulingGroup").get("podGroupName")
    name = own or next((words[label] for label in GANGS if label in words), "")
    namespace = section(one, "metadata").get("namespace")
    return f"{namespace}/{name}" if name and namespace else str(name)


def _stalled(status: dict[str, Any]) -> str:
    """Why a container of a pod waits; empty: none does."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for one in mappings_in(status.get(key)):
            if found := section(one, "state", "waiting").get("reason"):
                return str(found)
    return ""


def _outlived(spec: dict[str, Any], status: dict[str, Any]) -> str:
    """Whether only containers without GPUs of it run on, as what stalls it; empty: no."""
    with_gpus = {
        str(one.get("name"))
        for one in mappings_in(spec.get("containers"))
        if any(is_gpu(name) or _SLICE.fullmatch(name) for name in _requests(one))
    }
    ended = {
        str(one.get("name"))
        for one in mappings_in(status.get("containerStatuses"))
        if section(one, "state", "terminated")
    }
    return OUTLIVED if with_gpus and with_gpus <= ended else ""


def _priority(spec: dict[str, Any]) -> int:
    told = spec.get("priority")
    return told if isinstance(told, int) else 0


def _told_of(spec: dict[str, Any], status: dict[str, Any], claims: Claims) -> dict[ToldOf, str]:
    """What a pod's status says of single things, kube-scheduler's sentence taken apart."""
    conditions = mappings_in(status.get("conditions"))
    asked = [one for one in conditions if one.get("type") == "PodScheduled"]
    message = next((str(one.get("message") or "") for one in asked
                    if one.get("status") == "False"), "")  # fmt: skip
    claimed, wanted = _part(_CLAIMS, message), claims.selector
    found: dict[ToldOf, str] = {
        "volumes": _part(_VOLUMES, message),
        "scheduler": message[:_LONGEST_SAID],
        "claims": f"{claimed}, which want {wanted}" if claimed and wanted else claimed,
        "spread": _part(_SPREAD, message),
        "unscheduled": "" if asked else _not_looked_at(spec, status),
        "restarts": restarted_often(status, unix_seconds(status.get("startTime"))),
    }
    return {about: said for about, said in found.items() if said}


def _part(words: re.Pattern[str], message: str) -> str:
    """What of kube-scheduler's sentence is in certain words; empty: nothing."""
    told = words.search(message)
    return told[0] if told else ""


def _others(asked: dict[str, Any], where: str) -> dict[str, int]:
    """What is no GPU; of what HAMi gives, an amount of each GPU."""
    found = other_resources(asked, where)
    gpus = max(1, sum(whole(asked[name], name, where) for name in asked if is_gpu(name)))
    of_each = {name: found[name] * gpus for name in (HAMI_MEMORY, HAMI_CORES) if name in found}
    return found | of_each | {"pods": 1}


def _grace_seconds(one: dict[str, Any]) -> float:
    told = section(one, "metadata").get("deletionGracePeriodSeconds")
    return float(told) if isinstance(told, int) else 0.0


def _host_ports(spec: dict[str, Any]) -> frozenset[str]:
    """The ports of its node that a pod takes for itself."""
    on_host = spec.get("hostNetwork") is True
    ports = [
        port
        for one in mappings_in(spec.get("containers"))
        for port in mappings_in(one.get("ports"))
    ]
    taken = [
        (one.get("hostPort") or (on_host and one.get("containerPort")), one.get("protocol"))
        for one in ports
    ]
    return frozenset(f"{protocol or 'TCP'} {number}" for number, protocol in taken if number)


def _not_looked_at(spec: dict[str, Any], status: dict[str, Any]) -> str:
    """The scheduler that a pod waits for which says nothing of it; empty: it waits for none."""
    waits = status.get("phase") == "Pending" and not spec.get("nodeName")
    if not waits or status.get("nominatedNodeName"):
        return ""
    return str(spec.get("schedulerName") or "default-scheduler")


def _ended(status: dict[str, Any], conditions: list[dict[str, Any]]) -> float | None:
    ends = [
        unix_seconds(section(one, "state", "terminated").get("finishedAt"))
        for one in mappings_in(status.get("containerStatuses"))
    ]  # fmt: skip
    ends += [unix_seconds(c.get("lastTransitionTime")) for c in conditions
             if c.get("type") == "DisruptionTarget"]  # fmt: skip
    return max((end for end in ends if end is not None), default=None)
