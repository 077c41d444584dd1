"""Logs of all pods of a run, merged by time, as they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ridgeline.launch.kube.api import Server
from ridgeline.launch.kube.pod import LABEL
from ridgeline.launch.merge import LogLine, merged, read_lines
from ridgeline.records.launched_run import LaunchedRun

_INDEX = "batch.kubernetes.io/job-completion-index"
_POLL_SECONDS = 1.0


class Follower:
    """Reads what has come since the last call, from every pod, those of restarts included."""

    def __init__(self, server: Server, run: LaunchedRun) -> None:
        self._server = server
        self._run = run
        self._last: dict[str, str] = {}
        """Pod → stamp of its last line."""

    def read(self) -> list[LogLine]:
        """New lines of all pods, ordered by time."""
        pods = self._server.find("v1", "Pod", {"labelSelector": f"{LABEL}={self._run.name}"})
        streams = []
        for place, pod in enumerate(sorted(pods, key=_order)):
            raw = self._new(pod["metadata"]["name"])
            node = node_of(pod, place)
            lines = read_lines(raw, node=node)
            streams.append(list(lines))
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
    return node_of(pod, 0), pod["metadata"]["name"]


def node_of(pod: Mapping[str, Any], otherwise: int) -> int:
    """The pod's place among the nodes."""
    metadata = pod["metadata"]
    for labels in (metadata.get("labels") or {}, metadata.get("annotations") or {}):
        if str(labels.get(_INDEX, "")).isdigit():
            return int(labels[_INDEX])
    return otherwise


def follow(
    follower: Follower, ended: Callable[[], bool], *, poll_seconds: float = _POLL_SECONDS
) -> Iterator[LogLine]:
    """Lines as they come, until the run has ended and all is read."""
    while True:
        over = ended()
        yield from follower.read()
        if over:
            return
        time.sleep(poll_seconds)
