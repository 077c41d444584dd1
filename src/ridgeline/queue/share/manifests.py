"""A plan as objects for Kubernetes: nodes that cut and share GPUs, pods that ask for parts.

MIG: the ConfigMap of mig-parted, which the GPU Operator's MIG manager applies to nodes by the label
`nvidia.com/mig.config` (mig-parted's documentation, "v1" configuration). MPS and time-slicing: the
ConfigMap of the NVIDIA device plug-in (its README, "Shared Access to GPUs"), chosen by the label
`nvidia.com/device-plugin.config`; shared GPUs get a resource name of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.queue.share.deal import SHARE_LABEL
from ridgeline.queue.share.workload import ServedWorkload
from ridgeline.records.queue_sharing import NodeKind, SharedWorkload, SharePlan

Manifest = dict[str, Any]
AsYaml = Callable[[list[Manifest]], str]
"""How documents are written as YAML."""
OPERATOR = "gpu-operator"
MIG_CONFIG, PLUGIN_CONFIG = "ridgeline-mig-parted-config", "ridgeline-device-plugin-config"


def gpu_configs(plan: SharePlan, as_yaml: AsYaml, *, gpus_per_node: int) -> list[Manifest]:
    """What the operator's MIG manager and the device plug-in are to read."""
    cut = [node for node in plan.nodes if node.mode == "mig"]
    shared = [node for node in plan.nodes if node.mode in ("mps", "time-slicing")]
    found = []
    if cut:
        configs: Manifest = {
            "all-disabled": [{"devices": "all", "mig-enabled": False}],
            **{node.node: _mig_devices(node, gpus_per_node) for node in cut},
        }
        text = as_yaml([{"version": "v1", "mig-configs": configs}])
        found.append(_config_map(MIG_CONFIG, {"config.yaml": text}))
    if shared or cut:
        plain: Manifest = {"version": "v1", "flags": {"migStrategy": "mixed"}}
        texts = {"default": as_yaml([plain])}
        for node in shared:
            sharing = {
                "timeSlicing" if node.mode == "time-slicing" else "mps": {
                    "renameByDefault": True,
                    "failRequestsGreaterThanOne": True,
                    "resources": [{"name": "nvidia.com/gpu", "replicas": _sharers(plan, node)}],
                }
            }
            texts[node.node] = as_yaml([{**plain, "sharing": sharing}])
        found.append(_config_map(PLUGIN_CONFIG, texts))
    return found


def _mig_devices(node: NodeKind, gpus_per_node: int) -> list[Manifest]:
    """GPUs of a node by index; those that the plan does not use stay whole."""
    entries: list[Manifest] = []
    first = 0
    for cut, count in node.cuts.items():
        parts: dict[str, int] = {}
        for term in cut.split("+"):
            number, _, profile = term.partition("x")
            parts[profile] = int(number)
        entries.append(
            {"devices": list(range(first, first + count)), "mig-enabled": True,
             "mig-devices": parts}
        )  # fmt: skip
        first += count
    if first < gpus_per_node:
        rest = list(range(first, gpus_per_node))
        entries.append({"devices": rest, "mig-enabled": False})
    return entries


def _sharers(plan: SharePlan, node: NodeKind) -> int:
    return next(len(gpu.parts) for gpu in plan.gpus if gpu.node == node.node)


def _config_map(name: str, data: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": OPERATOR},
        "data": dict(data),
    }


def deployments(
    plan: SharePlan, workloads: Sequence[ServedWorkload], *, namespace: str
) -> list[Manifest]:
    """Pods of the workloads that have an image, each with its part of a GPU."""
    images = {one.name: one.image for one in workloads}
    return [
        _deployment(one, images[one.workload], namespace)
        for one in plan.workloads
        if images[one.workload]
    ]


def _deployment(one: SharedWorkload, image: str, namespace: str) -> Manifest:
    labels = {"app.kubernetes.io/name": one.workload, "app.kubernetes.io/part-of": "ridgeline"}
    asked = {one.resource: str(one.gpus_per_replica)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": one.workload, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": one.replicas,
            "selector": {"matchLabels": {"app.kubernetes.io/name": one.workload}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {SHARE_LABEL: share_label(one)},
                    "tolerations": [
                        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
                    ],
                    "containers": [
                        {
                            "name": "server",
                            "image": image,
                            "resources": {"requests": dict(asked), "limits": dict(asked)},
                        }
                    ],
                },
            },
        },
    }


def share_label(one: SharedWorkload) -> str:
    """Which nodes have parts of its kind: by device and way of sharing."""
    device = one.device.lower()
    if one.mode in ("mig", "whole"):
        return f"{device}-{one.mode}"
    return f"{device}-{one.mode}-{one.part.partition('/')[2]}"


def label_lines(plan: SharePlan) -> list[str]:
    """The kubectl lines by which nodes take their configurations."""
    lines = [
        f"# {PLUGIN_CONFIG} and {MIG_CONFIG} are named once in the ClusterPolicy of the operator:",
        "#   spec.devicePlugin.config.name, spec.devicePlugin.config.default: default,",
        "#   spec.migManager.config.name, spec.mig.strategy: mixed",
        "# A node is drained before its GPUs are cut anew.",
    ]
    labels: dict[str, list[str]] = defaultdict(list)
    for node in plan.nodes:
        words = [f"{key}={value}" for key, value in node.labels.items()]
        labels[f"# {node.count} of {node.device}, {node.gpus} GPUs each"].append(
            f"kubectl label node NODE --overwrite {' '.join(words)}"
        )
    for title, commands in labels.items():
        lines += [title, *commands]
    return lines
