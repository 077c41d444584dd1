"""What `kubectl get nodes,pods,... -o json` (or yaml) prints, as a cluster's state.

The pods of a RayService come in generations: KubeRay starts the next cluster of a service beside
the one that serves, and ends that one once the next is ready. Source: KubeRay documentation,
"RayService", zero-downtime upgrade.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ridgeline.errors import InputError
from ridgeline.queue.doctor.state import LiveCluster, LiveNode, LivePod
from ridgeline.queue.readers.kube_claims import Claimable, claimable
from ridgeline.queue.readers.kube_constraints import taints_of
from ridgeline.queue.readers.kube_doors import door_of, guarded_nodes
from ridgeline.queue.readers.kube_ends import evicted_runs
from ridgeline.queue.readers.kube_for_nobody import kept_for_nobody
from ridgeline.queue.readers.kube_gpu_faults import gpu_faults, gpus_never_offered
from ridgeline.queue.readers.kube_kinds import KIND_LABELS, bound_by_names
from ridgeline.queue.readers.kube_pods import (
    HAMI_CORES,
    HAMI_MEMORY,
    asked_slices,
    asks_by_annotation,
    is_gpu,
    live_pod,
    milli,
    name_of,
    other_resources,
    whole,
)
from ridgeline.queue.readers.kube_queues import capped_queues, held_by_queues
from ridgeline.queue.readers.kube_quotas import (
    cohorts_of,
    local_queues_of,
    namespace_quotas_of,
    quotas_of,
    stopped_queues_of,
)
from ridgeline.queue.readers.kube_sections import mappings_in, section, unix_seconds
from ridgeline.queue.readers.kube_templates import templates_of
from ridgeline.queue.readers.kube_to_come import in_queues_of_their_jobs, pods_to_come
from ridgeline.queue.readers.kube_told import told_by_cluster
from ridgeline.queue.readers.kube_unused import with_switched_off, with_unused
from ridgeline.records.input_file import parse_json, read_text
from ridgeline.records.yaml_documents import parse_yaml

KUBECTL_CURE = "give what kubectl get nodes,pods --all-namespaces -o json prints"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
"""How often NVIDIA's device plugin counts each GPU that pods share by time-slicing or MPS."""
_FOR_PEOPLE = re.compile(r"\s*((NAMESPACE +)?NAME +(READY|STATUS)|Name: +\S+\s+(Namespace|Roles):)")
"""How what `kubectl get` without `-o` and `kubectl describe` print begins."""
MOST_GPUS = 10**5
"""No node has more, replicas of shared ones among them."""
LARGEST_STATE = 10**7
"""Values of one YAML document: some 30,000 pods."""
YAML_BEGINS = re.compile(r"(#.*\s+)*(---\s+)?(- )?(apiVersion|kind|items|metadata):")
"""How objects in YAML begin."""
_NOT_PAST = {
    "deletionTimestamp", "requeueAt", "notAfter", "expirationTimestamp", "nextScheduleTime",
    "fieldsV1",
}  # fmt: skip
"""Keys whose moments may lie ahead (a pod's deletion is over only after its grace period), and a
large one that has none."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")


def kube_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of lists, or single ones, in JSON or YAML.

    Raises:
        InputError: The file is neither, or holds no Kubernetes objects.
    """
    text = read_text(path, cure=KUBECTL_CURE)
    if _FOR_PEOPLE.match(text.lstrip("\ufeff")):
        raise InputError(f"{path}: this is kubectl's table or description; {KUBECTL_CURE}")
    if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[", ""):
        documents = [parse_json(text.encode(), object, where=str(path), cure=KUBECTL_CURE)]
    else:
        parsed = parse_yaml(text, str(path), most_values=LARGEST_STATE)
        documents = [one for _, one in parsed if one is not None]
    listed = []
    for content in documents:
        found = content.get("items", [content]) if isinstance(content, dict) else content
        if not isinstance(found, list):
            raise InputError(f"{path}: items is no list; {KUBECTL_CURE}")
        listed += found
    for place, one in enumerate(listed):
        if not (isinstance(one, dict) and isinstance(one.get("kind"), str)
                and isinstance(one.get("metadata"), dict)):  # fmt: skip
            raise InputError(f"{path}: item {place} is no Kubernetes object; {KUBECTL_CURE}")
    return listed


def cluster_of(objects: Sequence[dict[str, Any]], *, where: str) -> LiveCluster:
    """The state that objects tell.

    Raises:
        InputError: An object is given twice, an amount is no amount, or no pod that runs is on a
            node that was given.
    """
    seen: set[tuple[str, str]] = set()
    nodes, pods, templates = [], [], []
    coming = pods_to_come(objects)
    claims = claimable([*objects, *coming])
    faults, guarded = gpu_faults(objects), guarded_nodes(objects)
    for one in [*objects, *coming]:
        key = (one["kind"], name_of(one))
        if key in seen and key[0] != "Event":
            raise InputError(f"{where}: {key[0]} {key[1]} is given twice; leave one out")
        seen.add(key)
        at = f"{where}: {key[0]} {key[1]}"
        if one["kind"] == "Node":
            nodes.append(_node(one, at, claims, faults.get(name_of(one), ""), guarded))
        elif one["kind"] == "Pod":
            name = name_of(one)
            pods.append(live_pod(one, at, claims.of_pod(name)))
        else:
            templates += list(templates_of(one))
    pods = in_queues_of_their_jobs(bound_by_names(pods, objects), objects)
    queues = capped_queues(objects, where)
    pods = held_by_queues(gangs_held_to_groups(pods, objects), queues, [*objects, *coming])
    pods = with_unused(told_by_cluster(in_services(pods, objects), objects), objects)
    pods = with_switched_off(pods, objects)
    known = {node.name for node in nodes}
    running = [pod for pod in pods if pod.node and not pod.done]
    left = [pod for pod in pods if pod.done or not pod.node or pod.node in known]
    num_homeless = len(pods) - len(left)
    if running and num_homeless == len(running):
        pod = running[0]
        raise InputError(
            f"{where}: pod {pod.name} is on node {pod.node}, which is not there; {KUBECTL_CURE}"
        )
    lacking = {name_of(one) for one in coming}
    started = {pod.workload.partition(" ")[2] for pod in pods if pod.name not in lacking}
    return LiveCluster(
        nodes=tuple(nodes),
        pods=(*left, *evicted_runs(objects, left)),
        num_homeless=num_homeless,
        num_unknown_claims=len(claims.unknown),
        num_fractions=sum(asks_by_annotation(one) for one in objects if one["kind"] == "Pod"),
        quotas=quotas_of(objects, where),
        cohorts=cohorts_of(objects, where),
        local_queues=local_queues_of(objects),
        stopped_queues=stopped_queues_of(objects),
        capped_queues=queues,
        namespace_quotas=namespace_quotas_of(objects, where),
        for_nobody=kept_for_nobody(objects, where),
        enough_pods=enough_pods(objects),
        templates=tuple(t for t in templates if t.workload.partition(" ")[2] not in started),
        now_seconds=_latest(objects),
    )


def _node(
    one: dict[str, Any], where: str, claims: Claimable, fault: str, guarded: Mapping[str, str]
) -> LiveNode:
    labels = section(one, "metadata", "labels")
    status = section(one, "status")
    amounts = section(status, "allocatable") or section(status, "capacity")
    if not amounts:
        raise InputError(f"{where}: no status.allocatable; {KUBECTL_CURE}")
    name = str(one["metadata"].get("name", ""))
    gpus = _gpus(amounts, where)
    door = door_of(one, guarded.get(name, ""), fault)
    return LiveNode(
        name=name,
        num_gpus=gpus + claims.gpus[name],
        broken_gpus=max(0, _gpus(section(status, "capacity"), where) - gpus)
        or gpus_never_offered(one, claimed=bool(claims.gpus or claims.slices or claims.unknown)),
        fault=fault,
        replicas=_replicas(one, where),
        slices=asked_slices(amounts, where) | dict(claims.slices.get(name, {})),
        others=other_resources(amounts, where) | hami_amounts(one),
        cpu_milli=milli(amounts.get("cpu"), "cpu", where),
        memory_bytes=whole(amounts.get("memory"), "memory", where),
        model=next(
            (str(labels[label]) for label in KIND_LABELS if label in labels),
            claims.models.get(name, ""),
        ),
        closed=door.closed,
        closed_way=door.way,
        closed_seconds=door.since_seconds,
        labels={str(key): str(value) for key, value in labels.items()},
        taints=taints_of(section(one, "spec")),
    )


def _replicas(one: dict[str, Any], where: str) -> int:
    """How often a node counts each of its GPUs: by NVIDIA's label, or by what HAMi notes there."""
    told = section(one, "metadata", "labels").get(REPLICAS_LABEL)
    if told:
        return max(1, whole(told, REPLICAS_LABEL, where))
    return max((gpu.shared_by for gpu in hami_gpus(one)), default=1)


def _gpus(amounts: dict[str, Any], where: str) -> int:
    gpus = sum(whole(amounts[name], name, where) for name in amounts if is_gpu(name))
    if gpus > MOST_GPUS:
        raise InputError(f"{where}: {gpus:,} GPUs on one node; {KUBECTL_CURE}")
    return gpus


def _latest(found: object) -> float | None:
    """The latest moment that any object mentions: the state was read then or a little later."""
    texts: set[str] = set()
    waiting = [found]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            values = [value for key, value in one.items() if key not in _NOT_PAST]
        else:
            values = list(one) if isinstance(one, list | tuple) else []
        for value in values:
            if isinstance(value, str):
                if value[10:11] == "T":
                    texts.add(value)
            elif isinstance(value, dict | list | tuple):
                waiting.append(value)
    moments = [unix_seconds(text) for text in texts if _TIME.fullmatch(text)]
    return max((at for at in moments if at is not None), default=None)


RAY_SERVICE = "RayService"
_KIND, _NAME = "ray.io/originated-from-crd", "ray.io/originated-from-cr-name"


def in_services(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> list[LivePod]:
    """The pods, each with the service that its cluster is of, by its labels or the cluster's."""
    services = {
        f"RayCluster {name_of(one)}": str(owner.get("name"))
        for one in objects
        if one["kind"] == "RayCluster"
        for owner in mappings_in(section(one, "metadata").get("ownerReferences"))
        if owner.get("kind") == RAY_SERVICE
    }

    def of_pod(pod: LivePod) -> str:
        own = pod.labels.get(_NAME) if pod.labels.get(_KIND) == RAY_SERVICE else None
        name = own or services.get(pod.workload)
        return f"{RAY_SERVICE} {pod.name.partition('/')[0]}/{name}" if name else ""

    return [replace(pod, service=service) if (service := of_pod(pod)) else pod for pod in pods]


HAMI_NOTES = ("hami.io/node-nvidia-register", "4pd.io/node-nvidia-register")
_LISTED = re.compile(r"GPU-[\w-]+,(\d+),(\d+),(\d+)")
"""A GPU as older releases write it: `UUID,10,46068,100,...:`."""
_OBJECT = re.compile(r"\{[^{}]*\}")
_FIELDS = {name: re.compile(rf'"{name}":\s*(\d+)') for name in ("count", "devmem", "devcore")}


class HamiGpu(NamedTuple):
    """What pods may have of one GPU, as HAMi notes it in an annotation of the node.

    Source: HAMi, `pkg/util/util.go` (EncodeNodeDevices and DecodeNodeDevices), 2.0 to 2.6.
    """

    shared_by: int
    """How many pods may share it."""
    mebibytes: int
    cores: int
    """Hundredths of its compute."""


def hami_gpus(node: dict[str, Any]) -> list[HamiGpu]:
    """The GPUs of a node; none where HAMi has noted none."""
    notes = section(node, "metadata", "annotations")
    noted = str(next((notes[name] for name in HAMI_NOTES if name in notes), ""))
    listed = [HamiGpu(*map(int, one)) for one in _LISTED.findall(noted)]
    return listed or [_gpu(one) for one in _OBJECT.findall(noted) if '"count"' in one]


def hami_amounts(node: dict[str, Any]) -> dict[str, int]:
    """Memory and compute of a node's GPUs together, by the names under which pods ask for them."""
    gpus = hami_gpus(node)
    amounts = {
        HAMI_MEMORY: sum(one.mebibytes for one in gpus),
        HAMI_CORES: sum(one.cores for one in gpus),
    }
    return {name: amount for name, amount in amounts.items() if amount}


def _gpu(text: str) -> HamiGpu:
    found = {name: pattern.search(text) for name, pattern in _FIELDS.items()}
    return HamiGpu(*(int(one[1]) if one else 0 for one in found.values()))


def gangs_held_to_groups(
    pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]
) -> list[LivePod]:
    """The pods, of which those whose group is content with fewer than it has are no gang.

    A PodGroup that is content with fewer than all ranks of a workload starts it in part. An elastic
    workload does not wait for more pods than its own least number.
    """
    least = {
        name_of(one): number
        for one in objects
        if one["kind"] == "PodGroup" and (number := _least_members(section(one, "spec")))
    }
    members = Counter(pod.group for pod in pods if pod.group and not pod.done)
    return [
        replace(pod, gang=False)
        if pod.gang and least.get(pod.group, members[pod.group]) < members[pod.group]
        else pod
        for pod in pods
    ]


def enough_pods(objects: Sequence[dict[str, Any]]) -> dict[str, int]:
    """With how many pods each elastic workload computes, by its name among those of pods."""
    found = {}
    for one in objects:
        spec = section(one, "spec")
        if one["kind"] == "RayCluster" and spec.get("enableInTreeAutoscaling"):
            groups = mappings_in(spec.get("workerGroupSpecs"))
            found[f"RayCluster {name_of(one)}"] = sum(_number(g.get("minReplicas")) for g in groups)
        elif section(spec, "elasticPolicy"):
            least = _number(section(spec, "elasticPolicy").get("minReplicas"))
            found[f"training job {name_of(one)}"] = max(1, least)
    return found


def _least_members(spec: dict[str, Any]) -> int:
    """A group's least number of members, in the words of each API that has groups."""
    gang = section(spec, "schedulingPolicy", "gang") or section(spec, "gang")
    return _number(spec.get("minMember")) or _number(gang.get("minCount"))


def _number(found: object) -> int:
    return found if isinstance(found, int) else 0
