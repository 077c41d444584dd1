"""A run's life behind an API server: submit, status, cancel, and what a crash left half done.

What will be created is remembered before it is. When the launcher dies in between, the next
command finds the record: where the run itself exists, the rest is tied to it and the submission
counts; where it does not, what exists is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.errors import InputError
from ridgeline.launch.kube.api import Server, name_of
from ridgeline.launch.kube.pod import LABEL
from ridgeline.launch.pending import Seen, why_pending
from ridgeline.launch.remembered import Remembered, launcher_lives
from ridgeline.records.launched_run import LaunchedRun, RunStatus, State

_KUEUE = "kueue.x-k8s.io/v1beta2"
_ENDS: dict[str, State] = {"Completed": "done", "Complete": "done", "Failed": "failed"}
_RAY_ENDS: dict[str, State] = {"Complete": "done", "Failed": "failed", "ValidationFailed": "failed"}


def submit(
    server: Server,
    documents: Sequence[Mapping[str, Any]],
    run: LaunchedRun,
    remembered: Remembered,
) -> LaunchedRun:
    """Create everything, or nothing.

    Raises:
        InputError: An object of such a name exists, or the server refuses one.
    """
    for document in documents:
        if server.get(name_of(document)) is not None:
            name = name_of(document)
            raise InputError(
                f"{name.kind} {name.name} exists in {server.namespace}; cancel that run"
                f" (`ridgeline launch cancel {run.name}`) or give another --name"
            )
    run = remembered.change(run, objects=tuple(name_of(one) for one in documents))
    try:
        for document in documents:
            made = server.create(document)
        _own(server, run, made)
    except BaseException:
        undo(server, run, remembered)
        raise
    return remembered.change(run, phase="submitted")


def _own(server: Server, run: LaunchedRun, main: Mapping[str, Any]) -> None:
    """Tie the other objects to the run, so that they go when it goes."""
    owner = {
        "apiVersion": main["apiVersion"],
        "kind": main["kind"],
        "name": main["metadata"]["name"],
        "uid": main["metadata"]["uid"],
    }
    for name in run.objects[:-1]:
        server.patch(name, {"metadata": {"ownerReferences": [owner]}})


def undo(server: Server, run: LaunchedRun, remembered: Remembered) -> None:
    """Delete what a submission has made so far, and forget it."""
    for name in reversed(run.objects):
        server.delete(name)
    remembered.forget(run)


def recover(server: Server, run: LaunchedRun, remembered: Remembered) -> LaunchedRun | None:
    """Finish or undo a submission whose launcher died; None: there is no such run any more."""
    if run.phase != "submitting" or launcher_lives(run):
        return run
    main = server.get(run.objects[-1]) if run.objects else None
    if main is None:
        undo(server, run, remembered)
        return None
    _own(server, run, main)
    return remembered.change(run, phase="submitted")


def cancel(server: Server, run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """Take the run away, with all that belongs to it; its checkpoints stay on the claim."""
    for name in reversed(run.objects):
        server.delete(name)
    return remembered.change(run, phase="cancelled")


def look(server: Server, run: LaunchedRun) -> Seen:
    """What the server has of the run."""
    selector = {"labelSelector": f"{LABEL}={run.name}"}
    pods = server.find("v1", "Pod", selector)
    main = server.get(run.objects[-1]) if run.objects else None
    names = {run.name, *(pod["metadata"]["name"] for pod in pods)}
    events = [
        event
        for event in server.find("v1", "Event", {})
        if _is_about(event.get("involvedObject", {}).get("name", ""), run.name, names)
    ]
    owner = main["metadata"].get("uid") if main else None
    workloads = [
        one
        for one in server.find(_KUEUE, "Workload", {})
        if any(ref.get("uid") == owner for ref in one["metadata"].get("ownerReferences", ()))
    ]
    groups = [one for one in run.objects if one.kind == "PodGroup"]
    found = [group for one in groups if (group := server.get(one)) is not None]
    return Seen(main=main, workloads=workloads, pods=pods, pod_groups=found, events=events)


def _is_about(name: str, run: str, names: set[str]) -> bool:
    """The run, its pods, or the Job between them."""
    return name in names or name == f"{run}-node-0"


def status(run: LaunchedRun, seen: Seen) -> RunStatus:
    """How the run stands, from what the server has."""
    if run.phase == "cancelled":
        return RunStatus(name=run.name, place=run.place, state="cancelled")
    if seen.main is None:
        return RunStatus(
            name=run.name,
            place=run.place,
            state="lost",
            why="it is not on the cluster any more",
            cure="it was deleted, or ended longer ago than kubernetes.keep_seconds",
        )
    nodes = -(-run.ranks // run.ranks_per_node)
    running = sum(1 for pod in seen.pods if _is_ready(pod))
    restarts = int(_status(seen.main).get("restarts", 0) or 0)
    state, why, cure = _state(seen, running >= nodes, restarts)
    losses = _losses(seen.pods)
    return RunStatus(
        name=run.name,
        place=run.place,
        state=state,
        why=why,
        cure=cure,
        nodes_running=running,
        nodes=nodes,
        restarts=restarts,
        detail=tuple(losses),
    )


def _state(seen: Seen, complete: bool, restarts: int) -> tuple[State, str, str]:
    assert seen.main is not None
    main = _status(seen.main)
    for condition in main.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in _ENDS:
            end = _ENDS[condition["type"]]
            return end, condition.get("message", "") if end == "failed" else "", ""
    ray = main.get("jobDeploymentStatus", "")
    if ray in _RAY_ENDS:
        return _RAY_ENDS[ray], main.get("message", ""), ""
    if complete:
        return "running", "", ""
    waiting = why_pending(seen)
    return "restarting" if restarts or _losses(seen.pods) else "pending", waiting.why, waiting.cure


def _losses(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why pods ended: one that the cluster took is no failure of the run."""
    found = []
    for pod in pods:
        name = pod["metadata"]["name"]
        taken = [
            one
            for one in _status(pod).get("conditions") or ()
            if one.get("type") == "DisruptionTarget" and one.get("status") == "True"
        ]
        if taken:
            found.append(f"{name} was taken by the cluster: {taken[0].get('reason', '')}")
            continue
        for container in _status(pod).get("containerStatuses", ()):
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                told = ended.get("reason") or "Error"
                found.append(f"{name} ended with {ended['exitCode']} ({told})")
    return found


def _status(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    return thing.get("status") or {}


def _is_ready(pod: Mapping[str, Any]) -> bool:
    return bool(_status(pod).get("phase") == "Running")
