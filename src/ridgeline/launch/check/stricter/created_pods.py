"""What the API server refuses only when a controller creates the pods of a custom resource.

Inside JobSet, TrainJob, RayJob and the like the server accepts pod templates that it would refuse
as pods (measured on kube-apiserver 1.36.2): the object is taken and nothing ever runs. So the
server's own rules for pods are asked here of every template, each sort of defect under its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.launch.check.containers import may_overcommit
from ridgeline.launch.check.fields import Fields, entries, section
from ridgeline.launch.check.pods import RESTART_POLICIES, check_pod_spec
from ridgeline.launch.check.stricter.workload import (
    RUNTIME_KINDS,
    BrokenRule,
    PodSet,
    PodWorkload,
    is_patch,
)
from ridgeline.launch.check.verdict import ManifestProblem, Problems
from ridgeline.records.kube_quantity import parse_quantity

_JOB_TEMPLATES = ("replicatedJobs", "submitterPodTemplate")
"""Fields below which a template becomes the pods of a batch/v1 Job."""

_ELSEWHERE = re.compile(r"\.resources\.(requests|limits)|restartPolicy$|volumeMounts\[\d+\]\.name$")
"""Fields that the named rules below speak about."""


def _refusals(pod: PodSet) -> list[ManifestProblem]:
    problems = Problems()
    check_pod_spec(Fields(pod.spec, pod.path, problems))
    return problems.found


def _unequal(workload: PodWorkload) -> Iterator[BrokenRule]:
    for path, block in _custom_blocks(workload):
        limits, requests = section(block, "limits"), section(block, "requests")
        for name in limits.keys() & requests.keys():
            first, second = parse_quantity(requests[name]), parse_quantity(limits[name])
            if first != second and (not may_overcommit(name)):
                yield BrokenRule(
                    f"{path}.requests[{name}]",
                    f"asks for {requests[name]} but its limit is {limits[name]}",
                    f"give {name} the same request and limit",
                )
            elif first is not None and second is not None and first > second:
                yield BrokenRule(
                    f"{path}.requests[{name}]",
                    f"asks for {requests[name]}, more than its limit of {limits[name]}",
                    f"lower the request of {name}, or raise its limit",
                )


def _fractions(workload: PodWorkload) -> Iterator[BrokenRule]:
    for path, block in _custom_blocks(workload):
        for part in ("limits", "requests"):
            for name, value in section(block, part).items():
                amount = parse_quantity(value)
                if amount is not None and amount.denominator != 1 and not may_overcommit(name):
                    yield BrokenRule(
                        f"{path}.{part}[{name}]",
                        f"{value} of a device that is only handed out whole",
                        "ask for whole devices; to share one use MIG, MPS or time-slicing",
                    )


def _no_limit(workload: PodWorkload) -> Iterator[BrokenRule]:
    for path, block in _custom_blocks(workload):
        for name in section(block, "requests").keys() - section(block, "limits").keys():
            # A patch may rely on the limit of what it is laid over.
            if not may_overcommit(name) and not is_patch(path):
                yield BrokenRule(
                    f"{path}.limits",
                    f"{name} is requested without a limit",
                    f"set limits[{name}] to {section(block, 'requests')[name]}",
                )


def _custom_blocks(workload: PodWorkload) -> list[tuple[str, dict[str, object]]]:
    return [(path, dict(b)) for path, b in workload.resource_blocks] if workload.custom else []


def _missing_volumes(workload: PodWorkload) -> Iterator[BrokenRule]:
    for pod in workload.pods if workload.custom else ():
        known = {volume.get("name") for volume in entries(pod.spec, "volumes")}
        known |= _claimed_volumes(pod)
        for path, container in pod.containers:
            for index, mount in enumerate(entries(container, "volumeMounts")):
                if mount.get("name") not in known:
                    yield BrokenRule(
                        f"{path}.volumeMounts[{index}].name",
                        f"mounts {mount.get('name')!r}, and the pod has no such volume",
                        f"add a volume of that name to {pod.path}.volumes",
                    )


def _claimed_volumes(pod: PodSet) -> set[str | None]:
    """Volumes that a controller adds: JobSet's volumeClaimPolicies, Volcano's Job volumes."""
    names: set[str | None] = set()
    for _, holder in pod.holders:
        for policy in holder.get("volumeClaimPolicies") or ():
            names |= {section(t, "metadata").get("name") for t in entries(policy, "templates")}
    return names


def _restart_policies(workload: PodWorkload) -> Iterator[BrokenRule]:
    for pod in workload.pods if workload.custom else ():
        policy, field = pod.spec.get("restartPolicy"), f"{pod.path}.restartPolicy"
        if policy and policy not in RESTART_POLICIES:
            yield BrokenRule(field, f"{policy!r} is no restart policy", "use Never or OnFailure")
        elif policy == "Always" and any(pod.under(key) for key in _JOB_TEMPLATES):
            yield BrokenRule(
                field,
                "these pods belong to a Job, and a Job may not have Always",
                "use Never (the job restarts them together) or OnFailure",
            )


def _refused(workload: PodWorkload) -> Iterator[BrokenRule]:
    for pod in workload.pods if workload.custom else ():
        for problem in _refusals(pod):
            filled_in = workload.kind in RUNTIME_KINDS and problem.field.endswith(".image")
            if not _ELSEWHERE.search(problem.field) and not filled_in:
                yield BrokenRule(problem.field, problem.message, problem.cure)
        for path, block in ((f"{p}.resources", section(c, "resources")) for p, c in pod.containers):
            for part in ("limits", "requests"):
                for name, value in section(block, part).items():
                    amount = parse_quantity(value)
                    if amount is not None and amount < 0:
                        yield BrokenRule(
                            f"{path}.{part}[{name}]", f"{value} is negative", "ask for 0 or more"
                        )


CHECKS = {
    "gpu-requests-differ": _unequal,
    "gpu-fraction": _fractions,
    "gpu-limit-missing": _no_limit,
    "missing-volume": _missing_volumes,
    "restart-policy": _restart_policies,
    "pod-refused": _refused,
}
