"""Which nodes admit a pod, whatever is free there: taints, labels, pods to be near to or far from.

The rules are kube-scheduler's filters TaintToleration, NodeAffinity and InterPodAffinity
(Kubernetes documentation, "Assigning Pods to Nodes", "Taints and Tolerations"); what is merely
preferred keeps no pod off a node, and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]
RESOURCE = "resource "
"""How keys of demands begin that are for the name of a resource, and no label."""
HARD = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods off a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """What a node keeps pods off with."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerated:
    """A taint that a pod stands."""

    key: str = ""
    """The taint's key; empty with `Exists`, it is every taint."""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    """The taint's effect; empty, it is every effect."""

    def covers(self, taint: Taint) -> bool:
        """Whether the taint keeps the pod off no longer.

        >>> Tolerated(key="gpu", operator="Exists").covers(Taint(key="gpu", value="yes"))
        True
        """
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One demand on labels."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Labels) -> bool:
        """Whether labels are as demanded.

        >>> Requirement(key="zone", operator="NotIn", values=("a",)).holds({})
        True
        """
        value = labels.get(self.key)
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        if self.operator == "NotIn":
            return value not in self.values
        if self.operator == "In":
            return value in self.values
        return _compares(value, self.operator, self.values)


def _compares(value: str | None, operator: str, values: tuple[str, ...]) -> bool:
    """Gt and Lt, of whole numbers; any other operator holds nowhere."""
    try:
        number, limit = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > limit if operator == "Gt" else operator == "Lt" and number < limit


Term = tuple[Requirement, ...]
"""Demands that hold together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTerm:
    """Pods that a pod must be near to, or far from."""

    wanted: Term
    """Demands on the other pods' labels."""
    namespaces: tuple[str, ...]
    """Where the other pods are; empty: everywhere."""
    topology: str
    """The label of nodes within whose equal values pods count as near."""

    def means(self, namespace: str, labels: Labels) -> bool:
        """Whether a pod is one of those."""
        return (not self.namespaces or namespace in self.namespaces) and all(
            one.holds(labels) for one in self.wanted
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """All that decides on which nodes a pod may be."""

    tolerated: tuple[Tolerated, ...] = ()
    selector: Term = ()
    """Demands of the node selector."""
    terms: tuple[Term, ...] = ()
    """The terms of node affinity, of which one holds; without any, all nodes will do."""
    near: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()

    def keeps_off(self, labels: Labels, taints: Iterable[Taint]) -> str:
        """Why a node does not admit the pod; empty: it does."""
        for taint in taints:
            hard = taint.effect in HARD
            if hard and not any(one.covers(taint) for one in self.tolerated):
                return f"taint {taint.key}"
        for one in self.selector:
            if not one.holds(labels):
                return one.key if one.key.startswith(RESOURCE) else f"label {one.key}"
        if self.terms and not any(all(one.holds(labels) for one in term) for term in self.terms):
            return f"label {self.terms[0][0].key}" if self.terms[0] else "an empty affinity"
        return ""
