"""Kinds of GPU on Kubernetes: the labels by which nodes tell them and pods insist on them."""

from __future__ import annotations

from ridgeline.queue.doctor.constraints import Constraints, Term

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
