"""What the API server refuses: one planted defect each, with the field and reason it names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.launch.check import manifests
from tests.launch.check.manifests import changed, named, verdict

POD = "spec.template.spec"


def deployment() -> dict[str, Any]:
    pod = {k: v for k, v in manifests.pod_spec().items() if k != "restartPolicy"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {
            "selector": {"matchLabels": {"app": "serve"}},
            "template": {"metadata": {"labels": {"app": "serve"}}, "spec": pod},
        },
    }


def cron_job() -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"schedule": "0 2 * * *", "jobTemplate": {"spec": manifests.job()["spec"]}},
    }


def service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "serve"},
        "spec": {"selector": {"app": "serve"}, "ports": [{"port": 80}]},
    }


def claim() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "checkpoints"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Ti"}},
        },
    }


def autoscaler() -> dict[str, Any]:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "serve"},
        "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "serve"},
            "minReplicas": 1,
            "maxReplicas": 4,
        },
    }


def budget() -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "serve"},
        "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "serve"}}},
    }


def role() -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    }


def role_binding() -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "me", "namespace": "default"}],
    }


def priority() -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "training"},
        "value": 1000,
    }


def devices() -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": 8}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    }


def gang() -> dict[str, Any]:
    policy = {"gang": {"minCount": 4}}
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "Workload",
        "metadata": {"name": "gpt"},
        "spec": {"podGroupTemplates": [{"name": "workers", "schedulingPolicy": policy}]},
    }


def stateful() -> dict[str, Any]:
    return {**deployment(), "kind": "StatefulSet"}


SOUND = [
    manifests.job,
    manifests.job_set,
    manifests.volcano_job,
    manifests.ray_cluster,
    deployment,
    stateful,
    cron_job,
    service,
    claim,
    autoscaler,
    budget,
    role,
    role_binding,
    priority,
    devices,
    gang,
]


@pytest.mark.parametrize("make", SOUND, ids=lambda make: make.__name__)
def test_a_sound_manifest_passes_without_a_word(make):
    assert verdict(make()).known
    assert named(make()) == set()


C = f"{POD}.containers[0]"
DEFECTS = [
    (manifests.job, "metadata.name", "My_Job", "metadata.name", "Invalid"),
    (manifests.job, "metadata.name", ..., "metadata.name", "Required"),
    (manifests.job, "metadata.name", "a" * 64, "spec.template.labels", "Invalid"),
    (manifests.job, "metadata.labels", {"a": "x" * 64}, "metadata.labels", "Invalid"),
    (manifests.job, "metadata.labels", {"a": 1}, "metadata.labels[a]", "TypeInvalid"),
    (manifests.job, "spec.paralelism", 2, "spec.paralelism", "unknown field"),
    (manifests.job, "spec.parallelism", "2", "spec.parallelism", "TypeInvalid"),
    (manifests.job, "spec.parallelism", 2**31, "spec.parallelism", "TypeInvalid"),
    (manifests.job, "spec.parallelism", -1, "spec.parallelism", "Invalid"),
    (manifests.job, "spec.completionMode", "Indexed", "spec.completions", "Required"),
    (manifests.job, "spec.backoffLimitPerIndex", 1, "spec.backoffLimitPerIndex", "Invalid"),
    (manifests.job, f"{POD}.restartPolicy", "Always", f"{POD}.restartPolicy", "Required"),
    (manifests.job, f"{POD}.restartPolicy", ..., f"{POD}.restartPolicy", "Required"),
    (manifests.job, f"{POD}.restartPolicy", "Maybe", f"{POD}.restartPolicy", "NotSupported"),
    (manifests.job, f"{POD}.containers", [], f"{POD}.containers", "Required"),
    (manifests.job, f"{C}.image", ..., f"{C}.image", "Required"),
    (manifests.job, f"{C}.name", "Worker", f"{C}.name", "Invalid"),
    (manifests.job, f"{C}.env[0].value", 600, f"{C}.env[0].value", "TypeInvalid"),
    (manifests.job, f"{C}.env[0].valueFrom", {}, f"{C}.env[0].valueFrom", "Invalid"),
    (manifests.job, f"{C}.volumeMounts[0].name", "no", f"{C}.volumeMounts[0].name", "NotFound"),
    (
        manifests.job,
        f"{C}.volumeMounts[0].mountPath",
        "/checkpoints",
        f"{C}.volumeMounts[1].mountPath",
        "Invalid",
    ),
    (
        manifests.job,
        f"{C}.resources.limits",
        {"nvidia.com/gpu": "0.5"},
        f"{C}.resources.limits[nvidia.com/gpu]",
        "Invalid",
    ),
    (
        manifests.job,
        f"{C}.resources.limits",
        {"nvidia.com/gpu": 4},
        f"{C}.resources.requests",
        "Invalid",
    ),
    (manifests.job, f"{C}.resources.limits", ..., f"{C}.resources.limits", "Required"),
    (
        manifests.job,
        f"{C}.resources.requests.cpu",
        "lots",
        f"{C}.resources.requests[cpu]",
        "TypeInvalid",
    ),
    (manifests.job, f"{C}.resources.limits.cpu", 8, f"{C}.resources.requests", "Invalid"),
    (manifests.job, f"{C}.resources.limits.gpu", 8, f"{C}.resources.limits[gpu]", "Invalid"),
    (
        manifests.job,
        f"{C}.ports",
        [{"containerPort": 0}],
        f"{C}.ports[0].containerPort",
        "Required",
    ),
    (
        manifests.job,
        f"{C}.ports",
        [{"containerPort": 70000}],
        f"{C}.ports[0].containerPort",
        "Invalid",
    ),
    (manifests.job, f"{C}.livenessProbe", {}, f"{C}.livenessProbe", "Required"),
    (
        manifests.job,
        f"{C}.livenessProbe",
        {"exec": {"command": ["true"]}, "periodSeconds": -1},
        f"{C}.livenessProbe.periodSeconds",
        "Invalid",
    ),
    (manifests.job, f"{POD}.volumes[1].name", "shm", f"{POD}.volumes[1].name", "Duplicate"),
    (
        manifests.job,
        f"{POD}.volumes[1].emptyDir",
        {},
        f"{POD}.volumes[1].emptyDir",
        "Forbidden",
    ),
    (
        manifests.job,
        f"{POD}.tolerations",
        [{"operator": "Equal", "value": "x"}],
        f"{POD}.tolerations[0].operator",
        "Invalid",
    ),
    (
        manifests.job,
        f"{POD}.topologySpreadConstraints",
        [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        f"{POD}.topologySpreadConstraints[0].maxSkew",
        "Invalid",
    ),
    (cron_job, "spec.schedule", "0 25 * * *", "spec.schedule", "Invalid"),
    (cron_job, "spec.schedule", ..., "spec.schedule", "Required"),
    (deployment, "spec.selector", ..., "spec.selector", "Required"),
    (
        deployment,
        "spec.template.metadata.labels.app",
        "other",
        "spec.template.metadata.labels",
        "Invalid",
    ),
    (deployment, f"{POD}.restartPolicy", "Never", f"{POD}.restartPolicy", "NotSupported"),
    (stateful, "metadata.name", "a.b", "metadata.name", "Invalid"),
    (stateful, "spec.selector", {}, "spec.selector", "Invalid"),
    (service, "spec.ports", [], "spec.ports", "Required"),
    (service, "spec.ports[0].port", 0, "spec.ports[0].port", "Invalid"),
    (claim, "spec.accessModes", [], "spec.accessModes", "Required"),
    (claim, "spec.resources.requests", {}, "spec.resources[storage]", "Required"),
    (autoscaler, "spec.maxReplicas", 0, "spec.maxReplicas", "Invalid"),
    (budget, "spec.maxUnavailable", 1, "spec", "Invalid"),
    (role, "rules[0].verbs", [], "rules[0].verbs", "Required"),
    (role_binding, "roleRef.kind", "Rolle", "roleRef.kind", "NotSupported"),
    (role_binding, "subjects[0].namespace", ..., "subjects[0].namespace", "Required"),
    (priority, "value", 2_000_000_000, "value", "Forbidden"),
    (
        devices,
        "spec.spec.devices.requests[0].exactly.count",
        0,
        "spec.spec.devices.requests[0].exactly.count",
        "Invalid",
    ),
    (
        gang,
        "spec.podGroupTemplates[0].schedulingPolicy",
        {},
        "spec.podGroupTemplates[0].schedulingPolicy",
        "Invalid",
    ),
    (manifests.job_set, "spec.replicas", 1, "spec.replicas", "unknown field"),
    (
        manifests.job_set,
        "spec.replicatedJobs[0].replicas",
        -1,
        "spec.replicatedJobs[0].replicas",
        "Invalid",
    ),
    (
        manifests.job_set,
        "spec.replicatedJobs[0].replicas",
        "1",
        "spec.replicatedJobs[0].replicas",
        "TypeInvalid",
    ),
    (
        manifests.job_set,
        "spec.failurePolicy.rules",
        [{"action": "FailJobSet"}],
        "spec.failurePolicy.rules[0].name",
        "Required",
    ),
    (manifests.volcano_job, "spec.minAvailable", -1, "spec.minAvailable", "Invalid"),
]


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize(("make", "path", "value", "field", "reason"), DEFECTS)
def test_one_defect_is_rejected_at_its_field(make, path, value, field, reason):
    broken = changed(make(), path, value)
    assert not verdict(broken).accepted
    assert (field, reason) in named(broken)


def test_two_containers_of_one_name_are_duplicates():
    twice = [manifests.container(), manifests.container()]
    assert (f"{POD}.containers[1].name", "Duplicate") in named(
        changed(manifests.job(), f"{POD}.containers", twice),
    )
    # Inside a custom resource the schema's list map speaks, of the entry.
    broken = changed(manifests.job_set(), f"{manifests.JOB_SET_POD}.containers", twice)
    assert (f"{manifests.JOB_SET_POD}.containers[1]", "Duplicate") in named(broken)


def test_null_means_not_given():
    assert named(changed(manifests.job(), "spec.parallelism", None)) == set()
    assert verdict(changed(manifests.job_set(), "spec.failurePolicy.maxRestarts", None)).accepted


def test_a_kind_without_a_schema_is_called_unknown_and_not_judged():
    found = verdict({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {}})
    assert not found.known
    assert found.accepted
    assert found.problems == ()


def test_an_object_without_kind_is_rejected():
    assert ("kind", "Required") in named({"apiVersion": "v1"})


def test_a_mistyped_field_is_answered_with_the_nearest_name():
    (problem,) = verdict(changed(manifests.job(), "spec.paralelism", 2)).problems
    assert "parallelism" in problem.cure


def test_cel_rules_of_a_custom_resource_are_evaluated():
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "h200"},
        "spec": {"topologyName": "racks", "nodeLabels": {"gpu": "h200"}},
    }
    assert named(flavor) == set()
    assert named(changed(flavor, "spec.nodeLabels", {})) == {("spec", "Invalid")}
    assert named(changed(flavor, "spec.nodeLabels", ...)) == {("spec", "Invalid")}
