"""Projects of Run:ai as queues, and the Departments above them, with the most GPUs of each.

The limit is `maxAllowedGpus` of the older form, or `limit` of the GPUs in `resources`, of each node
pool. Pods of a project are in the namespace that its status names, or `runai-NAME`. Source: Run:ai
documentation, "Projects".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.queue.doctor.state import CappedQueue
from ridgeline.queue.readers.kube_pods import name_of, whole
from ridgeline.queue.readers.kube_sections import mappings_in, section

RUNAI = "runai"
_UNLIMITED = (None, -1, "-1")


def runai_projects(objects: Sequence[dict[str, Any]], where: str) -> dict[str, CappedQueue]:
    """The projects by name, and departments by theirs, of which projects say that they are part.

    Raises:
        InputError: A limit is no amount.
    """
    return {
        name_of(one): _of_project(section(one, "spec"), f"{where}: {one['kind']} {name_of(one)}")
        for kind in ("Department", "Project")  # of one name the project is what pods are in
        for one in objects
        if one["kind"] == kind and _is_of_runai(one)
    }


def runai_namespaces(objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The project that a namespace is of."""
    return {
        str(section(one, "status").get("namespace") or f"runai-{name_of(one)}"): name_of(one)
        for one in objects
        if one["kind"] == "Project" and _is_of_runai(one)
    }


def _is_of_runai(one: dict[str, Any]) -> bool:
    return str(one.get("apiVersion")).startswith("run.ai/")


def _of_project(spec: dict[str, Any], where: str) -> CappedQueue:
    """A project with the GPUs of all its node pools together, if each has a limit."""
    told = spec.get("resources")
    pools = mappings_in(told) if isinstance(told, list) else [section(spec, "resources")]
    limits = [section(pool, "gpu").get("limit", spec.get("maxAllowedGpus")) for pool in pools]
    known = [whole(limit, "limit", where) for limit in limits if limit not in _UNLIMITED]
    most = sum(known) if limits and len(known) == len(limits) else -1
    return CappedQueue(kind=RUNAI, resource="gpu", most=most, parent=str(spec.get("parent") or ""))
