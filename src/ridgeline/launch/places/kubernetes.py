"""A run's life behind the API server of Kubernetes, and what a crash left half done.

What will be created is remembered before it is. When the launcher dies in between, the next
command finds the record: where the run itself exists, the rest is tied to it and the submission
counts; where it does not, what exists is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.launch.check import check_manifests, read_text
from ridgeline.launch.job import LaunchJob
from ridgeline.launch.kube.api import ApiServer, connect, name_of
from ridgeline.launch.kube.manifest import as_yaml, manifests
from ridgeline.launch.kube.pod import LABEL
from ridgeline.launch.merge import LogLine, LogReader, merged, read_lines, resumed
from ridgeline.launch.pending import SeenRun, why_pending
from ridgeline.launch.remembered import Remembered
from ridgeline.records.launched_run import LaunchedRun, Place, RunStatus, State

_INDEX = "batch.kubernetes.io/job-completion-index"
_KUEUE = "kueue.x-k8s.io/v1beta2"
_ENDS: dict[str, State] = {"Completed": "done", "Complete": "done", "Failed": "failed"}
_RAY_ENDS: dict[str, State] = {"Complete": "done", "Failed": "failed", "ValidationFailed": "failed"}


def render(job: LaunchJob, place: Place, path: Path | None) -> str:
    """Render the manifests of the run as YAML.

    Raises:
        InputError: The cluster file (`path`, for the message) lacks a key.
    """
    return as_yaml(_documents(job, place, path))


def _documents(job: LaunchJob, place: Place, path: Path | None) -> list[dict[str, Any]]:
    return manifests(job, engine="ray" if place == "ray" else "kubernetes", path=path)


def submit(
    job: LaunchJob, run: LaunchedRun, remembered: Remembered, path: Path | None
) -> LaunchedRun:
    """Create everything, or nothing.

    Raises:
        InputError: The server would refuse an object, or one of such a name exists.
    """
    documents = _documents(job, run.place, path)
    server = _server_of(run)
    _refuse_what_never_starts(as_yaml(documents))
    for document in documents:
        if server.get(name_of(document)) is not None:
            name = name_of(document)
            raise InputError(
                f"{name.kind} {name.name} exists in {server.namespace}; cancel that run"
                f" (`ridgeline launch cancel {run.name}`) or give another --name"
            )
    names = tuple(name_of(one) for one in documents)
    run = remembered.write(msgspec.structs.replace(run, objects=names))
    try:
        for document in documents:
            made = server.create(document)
        _own(server, run, made)
    except BaseException:
        _undo(server, run, remembered)
        raise
    return remembered.change(run, phase="submitted")


def _server_of(run: LaunchedRun) -> ApiServer:
    return connect(run.namespace, run.context)


def _refuse_what_never_starts(text: str) -> None:
    """Refuse what the server would refuse, or take and never start.

    Raises:
        InputError: The first such problem.
    """
    for verdict in check_manifests(read_text(text, "manifest")):
        for problem in verdict.problems:
            if problem.severity == "error":
                raise InputError(
                    f"{verdict.kind} {verdict.name}: {problem.field}: {problem.message};"
                    f" {problem.cure}"
                )


def _own(server: ApiServer, run: LaunchedRun, main: Mapping[str, Any]) -> None:
    """Tie the other objects to the run, so that they go when it goes."""
    owner = {
        "apiVersion": main["apiVersion"],
        "kind": main["kind"],
        "name": main["metadata"]["name"],
        "uid": main["metadata"]["uid"],
    }
    for name in run.objects[:-1]:
        server.patch(name, {"metadata": {"ownerReferences": [owner]}})


def _undo(server: ApiServer, run: LaunchedRun, remembered: Remembered) -> None:
    """Delete what a submission has made so far, and forget it."""
    for name in reversed(run.objects):
        server.delete(name)
    remembered.forget(run)


def recover(run: LaunchedRun, remembered: Remembered) -> LaunchedRun | None:
    """Finish or undo a submission whose launcher died; None: there is no such run any more."""
    server = _server_of(run)
    main = server.get(run.objects[-1]) if run.objects else None
    if main is None:
        _undo(server, run, remembered)
        return None
    _own(server, run, main)
    return remembered.change(run, phase="submitted")


def cancel(run: LaunchedRun, remembered: Remembered) -> LaunchedRun:
    """Take the run away, with all that belongs to it; its checkpoints stay on the claim."""
    server = _server_of(run)
    for name in reversed(run.objects):
        server.delete(name)
    return remembered.change(run, phase="cancelled")


def open_log(run: LaunchedRun, remembered: Remembered) -> LogReader:  # noqa: ARG001
    """Open the logs of all pods."""
    return PodLogs(_server_of(run), run)


def status(run: LaunchedRun) -> RunStatus:
    """How the run stands; after a restart, with the line that says from where it went on."""
    server = _server_of(run)
    found = _status_of(run, _look(server, run))
    if found.restarts or found.detail:
        line = resumed(PodLogs(server, run)())
        more = (line.prefixed,) if line else ()
        found = msgspec.structs.replace(found, detail=(*found.detail, *more))
    return found


def _look(server: ApiServer, run: LaunchedRun) -> SeenRun:
    """What the server has of the run."""
    pods = server.find("v1", "Pod", f"{LABEL}={run.name}")
    main = server.get(run.objects[-1]) if run.objects else None
    names = {run.name, *(pod["metadata"]["name"] for pod in pods)}
    events = [
        event
        for event in server.find("v1", "Event")
        if _is_about(event.get("involvedObject", {}).get("name", ""), run.name, names)
    ]
    owner = main["metadata"].get("uid") if main else None
    workloads = [
        one
        for one in server.find(_KUEUE, "Workload")
        if any(ref.get("uid") == owner for ref in one["metadata"].get("ownerReferences", ()))
    ]
    groups = [one for one in run.objects if one.kind == "PodGroup"]
    found = [group for one in groups if (group := server.get(one)) is not None]
    return SeenRun(main=main, workloads=workloads, pods=pods, pod_groups=found, events=events)


def _is_about(name: str, run: str, names: set[str]) -> bool:
    """The run, its pods, or the Job between them."""
    return name in names or name == f"{run}-node-0"


def _status_of(run: LaunchedRun, seen: SeenRun) -> RunStatus:
    """How the run stands, from what the server has."""
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


def _state(seen: SeenRun, complete: bool, restarts: int) -> tuple[State, str, str]:
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
    """Say why pods ended: one that the cluster took is no failure of the run."""
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


class PodLogs:
    """The log of every pod of a run, those of restarts included, read as it grows."""

    def __init__(self, server: ApiServer, run: LaunchedRun) -> None:
        self._server = server
        self._run = run
        self._last: dict[str, str] = {}
        """Pod → the stamp of its last line."""

    def __call__(self, *, over: bool = False) -> list[LogLine]:  # noqa: ARG002
        """Read new lines of all pods, ordered by time."""
        pods = self._server.find("v1", "Pod", f"{LABEL}={self._run.name}")
        streams = []
        for place, pod in enumerate(sorted(pods, key=_order)):
            raw = self._new(pod["metadata"]["name"])
            streams.append(list(read_lines(raw, node=_node_of(pod, place))))
        return list(merged(streams))

    def _new(self, pod: str) -> list[str]:
        before = self._last.get(pod, "")
        text = self._server.log(pod, f"{before.partition('.')[0]}Z" if before else "")
        # The server counts `sinceTime` in whole seconds: lines that were read come again.
        new = [raw for raw in text.splitlines() if _moment(raw) > before]
        if new:
            self._last[pod] = _moment(new[-1])
        return new


def _moment(raw: str) -> str:
    """A line's stamp with nine digits of a second, which some runtimes cut short."""
    whole, _, part = raw.partition(" ")[0].removesuffix("Z").partition(".")
    return f"{whole}.{part:0<9}"


def _order(pod: Mapping[str, Any]) -> tuple[int, str]:
    return _node_of(pod, 0), pod["metadata"]["name"]


def _node_of(pod: Mapping[str, Any], otherwise: int) -> int:
    """The place of a pod among the nodes."""
    metadata = pod["metadata"]
    for labels in (metadata.get("labels") or {}, metadata.get("annotations") or {}):
        if str(labels.get(_INDEX, "")).isdigit():
            return int(labels[_INDEX])
    return otherwise
