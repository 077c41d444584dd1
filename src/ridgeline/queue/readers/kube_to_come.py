"""Pods that workloads are to have and have not yet: queues hold the workloads back as a whole.

Kueue suspends a job until its Workload is admitted, and Volcano makes no pods before their PodGroup
may enter its queue. What they wait for stands in the template, or in the group's least resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.state import LivePod
from ridgeline.queue.readers.kube_pods import QUEUE_LABEL, VOLCANO_GROUP, name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section
from ridgeline.queue.readers.kube_templates import OF_KUEUE, pod_specs
from ridgeline.queue.readers.kube_told import TO_COME, given_up, refused_workloads, unready_checks

OF_VOLCANO = "scheduling.volcano.sh/"
_ADMISSION = "kueue.x-k8s.io/admission"
_MANY = 4096
"""No more pods are made of one template."""


def pods_to_come(objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Objects like those of the pods, each with a gate or its group."""
    there = Counter(
        f"{section(one, 'metadata').get('namespace', '')}/{owner.get('name')}"
        for one in objects
        if one["kind"] == "Pod"
        for owner in mappings_in(section(one, "metadata").get("ownerReferences"))
    )
    owners = set(there)
    groups = {
        f"{section(one, 'metadata').get('namespace', '')}/{words[VOLCANO_GROUP]}"
        for one in objects
        if one["kind"] == "Pod"
        and VOLCANO_GROUP in (words := section(one, "metadata", "annotations"))
    }
    accounts = {owner for one in objects if _is_workload(one) for _, owner in _owners(one)}
    refused = refused_workloads(objects)
    found: list[dict[str, Any]] = []
    for one in objects:
        if _is_workload(one):
            own = _owners(one)
            alone = all(kind != "Pod" and name not in owners for kind, name in own)
            found += _of_workload(one) if alone and _waits_for_admission(one) else ()
        elif _is_suspended(one) and name_of(one) not in accounts | owners:
            found += _of_job(one)
        elif (one["kind"], name_of(one)) in refused and _wants_pods(one):
            found += _lacking(one, there[name_of(one)])
        elif _is_pending_group(one) and name_of(one) not in groups:
            found += _of_group(one)
    return found


def in_queues_of_their_jobs(
    pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]
) -> list[LivePod]:
    """The pods, each in the queue that its job names where it names none itself.

    With the priority of its Workload, which is its own account of a job, a pod, or pods to come.
    """
    named: dict[str, str] = {}
    priorities: dict[str, int] = {}
    for one in objects:
        if _is_workload(one):
            queue = str(section(one, "spec").get("queueName") or "")
            named |= {owner: queue for kind, owner in _owners(one) if kind != "Pod"}
            told = section(one, "spec").get("priority")
            owners = [name_of(one), *(owner for _, owner in _owners(one))]
            priorities |= dict.fromkeys(owners, told if isinstance(told, int) else 0)
        elif one["kind"] != "Pod" and QUEUE_LABEL in section(one, "metadata", "labels"):
            named[name_of(one)] = str(section(one, "metadata", "labels")[QUEUE_LABEL])

    def placed(pod: LivePod) -> LivePod:
        workload = pod.workload.partition(" ")[2]
        account = pod.name.partition(TO_COME)[0]
        return replace(
            pod,
            quota=pod.quota or named.get(workload, ""),
            queue_priority=priorities.get(account, priorities.get(workload, 0)),
        )

    return [placed(pod) for pod in pods]


def _is_workload(one: dict[str, Any]) -> bool:
    return one["kind"] == "Workload" and str(one.get("apiVersion")).startswith(OF_KUEUE)


def _owners(one: dict[str, Any]) -> list[tuple[str, str]]:
    """Kinds of an object's owners, and their names after its namespace."""
    about = section(one, "metadata")
    return [
        (str(owner.get("kind")), f"{about.get('namespace', '')}/{owner.get('name')}")
        for owner in mappings_in(about.get("ownerReferences"))
    ]


def _waits_for_admission(one: dict[str, Any]) -> bool:
    status = section(one, "status")
    reached = {
        str(c.get("type"))
        for c in mappings_in(status.get("conditions"))
        if c.get("status") == "True"
    }
    active = section(one, "spec").get("active") is not False or bool(given_up(one))
    if reached & {"Admitted", "Finished"} or not active:
        return False
    return not section(status, "admission") or bool(unready_checks(one))


def _wants_pods(one: dict[str, Any]) -> bool:
    """Whether a workload is to have pods still: it is not ended, suspended or scaled to none."""
    spec, status = section(one, "spec"), section(one, "status")
    ended = any(
        c.get("type") in ("Complete", "Failed", "Succeeded") and c.get("status") == "True"
        for c in mappings_in(status.get("conditions"))
    )
    none = spec.get("suspend") is True or 0 in (spec.get("replicas"), spec.get("parallelism"))
    return not ended and not none


def _is_suspended(one: dict[str, Any]) -> bool:
    """Whether Kueue holds a job back of which no Workload was given."""
    spec = section(one, "spec")
    suspended = spec.get("suspend") is True or section(spec, "runPolicy").get("suspend") is True
    return suspended and QUEUE_LABEL in section(one, "metadata", "labels")


def _is_pending_group(one: dict[str, Any]) -> bool:
    of_volcano = str(one.get("apiVersion")).startswith(OF_VOLCANO)
    phase = section(one, "status").get("phase")
    return of_volcano and one["kind"] == "PodGroup" and phase in ("Pending", "", None)


def _of_workload(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec = section(one, "spec")
    parts = [
        (_count(part.get("count")), section(part, "template", "spec"))
        for part in mappings_in(spec.get("podSets"))
    ]
    yield from _gated(one, str(spec.get("queueName") or ""), parts)


def _of_job(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    queue = str(section(one, "metadata", "labels")[QUEUE_LABEL])
    yield from _gated(one, queue, list(pod_specs(one.get("spec"), 1)))


def _lacking(one: dict[str, Any], there: int) -> Iterator[dict[str, Any]]:
    """The pods that a workload is to have beside those that are there, of one template if any."""
    parts = list(pod_specs(one.get("spec"), 1))
    if not there:
        yield from _gated(one, "", parts)
    elif len(parts) == 1 and parts[0][0] > there:
        yield from _gated(one, "", [(parts[0][0] - there, parts[0][1])])


def _gated(
    one: dict[str, Any], queue: str, parts: Sequence[tuple[int, dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """The pods of a workload, which run all together."""
    job = (_owners(one) or [(one["kind"], name_of(one))])[0][1].rpartition("/")[2]
    together = sum(count for count, _ in parts) > 1
    words = {QUEUE_LABEL: queue} if queue else {}
    if together:
        words |= {"batch.kubernetes.io/job-completion-index": "0", "job-name": job}
    for part, (count, spec) in enumerate(parts):
        for number in range(min(count, _MANY)):
            yield _pod(
                one, f"{name_of(one).rpartition('/')[2]}{TO_COME}{part}.{number}",
                {**spec, "schedulingGates": [{"name": _ADMISSION}]}, labels=words,
            )  # fmt: skip


def _of_group(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec, name = section(one, "spec"), name_of(one).rpartition("/")[2]
    least = section(spec, "minResources")
    members = max(1, _count(spec.get("minMember")))
    # What they ask for each is not told: one asks for all of it.
    shares = [least, *({} for _ in range(min(members, _MANY) - 1))]
    if all((isinstance(v, int) and v % members == 0) or (str(v).isdigit() and int(v) % members == 0)
           for v in least.values()):  # fmt: skip
        shares = [{key: int(v) // members for key, v in least.items()}] * min(members, _MANY)
    for number, share in enumerate(shares):
        requests = {key.removeprefix("requests."): value for key, value in share.items()}
        spec_of_pod = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
        yield _pod(one, f"{name}{TO_COME}{number}", spec_of_pod, annotations={
            VOLCANO_GROUP: name, "volcano.sh/queue-name": str(spec.get("queue") or "default"),
        })  # fmt: skip


def _pod(
    one: dict[str, Any],
    name: str,
    spec: dict[str, Any],
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    about = section(one, "metadata")
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": str(about.get("namespace") or ""),
            "labels": labels or {}, "annotations": annotations or {},
            "creationTimestamp": about.get("creationTimestamp"),
        },
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
    }  # fmt: skip


def _count(found: object) -> int:
    return found if isinstance(found, int) and found > 0 else 1
