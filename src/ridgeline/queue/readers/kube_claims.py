"""GPUs by dynamic resource allocation: devices in ResourceSlices, asked for by ResourceClaims.

A node has the devices that its driver's slices list, and a pod asks for those of its claims; a
claim that several pods share is counted with the first of them. Read are the forms of
`resource.k8s.io` from v1beta1 to v1. Source: Kubernetes documentation, "Dynamic Resource
Allocation".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.queue.readers.kube_pods import Claims, name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section

_DRIVERS = re.compile(
    r"(gpu|mig|vfio)\.(nvidia|amd|intel)\.com|tpu\.google\.com|neuron\.amazonaws\.com"
)
"""Drivers of GPUs, and the classes of devices that they come with."""
_PROFILE = re.compile(r"profile\W+==\s*['\"](\d+g\.\d+gb(?:[.+]me)?)")
"""A selector that wants one MIG profile."""


@dataclass(frozen=True, slots=True)
class Claimable:
    """What nodes have and pods claim beside what device plugins count."""

    gpus: Counter[str] = field(default_factory=Counter)
    """How many GPUs each node has."""
    models: dict[str, str] = field(default_factory=dict)
    """The product of a node's devices."""
    slices: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """MIG devices by node and profile."""
    claimed: Counter[str] = field(default_factory=Counter)
    """How many GPUs each pod asks for."""
    claimed_slices: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    selectors: dict[str, str] = field(default_factory=dict)
    """What the devices must be that a pod claims, in CEL."""
    classes: dict[str, bool] = field(default_factory=dict)
    """The DeviceClasses that were given, and whether they are of GPUs."""
    unknown: set[str] = field(default_factory=set)
    """Pods with claims that were not given."""

    def is_of_gpus(self, device_class: str) -> bool:
        """Whether devices of a class are GPUs; of one that is not there, as far as all are."""
        if _DRIVERS.fullmatch(device_class):
            return True
        missing = bool(self.classes) and all(self.classes.values())
        return self.classes.get(device_class, missing)

    def of_pod(self, name: str) -> Claims:
        """What a pod asks for by claims."""
        return Claims(
            self.claimed[name], self.claimed_slices.get(name, {}), self.selectors.get(name, "")
        )


def claimable(objects: Sequence[dict[str, Any]]) -> Claimable:
    """What slices list and claims ask for."""
    found = Claimable()
    claims: dict[str, dict[str, Any]] = {}
    templates: dict[str, dict[str, Any]] = {}
    for one in objects:
        if one["kind"] == "ResourceSlice":
            _list_devices(section(one, "spec"), found)
        elif one["kind"] == "DeviceClass":
            wanted = str(section(one, "spec").get("selectors"))
            found.classes[name_of(one)] = _DRIVERS.search(wanted) is not None
        elif one["kind"] == "ResourceClaim":
            claims[name_of(one)] = one
        elif one["kind"] == "ResourceClaimTemplate":
            templates[name_of(one)] = section(one, "spec")
    counted: set[str] = set()
    for pod in objects:
        if pod["kind"] == "Pod":
            for key, claim in _claims_of(pod, claims, templates):
                if not claim:
                    found.unknown.add(name_of(pod))
                elif key not in counted:
                    counted.add(key)
                    _count(claim, name_of(pod), found)
    return found


def allocated_gpus(claim: dict[str, Any]) -> int:
    """GPUs that a ResourceClaim was given."""
    results = mappings_in(section(claim, "status", "allocation", "devices").get("results"))
    return sum(_DRIVERS.fullmatch(str(one.get("driver"))) is not None for one in results)


def _list_devices(spec: dict[str, Any], found: Claimable) -> None:
    node = str(spec.get("nodeName") or "")
    if not node or not _DRIVERS.fullmatch(str(spec.get("driver"))):
        return
    for device in mappings_in(spec.get("devices")):
        about = section(device, "basic") or device
        attributes = section(about, "attributes")
        profile = _attribute(attributes, "profile")
        if profile:
            found.slices[node][profile] += 1
        else:
            found.gpus[node] += 1
            if product := _attribute(attributes, "productName"):
                found.models[node] = product


def _claims_of(
    pod: dict[str, Any], claims: Mapping[str, dict[str, Any]], templates: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """The claims of a pod, each under a name of its own; of one not made yet, its template."""
    namespace = str(section(pod, "metadata").get("namespace") or "")
    made = {
        str(one.get("name")): one.get("resourceClaimName")
        for one in mappings_in(section(pod, "status").get("resourceClaimStatuses"))
    }
    found = []
    for one in mappings_in(section(pod, "spec").get("resourceClaims")):
        name = one.get("resourceClaimName") or made.get(str(one.get("name")))
        template = templates.get(f"{namespace}/{one.get('resourceClaimTemplateName')}", {})
        key = f"{namespace}/{name}" if name else f"{name_of(pod)} {one.get('name')}"
        found.append((key, claims.get(key, template)))
    return found


def _count(claim: dict[str, Any], pod: str, found: Claimable) -> None:
    """Add what a claim asks for, or was given."""
    given: Counter[str] = Counter()
    for one in mappings_in(section(claim, "status", "allocation", "devices").get("results")):
        given[str(one.get("request"))] += _DRIVERS.fullmatch(str(one.get("driver"))) is not None
    for request in mappings_in(section(claim, "spec", "devices").get("requests")):
        exact = section(request, "exactly") or next(
            iter(mappings_in(request.get("firstAvailable"))), request
        )
        if not found.is_of_gpus(str(exact.get("deviceClassName"))):
            continue
        asked = exact.get("count")
        number = given[str(request.get("name"))] or (asked if isinstance(asked, int) else 1)
        wanted = [str(section(one, "cel").get("expression") or "")
                  for one in mappings_in(exact.get("selectors"))]  # fmt: skip
        if any(wanted):
            found.selectors[pod] = " and ".join(one for one in wanted if one)
        profile = _PROFILE.search(str(exact.get("selectors")))
        if profile:
            found.claimed_slices[pod][profile[1]] += number
        else:
            found.claimed[pod] += number


def _attribute(attributes: dict[str, Any], name: str) -> str:
    """The text of an attribute, whether its driver is named with it or not."""
    for key, value in attributes.items():
        if key.rpartition("/")[2] == name:
            return str(section({"value": value}, "value").get("string") or "")
    return ""
