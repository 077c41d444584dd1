"""Slurm clusters as sinfo and squeue tell of them: nine with one fault each, six with none.

All but the last of each were written, with what should be named first, before anything read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

NOW = datetime(2026, 11, 2, 14, 0, tzinfo=UTC)
SINFO_HEAD = "NODELIST|GRES|STATE|PARTITION|CPUS|MEMORY"
SQUEUE_HEAD = (
    "JOBID|STATE|PARTITION|NODES|TRES|TIME|TIME_LIMIT|NODELIST|REASON|PRIORITY|SUBMIT_TIME"
    "|START_TIME"
)


@dataclass
class SlurmCluster:
    """Lines that are added one by one."""

    nodes: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)

    def node(self, *, gpus: int = 8, kind: str = "h100", state: str = "mixed", cpus: int = 128,
             partition: str = "gpu*") -> str:  # fmt: skip
        name = f"n{len(self.nodes):03d}"
        gres = f"gpu:{kind}:{gpus}(S:0-1)" if gpus else "(null)"
        gres = kind if ":" in kind else gres
        self.nodes.append(f"{name}|{gres}|{state}|{partition}|{cpus}|1031000")
        return name

    def runs(self, nodes: str, gpus: int, *, hours: float = 20.0, cpus: int | None = None,
             waited: float = 0.5, state: str = "RUNNING", count: int = 1,
             ended: float = 0.0) -> None:  # fmt: skip
        self._job(state, nodes, gpus, cpus, hours, hours + ended + waited, "None", count, "gpu",
                  start=NOW - timedelta(hours=hours + ended))  # fmt: skip

    def waits(self, gpus: int, reason: str = "Resources", *, hours: float = 5.0,
              cpus: int | None = None, nodes: int = 1, partition: str = "gpu",
              kind: str = "") -> None:  # fmt: skip
        self._job("PENDING", "", gpus, cpus, 0.0, hours, reason, nodes, partition, kind)

    def _job(self, state: str, where: str, gpus: int, cpus: int | None, ran: float, age: float,
             reason: str, nodes: int, partition: str, kind: str = "",
             start: datetime | None = None) -> None:  # fmt: skip
        cores = gpus * 8 if cpus is None else cpus
        typed = f",gres/gpu:{kind}={gpus}" if kind else ""
        tres = f"cpu={cores},mem={max(1, gpus) * 64}G,node={nodes}"
        tres += f",gres/gpu={gpus}{typed}" if gpus else ""
        since = NOW - timedelta(hours=age)
        clock = f"{int(ran) // 24}-{int(ran) % 24:02d}:00:00"
        self.jobs.append("|".join((
            str(1000 + len(self.jobs)), state, partition, str(nodes), tres, clock, "7-00:00:00",
            where, reason, "1000", since.strftime("%Y-%m-%dT%H:%M:%S"),
            start.strftime("%Y-%m-%dT%H:%M:%S") if start else "N/A",
        )))  # fmt: skip

    def sinfo(self) -> str:
        return "\n".join([SINFO_HEAD, *self.nodes]) + "\n"

    def squeue(self) -> str:
        return "\n".join([SQUEUE_HEAD, *self.jobs]) + "\n"


def full_nodes(c: SlurmCluster, count: int) -> None:
    for _ in range(count):
        c.runs(c.node(state="allocated"), 8)


def drained(c: SlurmCluster) -> None:
    full_nodes(c, 4)
    for _ in range(2):
        c.node(state="drained")
    for _ in range(3):
        c.waits(8)


def limited_by_qos(c: SlurmCluster) -> None:
    full_nodes(c, 2)
    for _ in range(3):
        c.node(state="idle")
    for _ in range(3):
        c.waits(8, "QOSMaxGRESPerUser")


def limited_by_account(c: SlurmCluster) -> None:
    full_nodes(c, 3)
    for _ in range(2):
        c.node(state="idle")
    for _ in range(4):
        c.waits(4, "AssocGrpGRES")


def spread(c: SlurmCluster) -> None:
    for _ in range(8):
        c.runs(c.node(), 2)
    for _ in range(2):
        c.waits(8)


def cores_taken(c: SlurmCluster) -> None:
    for _ in range(4):
        name = c.node()
        c.runs(name, 2)
        c.runs(name, 0, cpus=110)
    for _ in range(4):
        c.waits(4)


def never_completes(c: SlurmCluster) -> None:
    full_nodes(c, 3)
    for _ in range(2):
        c.runs(c.node(state="completing"), 8, hours=5, ended=25, state="COMPLETING")
    c.waits(8)


def kind_not_there(c: SlurmCluster) -> None:
    full_nodes(c, 2)
    for _ in range(3):
        c.node(state="idle", kind="a100")
    for _ in range(2):
        c.waits(8, kind="h200")


def overtaken(c: SlurmCluster) -> None:
    for _ in range(4):
        name = c.node()
        for _ in range(4):
            c.runs(name, 2, hours=6, waited=0.2)
    c.waits(8, hours=40)
    c.waits(8, hours=38)


def slices_of_the_wrong_size(c: SlurmCluster) -> None:
    full_nodes(c, 1)
    c.node(kind="gpu:a100:6,gpu:a100_1g.10gb:14")
    c.waits(3, kind="a100_3g.40gb")


FAULTS: dict[str, tuple[str, Callable[[SlurmCluster], None]]] = {
    "drained nodes": ("closed-nodes", drained),
    "a QOS's limit": ("quota-holds-back", limited_by_qos),
    "an account's limit": ("quota-holds-back", limited_by_account),
    "spread": ("spreading", spread),
    "cores taken by jobs without GPUs": ("starved-of-cpu", cores_taken),
    "jobs that never complete": ("held-without-running", never_completes),
    "a kind of GPU that is not there": ("no-node-admits", kind_not_there),
    "two large jobs overtaken": ("large-jobs-starve", overtaken),
    "slices of the wrong size": ("mig-mismatch", slices_of_the_wrong_size),
}


def busy(c: SlurmCluster) -> None:
    full_nodes(c, 5)
    for _ in range(3):
        c.waits(8, "Priority")


def quiet(c: SlurmCluster) -> None:
    for _ in range(3):
        c.runs(c.node(), 4)


def on_purpose(c: SlurmCluster) -> None:
    full_nodes(c, 2)
    c.node(state="idle")
    for reason in ("Dependency", "BeginTime", "JobHeldUser", "JobHeldAdmin"):
        c.waits(8, reason)


def large_gang(c: SlurmCluster) -> None:
    """Slurm starts jobs of several nodes whole: one that lacks a node is no deadlock."""
    names = [c.node(state="allocated") for _ in range(4)]
    c.runs(f"{names[0]},{names[1]}", 16, count=2)
    c.runs(f"n[{names[2][1:]}-{names[3][1:]}]", 16, count=2)
    c.waits(32, nodes=4)


def other_partition(c: SlurmCluster) -> None:
    """What waits for one partition has no use for the free nodes of another."""
    full_nodes(c, 3)
    for _ in range(2):
        c.node(state="idle", partition="debug")
    c.waits(8)


def two_kinds_on_a_node(c: SlurmCluster) -> None:
    """What asks for one of them waits for it, and is kept off by nothing."""
    names = [c.node(kind="gpu:a100:4,gpu:v100:4") for _ in range(2)]
    for name in names:
        c.runs(name, 8)
    c.waits(4, kind="a100")


HEALTHY: dict[str, Callable[[SlurmCluster], None]] = {
    "busy": busy,
    "quiet": quiet,
    "held on purpose": on_purpose,
    "large jobs of several nodes": large_gang,
    "another partition is free": other_partition,
    "two kinds on a node": two_kinds_on_a_node,
}
