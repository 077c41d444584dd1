"""Nodes that an autoscaler wants and does not get: Karpenter's NodeClaims, ProvisioningRequests.

Source: Karpenter documentation, "NodeClaims" (conditions Launched, Registered, Initialized).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.queue.doctor.state import ToldReason
from ridgeline.queue.readers.kube_pods import is_gpu, name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section

ANY_POD = ""
"""Stands for a pod's name where a node is for no pod in particular."""
_STEPS = ("Launched", "Registered", "Initialized", "Provisioned")
_LONGEST = 160


def unlaunched(objects: Sequence[dict[str, Any]]) -> dict[str, ToldReason]:
    """Why nodes with GPUs that were asked for do not come."""
    for one in objects:
        if one["kind"] not in ("NodeClaim", "ProvisioningRequest") or not _has_gpus(one):
            continue
        for told in mappings_in(section(one, "status").get("conditions")):
            failed = str(told.get("type")) in _STEPS and told.get("status") != "True"
            failed = failed or (told.get("type") == "Failed" and told.get("status") == "True")
            message = str(told.get("message") or "").strip()
            if failed and message and _is_failure(told):
                said = f"{one['kind']} {name_of(one)}: {message[:_LONGEST]}"
                return {ANY_POD: ToldReason(way="not_added", said=said)}
    return {}


def _is_failure(told: dict[str, Any]) -> bool:
    """Whether a step failed; one that is under way says that it is unknown yet."""
    text = f"{told.get('reason')} {told.get('message')}"
    return any(word in text for word in ("Fail", "fail", "nsufficient", "error", "xceed"))


def _has_gpus(one: dict[str, Any]) -> bool:
    if one["kind"] == "ProvisioningRequest":
        return True
    return any(is_gpu(name) for name in section(one, "spec", "resources", "requests"))
