"""GPUs that pods hold and do not use, by what their objects say of themselves.

A container of the image `pause` keeps room for others; a LimitRange gives containers what they did
not ask for, and writes so into an annotation; what an init container asked for beyond the others is
kept until the pod ends; the controller of Kubeflow's notebooks notes when one was last in use.
Sources: Kubernetes documentation, "Limit Ranges" and "Init Containers"; Kubeflow, notebook
controller, culling.

Others hold GPUs which their own settings hide: an empty list of devices, or Ray's num-gpus.
Sources: CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES; KubeRay, rayStartParams.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ridgeline.queue.doctor.state import (
    DEFAULT,
    INIT,
    NOTEBOOK,
    PLACEHOLDER,
    SLEEPING,
    LivePod,
    UnusedGpus,
)
from ridgeline.queue.readers.kube_pods import is_gpu, name_of
from ridgeline.queue.readers.kube_sections import mappings_in, section, unix_seconds
from ridgeline.records.kube_quantity import parse_quantity

_ANNOTATION = "kubernetes.io/limit-ranger"
_GIVEN = re.compile(r"([\w./, -]+?) (?:request|limit) for (init )?container ([\w.-]+)")
_PAUSE = re.compile(r"(^|/)pause(-\w+)?([:@]|$)")
_SLEEPS = re.compile(
    r"(^|[\s;&])(sleep +(infinity|inf|\d{5,}|\d+d)|tail +-[fF] +/dev/null)[\s;&'\"]*$"
)
"""The last thing that a container does which waits for somebody to come in."""
_LAST_USED = "notebooks.kubeflow.org/last-activity"
_NOTEBOOK_LABEL = "notebook-name"


def with_unused(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> list[LivePod]:
    """The pods, each with the GPUs that it holds for nothing, and with what it was given."""
    last_used = {name_of(one): _last_used(one) for one in objects if one["kind"] == "Notebook"}
    by_name = {name_of(one): one for one in objects if one["kind"] == "Pod"}
    found = []
    for pod in pods:
        one = by_name.get(pod.name)
        if one is None or pod.done or not (pod.num_gpus or pod.slices):
            found.append(pod)
            continue
        given = given_by_default(one)
        defaulted = frozenset(name for names in given.values() for name in names)
        unused = _unused(one, pod, given, last_used) if pod.node else None
        found.append(replace(pod, defaulted=defaulted, unused=unused))
    return found


def given_by_default(pod: dict[str, Any]) -> dict[str, set[str]]:
    """Resources that a LimitRange gave to containers of a pod, by the container's name."""
    text = str(section(pod, "metadata", "annotations").get(_ANNOTATION) or "")
    found: dict[str, set[str]] = {}
    for part in text.partition(":")[2].split(";"):
        told = _GIVEN.search(part.strip())
        if told and not told[2]:
            found.setdefault(told[3], set()).update(name.strip() for name in told[1].split(","))
    return found


def _unused(
    one: dict[str, Any], pod: LivePod, given: dict[str, set[str]], last_used: dict[str, str]
) -> UnusedGpus | None:
    containers = mappings_in(section(one, "spec").get("containers"))
    with_gpus = {str(c.get("name")): gpus for c in containers if (gpus := _gpus(c))}
    running = section(one, "status").get("phase") == "Running"
    images = [str(c.get("image") or "") for c in containers if str(c.get("name")) in with_gpus]
    if images and all(_PAUSE.search(image) for image in images):
        return UnusedGpus(
            way=PLACEHOLDER, gpus=pod.num_gpus, since_seconds=pod.started_seconds,
            said=f"runs {images[0]}, which keeps room and computes nothing",
        )  # fmt: skip
    forced = sum(gpus for name, gpus in with_gpus.items() if any(map(is_gpu, given.get(name, ()))))
    if forced:
        return UnusedGpus(
            way=DEFAULT, gpus=forced, since_seconds=pod.started_seconds,
            said="did not ask for GPUs: a LimitRange of its namespace gives them by default",
        )  # fmt: skip
    first = max((_gpus(c) for c in mappings_in(section(one, "spec").get("initContainers"))
                 if c.get("restartPolicy") != "Always"), default=0)  # fmt: skip
    if running and first > (later := sum(with_gpus.values())):
        return UnusedGpus(
            way=INIT, gpus=first - later, since_seconds=pod.started_seconds,
            said=f"has {first} GPUs for an init container that has ended, and uses {later}",
        )  # fmt: skip
    notebook = section(one, "metadata", "labels").get(_NOTEBOOK_LABEL)
    namespace = section(one, "metadata").get("namespace")
    at = last_used.get(f"{namespace}/{notebook}") or _last_used(one) if notebook else ""
    since = unix_seconds(at) if at else None
    if since is not None:
        return UnusedGpus(
            way=NOTEBOOK, gpus=pod.num_gpus, since_seconds=since,
            said=f"is a notebook that was last in use at {at}",
        )  # fmt: skip
    owning = [c for c in containers if str(c.get("name")) in with_gpus]
    if owning and all(_SLEEPS.search(_command(c)) for c in owning):
        return UnusedGpus(
            way=SLEEPING, gpus=pod.num_gpus, since_seconds=pod.started_seconds,
            said=f"runs `{_command(owning[0])[-40:]}` and waits for somebody to come in",
        )  # fmt: skip
    return None


def _command(container: dict[str, Any]) -> str:
    """What a container runs, as a line; empty: what its image says."""
    told = [container.get("command"), container.get("args")]
    return " ".join(str(word) for part in told if isinstance(part, list) for word in part)


def _gpus(container: dict[str, Any]) -> int:
    amounts = {**section(container, "resources", "limits"),
               **section(container, "resources", "requests")}  # fmt: skip
    return sum(int(parse_quantity(amounts[name]) or 0) for name in amounts if is_gpu(name))


def _last_used(one: dict[str, Any]) -> str:
    return str(section(one, "metadata", "annotations").get(_LAST_USED) or "")


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NONE = ("", "-1", "none", "NoDevFiles")


def with_switched_off(pods: Sequence[LivePod], objects: Sequence[dict[str, Any]]) -> list[LivePod]:
    """The pods, each with the setting that hides all of its GPUs, if one does."""
    by_group = _ray_groups(objects)
    why = {name_of(one): _why(one, by_group) for one in objects if one["kind"] == "Pod"}
    return [replace(pod, switched_off=why.get(pod.name, "")) for pod in pods]


def _why(pod: dict[str, Any], by_group: dict[tuple[str, str], str]) -> str:
    labels = section(pod, "metadata", "labels")
    namespace = section(pod, "metadata").get("namespace")
    head = labels.get("ray.io/node-type") == "head"
    group = "head" if head else str(labels.get("ray.io/group"))
    if told := by_group.get((f"{namespace}/{labels.get('ray.io/cluster')}", group)):
        return told
    with_gpus = [
        one
        for one in mappings_in(section(pod, "spec").get("containers"))
        if any(is_gpu(name) for name in section(one, "resources", "limits"))
    ]
    hidden = [_hidden_by(one) for one in with_gpus]
    return hidden[0] if hidden and all(hidden) else ""


def _hidden_by(container: dict[str, Any]) -> str:
    """The variable by which a container sees no GPU; empty: none does."""
    for one in mappings_in(container.get("env")):
        value = one.get("value", "" if "valueFrom" not in one else None)
        if one.get("name") in _VISIBLE and value in _NONE:
            return f"{one['name']}={value!r}"
    return ""


def _ray_groups(objects: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """The groups of Ray clusters that are started with no GPUs, by cluster and group."""
    found = {}
    for one in objects:
        if one["kind"] != "RayCluster":
            continue
        spec = section(one, "spec")
        groups = [("head", section(spec, "headGroupSpec"))]
        groups += [(str(g.get("groupName")), g) for g in mappings_in(spec.get("workerGroupSpecs"))]
        for name, group in groups:
            if str(section(group, "rayStartParams").get("num-gpus", "")).strip() == "0":
                found[name_of(one), name] = "rayStartParams num-gpus: 0"
    return found
