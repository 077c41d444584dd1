"""Kinds of GPU on Kubernetes: the labels by which nodes tell them and pods insist on them.

Pods may ask for GPUs by a name under which no node offers any. Time-slicing may rename
`nvidia.com/gpu` to `nvidia.com/gpu.shared` (`renameByDefault` of NVIDIA's device plugin), makers
and clouds have names of their own, and MIG has one for each profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.constraints import RESOURCE, Constraints, Requirement, Term
from ridgeline.queue.doctor.state import LivePod
from ridgeline.queue.readers.kube_pods import is_gpu, name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section

KIND_LABELS = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/model", "gpu.nvidia.com/class", "karpenter.k8s.aws/instance-gpu-name",
    "alibabacloud.com/gpu-card-model", "accelerator", "gpu-type", "gpu_type",
)  # fmt: skip
"""Labels of NVIDIA's and AMD's operators, GKE, CoreWeave and Karpenter, and what people write."""


def kinds_of(asked: Constraints) -> list[str]:
    """The kinds of GPU of which any will do for a pod; none: it does not insist on any.

    Of a node selector and required affinities. Kinds that they only exclude (NotIn) stand with `!`
    before them: what is left over the nodes tell.
    """
    found = _listed(asked.selector)
    of_terms = [_listed(term) for term in asked.terms]
    if of_terms and all(one is not None for one in of_terms):
        either = {kind for one in of_terms for kind in one or ()}
        found = either if found is None else found & either
    # Terms of an affinity are alternatives: excluded is what each of them excludes.
    excluded = [_excluded(term) for term in asked.terms]
    never = _excluded(asked.selector) | (set.intersection(*excluded) if excluded else set())
    if found is None:
        return sorted(f"!{kind}" for kind in never)
    return sorted(found - never)


def _excluded(term: Term) -> set[str]:
    """The kinds that a term excludes."""
    lists = (one.values for one in term if one.key in KIND_LABELS and one.operator == "NotIn")
    return {kind for values in lists for kind in values}


def _listed(term: Term) -> set[str] | None:
    """The kinds that a term lists; None: it lists none."""
    lists = [set(one.values) for one in term if one.key in KIND_LABELS and one.operator == "In"]
    return set.intersection(*lists) if lists else None


def bound_by_names(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> list[LivePod]:
    """The pods, of which those may be on no node that ask for GPUs by a name that none offers."""
    offered = {
        name
        for one in objects
        if one["kind"] == "Node"
        for kind in ("capacity", "allocatable")
        for name, amount in section(one, "status", kind).items()
        if is_gpu(name) and str(amount) != "0"
    }
    if not offered:
        return list(pods)
    lacking = {}
    for one in objects:
        if one["kind"] == "Pod":
            names = {
                name
                for container in mappings_in(section(one, "spec").get("containers"))
                for kind in ("limits", "requests")
                for name, amount in section(container, "resources", kind).items()
                if is_gpu(name) and str(amount) != "0"
            }
            if missing := sorted(names - offered):
                lacking[name_of(one)] = missing[0]
    said = ", ".join(sorted(offered))
    return [
        replace(pod, constraints=replace(pod.constraints, selector=(
            *pod.constraints.selector,
            Requirement(key=f"{RESOURCE}{lacking[pod.name]}, where nodes offer {said}",
                        operator="Exists"),
        )))
        if pod.name in lacking and not pod.node else pod
        for pod in pods
    ]  # fmt: skip
