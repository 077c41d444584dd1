"""Sound manifests that the tests break in one place each."""

from __future__ import annotations

import copy
import gzip
import json
import re
from importlib import resources
from typing import Any

from ridgeline.launch.check import Document, ManifestVerdict, check_manifests
from ridgeline.launch.check.catalogue import core_kinds


def shipped_kinds() -> list[str]:
    """Every kind that there is a schema for, as `apiVersion/kind`."""
    found = ["/".join(key) for key in core_kinds()]
    for file in resources.files("ridgeline.launch.check").joinpath("schemas").iterdir():
        if file.name.startswith("crd_"):
            spec = json.loads(gzip.decompress(file.read_bytes()))["spec"]
            names = (version["name"] for version in spec["versions"])
            found += [f"{spec['group']}/{name}/{spec['names']['kind']}" for name in names]
    return sorted(found)


def container() -> dict[str, Any]:
    return {
        "name": "worker",
        "image": "example.com/torch:2.13",
        "command": ["torchrun", "--nproc-per-node=8", "--rdzv-backend=c10d", "train.py"],
        "resources": {
            "requests": {"cpu": "32", "nvidia.com/gpu": "8"},
            "limits": {"nvidia.com/gpu": "8"},
        },
        "env": [{"name": "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "value": "600"}],
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "checkpoints", "mountPath": "/checkpoints"},
        ],
    }


def pod_spec() -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        "priorityClassName": "training",
        "containers": [container()],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}},
        ],
    }


def job_set() -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "gpt", "labels": {"kueue.x-k8s.io/queue-name": "research"}},
        "spec": {
            "failurePolicy": {"maxRestarts": 10},
            "replicatedJobs": [
                {
                    "name": "workers",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            "parallelism": 4,
                            "completions": 4,
                            "backoffLimit": 0,
                            "template": {"spec": pod_spec()},
                        },
                    },
                },
            ],
        },
    }


def job() -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "gpt"},
        "spec": {"template": {"spec": pod_spec()}},
    }


def volcano_job() -> dict[str, Any]:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "gpt"},
        "spec": {
            "minAvailable": 4,
            "tasks": [{"name": "workers", "replicas": 4, "template": {"spec": pod_spec()}}],
        },
    }


def ray_cluster() -> dict[str, Any]:
    def group() -> dict[str, Any]:
        spec = pod_spec()
        del spec["restartPolicy"]
        return {"rayStartParams": {}, "template": {"spec": spec}}

    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray", "labels": {"kueue.x-k8s.io/queue-name": "research"}},
        "spec": {
            "headGroupSpec": group(),
            "workerGroupSpecs": [
                {**group(), "groupName": "gpu", "replicas": 2, "minReplicas": 1, "maxReplicas": 4},
            ],
        },
    }


JOB_SET_POD = "spec.replicatedJobs[0].template.spec.template.spec"

_STEP = re.compile(r"([^.\[\]]+)|\[([^\]]+)\]")


def changed(manifest: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one field set; `...` removes it. Keys with dots stand in brackets."""
    found = copy.deepcopy(manifest)
    steps = [
        int(index) if index.isdigit() else (name or index) for name, index in _STEP.findall(path)
    ]
    at: Any = found
    for step in steps[:-1]:
        at = at[step] if isinstance(step, int) else at.setdefault(step, {})
    if value is ...:
        del at[steps[-1]]
    else:
        at[steps[-1]] = value
    return found


def verdict(manifest: Any) -> ManifestVerdict:
    (found,) = check_manifests([Document("test:1", manifest)])
    return found


def named(manifest: Any) -> set[tuple[str, str]]:
    """Field and reason (or rule) of every problem."""
    return {
        (p.field, p.reason if p.rule == "server" else p.rule) for p in verdict(manifest).problems
    }
