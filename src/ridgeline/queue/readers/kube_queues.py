"""Pods that a queue of Volcano, KAI, Run:ai or YuniKorn holds back by the most that it may have.

Volcano: `spec.capability` of a Queue, named by its PodGroup or by the pod's annotation. KAI (and
Run:ai): `spec.resources.gpu.limit` of a Queue and of those above it, named by the pod's label.
Projects of Run:ai are queues, with the Departments above them. The limit is `maxAllowedGpus` of the
older form, or `limit` of the GPUs in `resources`, of each node pool. Pods of a project are in the
namespace that its status names, or `runai-NAME`. Source: Run:ai documentation, "Projects".
YuniKorn: its queues stand in a ConfigMap. Source: YuniKorn's documentation, "Partition and Queue
Configuration" and "Labels and Annotations".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.lasting import unit_of
from ridgeline.queue.doctor.state import CappedQueue, LivePod
from ridgeline.queue.readers.kube_pods import amount, is_gpu, name_of, whole
from ridgeline.queue.readers.kube_sections import mappings_in, section
from ridgeline.records.yaml_documents import parse_yaml

NAMED = (
    "scheduling.volcano.sh/queue-name", "volcano.sh/queue-name", "kai.scheduler/queue",
    "runai/queue", "project",
)  # fmt: skip
"""Labels or annotations by which a pod names its queue."""
VOLCANO, KAI = "volcano", "kai"


def capped_queues(objects: Sequence[dict[str, Any]], where: str) -> dict[str, CappedQueue]:
    """The queues of Volcano, KAI, Run:ai and YuniKorn, by name.

    Raises:
        InputError: A limit is no amount.
    """
    capped = runai_projects(objects, where) | dict(_capped(objects, where))
    return capped | yunikorn_queues(objects, where)


def held_by_queues(
    pods: Sequence[LivePod], queues: Mapping[str, CappedQueue], objects: Sequence[dict[str, Any]]
) -> list[LivePod]:
    """The pods, of which those are held back that would be too much for their queue.

    Args:
        pods: All of them.
        queues: As `capped_queues` gives them.
        objects: The objects that were read, which say who is in which queue.
    """
    if not queues:
        return list(pods)
    named = _named(objects, queues)
    used: dict[str, int] = defaultdict(int)
    asked: dict[str, int] = defaultdict(int)
    for pod in pods:
        if pod.node and not pod.done:
            for queue in _upwards(named.get(pod.name, ""), queues):
                used[queue] += pod.num_gpus
        elif not pod.done:
            asked[unit_of(pod)] += pod.num_gpus

    def too_much(pod: LivePod) -> str:
        if pod.node or pod.done or pod.gated or not pod.num_gpus:
            return ""
        above = _upwards(named.get(pod.name, ""), queues)
        more = asked[unit_of(pod)]
        return next(
            (
                one
                for one in above
                if queues[one].closed or 0 <= queues[one].most < used[one] + more
            ),
            "",
        )

    pods = [replace(pod, queue=named.get(pod.name, "")) for pod in pods]
    if {one.kind for one in queues.values()} <= {VOLCANO, KAI}:  # others make queues as pods come
        pods = [
            replace(pod, gated=True)
            if pod.queue and pod.queue not in queues and not (pod.node or pod.done)
            else pod
            for pod in pods
        ]
    return [
        replace(pod, gated=True, told_of={**pod.told_of, "limit": full})
        if (full := too_much(pod))
        else pod
        for pod in pods
    ]


def _upwards(queue: str, queues: Mapping[str, CappedQueue]) -> Iterator[str]:
    """A queue with a limit, and those above it."""
    seen: set[str] = set()
    while queue in queues and queue not in seen:
        seen.add(queue)
        yield queue
        queue = queues[queue].parent


def _capped(objects: Sequence[dict[str, Any]], where: str) -> Iterator[tuple[str, CappedQueue]]:
    for one in objects:
        if one["kind"] != "Queue":
            continue
        spec, name, at = section(one, "spec"), name_of(one), f"{where}: Queue {name_of(one)}"
        if str(one.get("apiVersion")).startswith("scheduling.volcano.sh/"):
            amounts = section(spec, "capability")
            resource = next((key for key in amounts if is_gpu(key)), "")
            most = whole(amounts[resource], resource, at) if resource else -1
            above = str(spec.get("parent") or "")
            state = section(one, "status").get("state")
            yield name, CappedQueue(
                kind=VOLCANO, resource=resource, most=most, parent=above,
                closed=state in ("Closed", "Closing"),
                weight=amount(spec.get("weight") or 1, "weight", at),
                reclaimable=spec.get("reclaimable") is not False,
            )  # fmt: skip
        elif str(one.get("apiVersion")).startswith("scheduling.run.ai/"):
            limit = section(spec, "resources", "gpu").get("limit")
            most = -1 if limit in (None, -1) else whole(limit, "limit", at)
            above = str(spec.get("parentQueue") or "")
            yield name, CappedQueue(kind=KAI, resource="gpu", most=most, parent=above)


def _named(objects: Sequence[dict[str, Any]], queues: Mapping[str, CappedQueue]) -> dict[str, str]:
    """The queue of each pod that names one, by itself or by its PodGroup."""
    groups = {
        name_of(one): str(section(one, "spec")["queue"])
        for one in objects
        if one["kind"] == "PodGroup" and section(one, "spec").get("queue")
    }
    projects, found = runai_namespaces(objects), {}
    for one in objects:
        if one["kind"] == "Pod":
            words = {
                **section(one, "metadata", "labels"),
                **section(one, "metadata", "annotations"),
            }
            group = words.get("scheduling.k8s.io/group-name") or words.get("pod-group-name")
            namespace = section(one, "metadata").get("namespace")
            own = yunikorn_queue_of(one, queues)
            own = own or next((str(words[name]) for name in NAMED if name in words
                               and (name != "project" or words[name] in queues)), "")  # fmt: skip
            own = own or groups.get(f"{namespace}/{group}", "")
            found[name_of(one)] = own or projects.get(str(namespace), "")
    return found


RUNAI = "runai"
_UNLIMITED = (None, -1, "-1")


def runai_projects(objects: Sequence[dict[str, Any]], where: str) -> dict[str, CappedQueue]:
    """The projects by name, and departments by theirs, of which projects say that they are part.

    Raises:
        InputError: A limit is no amount.
    """
    return {
        name_of(one): _of_project(section(one, "spec"), f"{where}: {one['kind']} {name_of(one)}")
        for kind in ("Department", "Project")  # of one name the project is what pods are in
        for one in objects
        if one["kind"] == kind and _is_of_runai(one)
    }


def runai_namespaces(objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The project that a namespace is of."""
    return {
        str(section(one, "status").get("namespace") or f"runai-{name_of(one)}"): name_of(one)
        for one in objects
        if one["kind"] == "Project" and _is_of_runai(one)
    }


def _is_of_runai(one: dict[str, Any]) -> bool:
    return str(one.get("apiVersion")).startswith("run.ai/")


def _of_project(spec: dict[str, Any], where: str) -> CappedQueue:
    """A project with the GPUs of all its node pools together, if each has a limit."""
    told = spec.get("resources")
    pools = mappings_in(told) if isinstance(told, list) else [section(spec, "resources")]
    limits = [section(pool, "gpu").get("limit", spec.get("maxAllowedGpus")) for pool in pools]
    known = [whole(limit, "limit", where) for limit in limits if limit not in _UNLIMITED]
    most = sum(known) if limits and len(known) == len(limits) else -1
    return CappedQueue(kind=RUNAI, resource="gpu", most=most, parent=str(spec.get("parent") or ""))


YUNIKORN = "yunikorn"
_CONFIG = "queues.yaml"
_QUEUE_WORDS = ("yunikorn.apache.org/queue", "queue")
"""Labels or annotations that name a pod's queue; the last one is old."""
_MOST_VALUES = 10**5


def yunikorn_queues(objects: Sequence[dict[str, Any]], where: str) -> dict[str, CappedQueue]:
    """The queues of YuniKorn by their whole name, `root.research`, with the most of their GPUs.

    Raises:
        InputError: The configuration is no YAML, or a limit no amount.
    """
    found: dict[str, CappedQueue] = {}
    for one in objects:
        text = section(one, "data").get(_CONFIG) if one["kind"] == "ConfigMap" else None
        if not isinstance(text, str):
            continue
        for _, told in parse_yaml(text, f"{where}: {_CONFIG}", most_values=_MOST_VALUES):
            partitions = told.get("partitions") if isinstance(told, dict) else None
            for partition in mappings_in(partitions):
                found |= dict(_below(partition, "", f"{where}: {_CONFIG}"))
    return found


def yunikorn_queue_of(pod: dict[str, Any], queues: Mapping[str, CappedQueue]) -> str:
    """The queue of a pod that YuniKorn places: the one it names, or its namespace's."""
    if section(pod, "spec").get("schedulerName") != YUNIKORN:
        return ""
    about = section(pod, "metadata")
    words = {**section(about, "labels"), **section(about, "annotations")}
    named = next((str(words[name]) for name in _QUEUE_WORDS if words.get(name)), "")
    named = named or f"root.{about.get('namespace')}"
    return named if named in queues or named.startswith("root.") else f"root.{named}"


def _below(above: dict[str, Any], parent: str, where: str) -> Iterator[tuple[str, CappedQueue]]:
    for one in mappings_in(above.get("queues")):
        name = f"{parent}.{one.get('name')}" if parent else str(one.get("name"))
        amounts = section(one, "resources", "max")
        resource = next((key for key in amounts if is_gpu(key)), "")
        most = whole(amounts[resource], resource, f"{where}: {name}") if resource else -1
        yield name, CappedQueue(kind=YUNIKORN, resource=resource, most=most, parent=parent)
        yield from _below(one, name, where)
