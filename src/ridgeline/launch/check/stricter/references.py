"""Names inside custom resources that must lead somewhere, and names that grow.

JobSet's own webhook refuses these; the API server alone does not, and without the webhook the job
set never makes progress (rules of jobset.x-k8s.io/v1alpha2 `jobset_webhook.go`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.launch.check.fields import entries, section
from ridgeline.launch.check.grammar import LABEL_LENGTH, dns_label
from ridgeline.launch.check.stricter.workload import BrokenRule, PodWorkload


def _unknown_jobs(workload: PodWorkload) -> Iterator[BrokenRule]:
    spec = section(workload.manifest, "spec")
    if workload.kind == "JobSet":
        jobs, key = entries(spec, "replicatedJobs"), "replicatedJobs"
    elif workload.api_version.startswith("batch.volcano.sh/"):
        jobs, key = entries(spec, "tasks"), "tasks"
    else:
        return
    names = {job.get("name") for job in jobs}
    wanted: list[tuple[str, object]] = []
    for index, job in enumerate(jobs):
        depends = job.get("dependsOn")
        if isinstance(depends, list):
            for number, entry in enumerate(entries(job, "dependsOn")):
                wanted.append((f"spec.{key}[{index}].dependsOn[{number}].name", entry.get("name")))
        elif isinstance(depends, dict):
            for number, name in enumerate(depends.get("name") or ()):
                wanted.append((f"spec.{key}[{index}].dependsOn.name[{number}]", name))
    for number, name in enumerate(section(spec, "successPolicy").get("targetReplicatedJobs") or ()):
        wanted.append((f"spec.successPolicy.targetReplicatedJobs[{number}]", name))
    for index, rule in enumerate(entries(section(spec, "failurePolicy"), "rules")):
        for number, name in enumerate(rule.get("targetReplicatedJobs") or ()):
            path = f"spec.failurePolicy.rules[{index}].targetReplicatedJobs[{number}]"
            wanted.append((path, name))
    for field, name in wanted:
        if name not in names:
            known = ", ".join(sorted(str(n) for n in names))
            yield BrokenRule(field, f"{name!r} is none of its jobs", f"use one of: {known}")


def _long_names(workload: PodWorkload) -> Iterator[BrokenRule]:
    """JobSet calls the hosts of its pods <set>-<job>-<job index>-<pod index>."""
    name = section(workload.manifest, "metadata").get("name") or ""
    if workload.kind != "JobSet":
        return
    for index, job in enumerate(entries(section(workload.manifest, "spec"), "replicatedJobs")):
        inner = section(section(job, "template"), "spec")
        last = max((job.get("replicas") or 1) - 1, 0)
        pods = inner.get("completions") or inner.get("parallelism") or 1
        host = f"{name}-{job.get('name')}-{last}-{max(pods - 1, 0)}"
        if name and len(host) > LABEL_LENGTH:
            yield BrokenRule(
                "metadata.name",
                f"its pods of spec.replicatedJobs[{index}] would be called {host}: "
                f"{len(host)} characters, at most {LABEL_LENGTH} are allowed",
                f"shorten the name by {len(host) - LABEL_LENGTH}",
            )
        elif name and dns_label(host):
            yield BrokenRule(
                "metadata.name" if dns_label(name) else f"spec.replicatedJobs[{index}].name",
                f"its pods would be called {host}: {dns_label(host)}",
                "use lowercase letters, digits and '-'",
            )


CHECKS = {
    "unknown-job": _unknown_jobs,
    "pod-name-length": _long_names,
}
