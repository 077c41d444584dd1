"""Taints of a node, and what a pod says about where it may be, as Kubernetes writes them."""

from __future__ import annotations

from typing import Any

from ridgeline.queue.doctor.constraints import (
    Constraints,
    PodTerm,
    Requirement,
    Taint,
    Term,
    Tolerated,
)

_OF_THE_SYSTEM = "node.kubernetes.io/"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def taints_of(spec: dict[str, Any]) -> tuple[Taint, ...]:
    """A node's taints, without those by which Kubernetes says that it takes no pods at present."""
    return tuple(
        Taint(key=_text(one, "key"), value=_text(one, "value"), effect=_text(one, "effect"))
        for one in _dicts(spec.get("taints"))
        if not _text(one, "key").startswith(_OF_THE_SYSTEM)
    )


def constraints_of(spec: dict[str, Any], namespace: str) -> Constraints:
    """Tolerations, node selector, required affinities."""
    selector = spec.get("nodeSelector")
    affinity = _dict(spec.get("affinity"))
    node_terms = _dict(_dict(affinity.get("nodeAffinity")).get(_REQUIRED)).get("nodeSelectorTerms")
    return Constraints(
        tolerated=tuple(
            Tolerated(
                key=_text(one, "key"), operator=_text(one, "operator") or "Equal",
                value=_text(one, "value"), effect=_text(one, "effect"),
            )
            for one in _dicts(spec.get("tolerations"))
        ),
        selector=_equal(selector),
        terms=tuple(_requirements(one.get("matchExpressions")) for one in _dicts(node_terms)),
        near=_pod_terms(affinity.get("podAffinity"), namespace),
        apart=_pod_terms(affinity.get("podAntiAffinity"), namespace),
    )  # fmt: skip


def selects(selector: dict[str, Any], labels: dict[str, Any]) -> bool:
    """Whether a label selector means what has these labels."""
    named = {str(key): str(value) for key, value in labels.items()}
    wanted = _equal(selector.get("matchLabels")) + _requirements(selector.get("matchExpressions"))
    return all(one.holds(named) for one in wanted)


def _pod_terms(section: object, namespace: str) -> tuple[PodTerm, ...]:
    found = []
    for one in _dicts(_dict(section).get(_REQUIRED)):
        selector = _dict(one.get("labelSelector"))
        named = tuple(str(name) for name in one.get("namespaces") or ())
        # An empty selector of namespaces means all of them; another is not looked into.
        everywhere = isinstance(one.get("namespaceSelector"), dict)
        found.append(
            PodTerm(
                wanted=_equal(selector.get("matchLabels"))
                + _requirements(selector.get("matchExpressions")),
                namespaces=() if everywhere else named or (namespace,),
                topology=_text(one, "topologyKey"),
            )
        )
    return tuple(found)


def _equal(labels: object) -> Term:
    return tuple(
        Requirement(key=str(key), operator="In", values=(str(value),))
        for key, value in sorted(_dict(labels).items())
    )


def _requirements(expressions: object) -> Term:
    return tuple(
        Requirement(
            key=_text(one, "key"), operator=_text(one, "operator"),
            values=tuple(str(value) for value in one.get("values") or ()),
        )
        for one in _dicts(expressions)
    )  # fmt: skip


def _dict(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _dicts(found: object) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(one: dict[str, Any], key: str) -> str:
    return str(one.get(key) or "")
