"""A run that was launched: what has to be known to find it again, and how it stands."""

from __future__ import annotations

from typing import Literal

import msgspec

Place = Literal["local", "torchrun", "slurm", "kubernetes", "ray"]
State = Literal["pending", "running", "restarting", "done", "failed", "cancelled", "lost"]


class ObjectName(msgspec.Struct, frozen=True, kw_only=True):
    """An object of Kubernetes."""

    api_version: str
    kind: str
    name: str


class LaunchedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a launched run; it is written before anything is started."""

    name: str
    place: Place
    phase: Literal["submitting", "submitted", "ended", "cancelled"]
    folder: str
    """Where the run lives, on its nodes."""
    created_seconds: float
    """Unix time at which it was created."""
    launcher_host: str
    launcher_pid: int
    ranks: int
    ranks_per_node: int
    job_id: str = ""
    """Slurm's number, or Ray's."""
    address: str = ""
    """Address of Ray's dashboard."""
    namespace: str = ""
    context: str = ""
    objects: tuple[ObjectName, ...] = ()
    """In the order of creation; the last one owns the others."""
    outcome: str = ""
    """How it ended, in one line."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands, now."""

    name: str
    place: Place
    state: State
    why: str = ""
    """Why it waits or failed, in one sentence."""
    cure: str = ""
    nodes_running: int | None = None
    nodes: int | None = None
    restarts: int | None = None
    detail: tuple[str, ...] = ()
    """Further lines, the most telling first."""
