"""What nodes say of faults of their GPUs, by `kube_gpu_faults.toml`, and GPUs that never came up.

A node's daemons tell of faults by conditions, events and labels. Where the label that counts its
GPUs is there and no resource is, its driver or its device plugin does not run.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from ridgeline.queue.readers.kube_sections import mappings_in, section

_COUNT = "nvidia.com/gpu.count"
_PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
_HEALTHY_WHEN_TRUE = ("Ready", "Healthy", "OK")
_XID = re.compile(r"\bXid\b(?:\s*\([^)]*\)|\s+error|\s+code)*\s*[:=]?\s*(\d+)", re.IGNORECASE)
_DAEMON = re.compile(r"nvidia|gpu|amdgpu|device-plugin|habana", re.IGNORECASE)


def gpu_faults(objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The first fault that each node tells of, as a clause, by the node's name."""
    found: dict[str, str] = {}
    for name, fault in (*_conditions(objects), *_events(objects), *_labels(objects),
                        *_daemons(objects)):  # fmt: skip
        found.setdefault(name, fault)
    return found


def gpus_never_offered(node: dict[str, Any], *, claimed: bool) -> int:
    """GPUs that a node's label counts, of a node that offers no accelerator in any form.

    Args:
        node: The node's object.
        claimed: GPUs may be had by claims of which the state does not tell all.
    """
    labels = section(node, "metadata", "labels")
    offered = {**section(node, "status", "capacity"), **section(node, "status", "allocatable")}
    told = str(labels.get(_COUNT, ""))
    if claimed or labels.get(_PLUGIN) == "false" or not told.isdigit():
        return 0
    if any("/" in name and name.startswith("nvidia.com/") and str(amount) != "0"
           for name, amount in offered.items()):  # fmt: skip
        return 0
    return int(told)


def _conditions(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    words = re.compile(_known()["condition"]["words"])
    for one in objects:
        if one["kind"] != "Node":
            continue
        for told in mappings_in(section(one, "status").get("conditions")):
            kind, reason = str(told.get("type")), str(told.get("reason") or "")
            message = str(told.get("message") or "")
            bad = "False" if kind.endswith(_HEALTHY_WHEN_TRUE) else "True"
            if kind == "Ready" or told.get("status") != bad:
                continue
            if words.search(f"{kind} {reason} {message}") and _serious(message):
                yield _name(one), f"condition {kind} is {bad}: {message or reason}".strip(": ")


def _events(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for one in objects:
        about = section(one, "involvedObject") or section(one, "regarding")
        message = str(one.get("message") or one.get("note") or "")
        code = _XID.search(message)
        if one["kind"] == "Event" and about.get("kind") == "Node" and code and _serious(message):
            yield str(about.get("name")), f"Xid {code[1]}, {_known()['xid'][code[1]]}"


def _labels(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for one in objects:
        labels = section(one, "metadata", "labels") if one["kind"] == "Node" else {}
        for label, bad in _known()["labels"].items():
            if labels.get(label) in bad:
                wanted = labels.get(label.removesuffix(".state"))
                yield (
                    _name(one),
                    f"label {label} is {labels[label]}"
                    + (f", it was to be {wanted}" if wanted and label.endswith(".state") else ""),
                )


def _daemons(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Daemons for GPUs that wait instead of running."""
    for one in objects:
        owners = mappings_in(section(one, "metadata").get("ownerReferences"))
        of_daemon = any(owner.get("kind") == "DaemonSet" for owner in owners)
        if one["kind"] != "Pod" or not of_daemon or not _DAEMON.search(_name(one)):
            continue
        status, node = section(one, "status"), section(one, "spec").get("nodeName")
        for part in ("initContainerStatuses", "containerStatuses"):
            for told in mappings_in(status.get(part)):
                why = section(told, "state", "waiting").get("reason")
                if node and why and why not in ("PodInitializing", "ContainerCreating"):
                    yield str(node), f"its daemon {_name(one)} is in {why}"


def _serious(message: str) -> bool:
    """Whether no Xid is named, or one that is a fault of the GPU and not of a program."""
    code = _XID.search(message)
    return code is None or code[1] in _known()["xid"]


def _name(one: dict[str, Any]) -> str:
    return str(section(one, "metadata").get("name", ""))


@cache
def _known() -> dict[str, Any]:
    text = (files("ridgeline.queue.readers") / "kube_gpu_faults.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
